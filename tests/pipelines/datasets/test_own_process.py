"""What a process of its own reads is what this one would have read, and its end is told."""

import json
import multiprocessing
import os
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from orchard.pipelines.datasets.errors import DatasetError
from orchard.pipelines.datasets.importing import Imported, import_trajectories
from orchard.pipelines.datasets.own_process import in_own_process
from orchard.pipelines.interchange.reading import read_trajectories
from orchard.storage.blobs import BlobStore
from orchard.streams.connection import Connection
from orchard.streams.publisher import Publisher
from tests.benchmarks.bench_import import rows

pytestmark = pytest.mark.long


def pids(count: int) -> Iterator[int]:
    for _ in range(count):
        yield os.getpid()
    raise DatasetError("no more")


def test_items_come_from_one_other_process_and_so_does_an_error() -> None:
    found = in_own_process(partial(pids, 3))
    seen = [next(found) for _ in range(3)]
    assert len(set(seen)) == 1 and seen[0] != os.getpid()
    with pytest.raises(DatasetError, match="no more"):
        next(found)


def test_a_killed_process_is_no_end() -> None:
    found = in_own_process(partial(pids, 1000))
    os.kill(next(found), signal.SIGKILL)
    with pytest.raises(DatasetError, match="was killed"):
        list(found)


def test_who_stops_reading_leaves_no_process() -> None:
    found = in_own_process(partial(pids, 1000))
    (child,) = {next(found)} & {process.pid for process in multiprocessing.active_children()}
    found.close()
    assert child not in {process.pid for process in multiprocessing.active_children()}


async def test_an_import_by_two_processes_is_the_import_of_one(
    connection: Connection, tmp_path: Path
) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in [*rows(300), {"schema_version": "no"}]))
    blobs, publisher, told = BlobStore(tmp_path / "store"), Publisher(connection), list[int]()
    read = partial(read_trajectories, [file], blobs)
    asked = {"campaign": "corpus", "dataset": "d"}
    first = await import_trajectories(publisher, blobs, read, **asked, told=told.append)
    again = await import_trajectories(publisher, blobs, read(), **asked)
    assert [one.name for one in first.left_out] == [f"{file}, line 301"]
    assert (first.rollouts, again) == (300, Imported(0, 300, {}, first.left_out))
    assert told == sorted(told) and told[-1] == 300

"""Compaction and vacuum keep every row, and no reader or writer notices them."""

import asyncio
import os
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pyarrow as pa
import pytest

from orchard.schemas.positions import Position
from orchard.storage import compaction
from orchard.storage.compaction import CompactionCancelled, plan
from orchard.storage.delta import DataFile, StoreTable, snapshot, write_file
from orchard.storage.digest import store_digests
from orchard.storage.errors import StorageError
from orchard.storage.location import Location
from orchard.storage.reader import open_tables
from orchard.storage.tables import EVENTS, SCHEMAS
from orchard.storage.upkeep.maintenance import check, compact, vacuum
from orchard.storage.writing.writer import Writer, WriterSettings
from orchard.streams.connection import Connection
from orchard.streams.publisher import Publisher

Write = Callable[..., Awaitable[None]]


def _file(name: str, size: int) -> DataFile:
    return DataFile(name, size, 1, 0, 0)


def test_only_neighbouring_small_files_are_merged_up_to_the_target() -> None:
    files = [
        _file("a", 10),
        _file("b", 20),
        _file("large", 60),
        _file("c", 40),
        _file("d", 45),
        _file("e", 30),
    ]
    names = [[file.path for file in found] for found in plan(files, target=100)]
    assert names == [["a", "b"], ["c", "d"]]


async def _write_small(publisher: Publisher, write: Write, log, commits: int) -> None:
    for sample in range(commits):
        await publisher.events(log.whole_rollout(sample))
    await write(WriterSettings(commit_rows=6))


@pytest.mark.long
async def test_rows_stay_the_same_and_in_order(publisher: Publisher, store: str, write: Write, log) -> None:
    await _write_small(publisher, write, log, 8)
    before = store_digests(store)
    assert compact(store)[EVENTS] == 7
    (file,) = snapshot(Location.parse(store), EVENTS)
    assert (file.rows, file.first, file.last) == (48, 1, 48)
    assert store_digests(store) == before
    assert check(store) == []


async def test_few_files_are_left_alone(publisher: Publisher, store: str, write: Write, log) -> None:
    await _write_small(publisher, write, log, 4)
    assert compact(store, above=4)[EVENTS] == 0


async def test_the_writer_goes_on_from_a_compacted_table(
    publisher: Publisher, store: str, write: Write, log
) -> None:
    await _write_small(publisher, write, log, 4)
    compact(store)
    await publisher.events(log.whole_rollout(50))
    await write()
    assert [file.rows for file in snapshot(Location.parse(store), EVENTS)] == [24, 6]
    assert check(store) == []


async def test_a_table_opened_before_a_compaction_still_appends(
    publisher: Publisher, store: str, write: Write, log
) -> None:
    await _write_small(publisher, write, log, 4)
    table = StoreTable(Location.parse(store), EVENTS)
    compact(store)
    table.append(table.schema.empty_table(), Position.of(24))
    assert table.watermark == Position.of(24)
    assert check(store) == []


@pytest.mark.long
async def test_two_compactions_at_once_double_nothing(
    publisher: Publisher, store: str, write: Write, log
) -> None:
    await _write_small(publisher, write, log, 12)
    before = store_digests(store)
    together = threading.Barrier(3)

    def run() -> None:
        together.wait()
        compact(store)

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store_digests(store) == before
    assert check(store) == []


async def test_a_cancelled_compaction_changes_nothing(
    publisher: Publisher, store: str, write: Write, log
) -> None:
    await _write_small(publisher, write, log, 4)
    location = Location.parse(store)
    files = snapshot(location, EVENTS)
    with pytest.raises(CompactionCancelled):
        compaction.compact(location, EVENTS, above=1, cancelled=lambda: True)
    assert snapshot(location, EVENTS) == files
    assert len(list((location.path / "tables" / EVENTS).glob("*.parquet"))) == len(files)


async def test_vacuum_deletes_only_what_was_replaced_long_ago(
    publisher: Publisher, store: str, write: Write, log
) -> None:
    await _write_small(publisher, write, log, 4)
    before = store_digests(store)
    place = Location.parse(store).path / "tables" / EVENTS
    leftover = place / "events-of-a-killed-writer.parquet"
    leftover.write_bytes(b"half a file")
    old = time.time() - 48 * 3600
    os.utime(leftover, (old, old))
    compact(store)
    assert vacuum(store)[EVENTS] == 1
    assert not leftover.exists()
    assert len(list(place.glob("*.parquet"))) == 5
    assert store_digests(store) == before
    with pytest.raises(StorageError, match="at least 1 hour"):
        vacuum(store, hours=0)


async def test_the_writer_compacts_while_it_runs(
    connection: Connection, publisher: Publisher, store: str, write: Write, log
) -> None:
    await _write_small(publisher, write, log, 6)
    before = store_digests(store)
    stop = asyncio.Event()
    settings = WriterSettings(compact_above=5, compact_seconds=0.05)
    writer = asyncio.create_task(Writer(store, connection, settings).run(stop))
    async with asyncio.timeout(30):
        while len(snapshot(Location.parse(store), EVENTS)) > 1:
            await asyncio.sleep(0.02)
    stop.set()
    await writer
    assert store_digests(store) == before


async def test_the_writer_compacts_again_what_came_after_a_look_that_found_nothing(
    connection: Connection, publisher: Publisher, store: str, log
) -> None:
    stop, location = asyncio.Event(), Location.parse(store)
    settings = WriterSettings(commit_rows=6, commit_seconds=0.05, compact_above=3, compact_seconds=0.02)
    writer = Writer(store, connection, settings)
    running = asyncio.create_task(writer.run(stop))
    async with asyncio.timeout(60):
        for sample in range(10):
            *_, last = await publisher.events(log.whole_rollout(sample))
            while not writer.position.covers(last):
                await asyncio.sleep(0.01)
        while len(snapshot(location, EVENTS)) > 3:
            await asyncio.sleep(0.02)
    stop.set()
    await running
    assert sum(file.rows for file in snapshot(location, EVENTS)) == 60
    assert check(store) == []


@pytest.mark.slow
async def test_readers_are_undisturbed_by_writes_compaction_and_vacuum(
    connection: Connection, publisher: Publisher, store: str, write: Write, log
) -> None:
    await publisher.events(log.whole_rollout(0))
    await write()
    stop, finished = asyncio.Event(), threading.Event()
    problems: list[str] = []
    reads = [0, 0, 0]

    def read(reader: int) -> None:
        held = open_tables(store)
        at_first = held.sql("select count(*) from events").fetchall()
        seen = 0
        while not finished.is_set():
            with open_tables(store) as tables:
                rows, distinct, last = tables.sql(
                    "select count(*), count(distinct sequence), max(sequence) from events"
                ).fetchall()[0]
                broken = tables.sql("select count(*) from conservation where not holds").fetchall()[0][0]
            if not (rows == distinct == last >= seen) or broken:
                problems.append(
                    f"{rows} rows, {distinct} distinct, last {last} after {seen}, {broken} broken"
                )
            if held.sql("select count(*) from events").fetchall() != at_first:
                problems.append("a held connection changed")
            seen = last
            reads[reader] += 1
        held.close()

    def maintain() -> None:
        while not finished.is_set():
            compact(store)
            vacuum(store)

    threads = [threading.Thread(target=read, args=(n,)) for n in range(3)]
    threads.append(threading.Thread(target=maintain))
    settings = WriterSettings(commit_rows=12, commit_seconds=0.05)
    writer = asyncio.create_task(Writer(store, connection, settings).run(stop))
    for thread in threads:
        thread.start()
    try:
        async with asyncio.timeout(60):
            sample = 1
            while min(reads) < 5 or sample < 40:
                await publisher.events(log.whole_rollout(sample))
                sample += 1
                await asyncio.sleep(0.01)
    finally:
        finished.set()
        stop.set()
        await writer
        for thread in threads:
            await asyncio.to_thread(thread.join)
    assert problems == []
    assert check(store) == []
    with open_tables(store) as tables:
        assert tables.sql("select count(*) from rollouts").fetchall() == [(sample,)]


def test_vacuum_leaves_what_a_living_process_is_about_to_commit_whatever_the_clock_says(
    tmp_path: Path,
) -> None:
    """A clock that is two days ahead makes every file look two days old."""
    location, name = Location.parse(tmp_path), "reopenings_all"
    rows = pa.Table.from_pylist([{"sequence": 1, "reason": "r"}], schema=SCHEMAS[name])
    StoreTable(location, name).append(rows, Position.of(1))
    pending = write_file(location, name, [rows])
    folder = tmp_path / "tables" / name
    killed, earlier = folder / f"{name}-0123456789abcdef.7.parquet", folder / f"{name}-{'ab' * 12}.parquet"
    for left_over in (killed, earlier):
        left_over.write_bytes(b"of a process that was killed")
    for path in folder.iterdir():
        _age(path, hours=48)
    assert compaction.vacuum(location, name, hours=24) == 0, "measured from the newest file all are new"

    for path in (folder / pending.path, killed, earlier):
        _age(path, hours=72)
    assert compaction.vacuum(location, name, hours=12) == 2
    assert (folder / pending.path).exists() and not killed.exists() and not earlier.exists()


def _age(path: Path, hours: int) -> None:
    then = time.time() - hours * 3600
    os.utime(path, (then, then))

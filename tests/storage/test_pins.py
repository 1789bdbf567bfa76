"""Replaced files go as soon as no reader can need them, and never sooner."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable

from orchard.schemas.positions import Position
from orchard.storage import pins
from orchard.storage.compaction import Vacuum, compact
from orchard.storage.delta import VACUUM_HOURS, StoreTable, snapshot, watermark_of
from orchard.storage.location import Location
from orchard.storage.reader import open_tables, refresh
from orchard.storage.table_log import FollowedTable
from orchard.storage.tables import EVENTS
from orchard.storage.upkeep.maintenance import check, vacuum
from orchard.storage.writing.writer import WriterSettings
from orchard.streams.publisher import Publisher

Write = Callable[..., Awaitable[None]]
ROLLOUTS = 8


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
async def small_files(publisher: Publisher, store: str, write: Write, log) -> Location:
    """A store with a file of `events` for each of eight rollouts."""
    for sample in range(ROLLOUTS):
        await publisher.events(log.whole_rollout(sample))
    await write(WriterSettings(commit_rows=6))
    return Location.parse(store)


def _on_disk(location: Location) -> int:
    return len(list((location.path / "tables" / EVENTS).glob("*.parquet")))


def _after_grace(location: Location) -> int:
    """Deletes what may go once GRACE has passed since the files were replaced; how many files."""
    clock = Clock()
    cleaner = Vacuum(FollowedTable(location, EVENTS), clock)
    assert cleaner.run() == 0
    clock.now += pins.GRACE
    return cleaner.run()


def test_replaced_files_outlive_the_grace_and_no_longer(small_files: Location) -> None:
    compact(small_files, EVENTS, above=1)
    assert _on_disk(small_files) == ROLLOUTS + 1
    assert _after_grace(small_files) == ROLLOUTS
    assert _on_disk(small_files) == len(snapshot(small_files, EVENTS)) == 1
    assert check(small_files.url) == []


def test_a_query_under_way_reads_on_while_its_files_are_replaced(small_files: Location) -> None:
    with open_tables(small_files.url) as tables:
        rows = tables.sql("select sequence from events order by sequence").to_arrow_reader(6)
        first = rows.read_next_batch().num_rows
        compact(small_files, EVENTS, above=1)
        assert _after_grace(small_files) == 0
        assert first + sum(batch.num_rows for batch in rows) == ROLLOUTS * 6
        assert tables.sql("select count(*) from events").fetchall() == [(ROLLOUTS * 6,)]
    assert _after_grace(small_files) == ROLLOUTS


def test_a_refreshed_reader_holds_the_new_files_and_not_the_old(small_files: Location) -> None:
    with open_tables(small_files.url) as tables:
        compact(small_files, EVENTS, above=1)
        refresh(tables, small_files.url)
        assert _after_grace(small_files) == ROLLOUTS
        assert tables.sql("select count(*) from events").fetchall() == [(ROLLOUTS * 6,)]


def test_a_table_that_is_followed_loses_its_replaced_files_too(small_files: Location) -> None:
    """As the writer looks at it: before and after each rewriting, and long after the last."""
    followed, clock = FollowedTable(small_files, EVENTS), Clock()
    cleaner = Vacuum(followed, clock)
    assert cleaner.run() == 0
    assert compact(small_files, EVENTS, above=1, followed=followed) == ROLLOUTS - 1
    assert cleaner.run() == 0
    clock.now += pins.GRACE
    assert cleaner.run() == ROLLOUTS
    assert cleaner.run() == 0
    assert _on_disk(small_files) == len(snapshot(small_files, EVENTS)) == 1
    followed_now = followed.current()
    assert followed_now is not None and watermark_of(followed_now) == Position.of(ROLLOUTS * 6)


_READER = """
import sys
from orchard.storage.reader import open_tables
tables = open_tables(sys.argv[1])
print("open", flush=True)
sys.stdin.readline()
print(tables.sql("select count(*) from events").fetchall()[0][0])
"""


@pytest.fixture
def other_reader(small_files: Location) -> Iterator[subprocess.Popen[str]]:
    """Another process that has opened the tables."""
    command = [sys.executable, "-c", _READER, small_files.url]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        yield process
        process.kill()


@pytest.mark.long
def test_a_stopped_reader_keeps_its_files(small_files: Location, other_reader: subprocess.Popen[str]) -> None:
    other_reader.send_signal(signal.SIGSTOP)
    compact(small_files, EVENTS, above=1)
    assert _after_grace(small_files) == 0
    other_reader.send_signal(signal.SIGCONT)
    assert other_reader.communicate("\n")[0] == f"{ROLLOUTS * 6}\n"
    assert _after_grace(small_files) == ROLLOUTS


@pytest.mark.long
def test_a_killed_reader_holds_nothing(small_files: Location, other_reader: subprocess.Popen[str]) -> None:
    compact(small_files, EVENTS, above=1)
    other_reader.kill()
    other_reader.wait()
    assert _after_grace(small_files) == ROLLOUTS
    assert list((small_files.path / "readers").iterdir()) == []


def test_the_command_spares_what_readers_hold(small_files: Location) -> None:
    leftover = small_files.path / "tables" / EVENTS / "left.parquet"
    leftover.write_bytes(b"half a file")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("orchard.storage.pins.held", lambda _: {f"tables/{EVENTS}/left.parquet"})
        _age(leftover)
        assert vacuum(small_files.url)[EVENTS] == 0
    assert vacuum(small_files.url)[EVENTS] == 1


def _age(path: Path) -> None:
    old = time.time() - 2 * VACUUM_HOURS * 3600
    os.utime(path, (old, old))


def test_looking_and_pinning_starts_again_when_it_took_too_long(
    small_files: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter([0.0, pins.GRACE, 100.0, 101.0])
    monkeypatch.setattr(pins.time, "monotonic", lambda: next(times))
    looks: list[str] = []

    def look() -> list[str]:
        looks.append(f"file-{len(looks)}")
        return looks[-1:]

    found, pin = pins.pinned(small_files, look, lambda names: names)
    assert (found, pins.held(small_files)) == (["file-1"], {"file-1"})
    pin.release()
    assert pins.held(small_files) == set()


def test_the_log_of_a_table_stays_short_however_many_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"delta.checkpointInterval": "5", "delta.logRetentionDuration": "interval 1 seconds"}
    monkeypatch.setattr("orchard.storage.delta._CONFIGURATION", settings)
    location = Location.parse(tmp_path)
    table = StoreTable(location, EVENTS)
    first = location.path / "tables" / EVENTS / "_delta_log" / f"{1:020}.json"
    number = 0
    while number == 0 or first.exists():
        number += 1
        table.append(table.schema.empty_table(), Position.of(number))
        assert number < 5000
    table.append(table.schema.empty_table(), Position.of(number + 1))
    assert StoreTable(location, EVENTS).watermark == Position.of(number + 1)


def test_a_table_of_an_earlier_version_gets_the_settings_of_this_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    location = Location.parse(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(
            "orchard.storage.delta._CONFIGURATION", {"delta.logRetentionDuration": "interval 1 hours"}
        )
        StoreTable(location, EVENTS).append(StoreTable(location, EVENTS).schema.empty_table(), Position.of(7))
    assert StoreTable(location, EVENTS).watermark == Position.of(7)
    settings = DeltaTable(location.table_url(EVENTS)).metadata().configuration
    assert settings["delta.logRetentionDuration"] == "interval 1 minutes"


async def test_a_table_whose_commits_are_cleaned_away_while_it_is_looked_at_is_read_on(
    publisher: Publisher, store: str, write: Write, log
) -> None:
    """The newest commit that is known is deleted after the next one, between two looks of one question."""
    await publisher.events(log.whole_rollout(0))
    await write(WriterSettings(commit_rows=6))
    location = Location.parse(store)
    followed = FollowedTable(location, EVENTS)
    before = followed.current()
    assert before is not None
    known = before.version()
    for sample in range(1, ROLLOUTS):
        await publisher.events(log.whole_rollout(sample))
    await write(WriterSettings(commit_rows=6))
    newest = DeltaTable(str(location.path / "tables" / EVENTS))
    newest.create_checkpoint()
    followed._commit(known + 1).unlink()
    followed.current()
    followed._commit(known).unlink()

    for _ in range(2):
        now = followed.current()
    assert now is not None and now.version() == newest.version()

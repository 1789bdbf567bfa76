"""Whatever byte of a store changes, the check says so or the tables say the same; a rebuild mends it."""

import random
import shutil
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pytest
from deltalake import DeltaTable

from orchard.schemas.positions import Position
from orchard.storage import table_log
from orchard.storage.blobs import BlobStore
from orchard.storage.checking import check, examine
from orchard.storage.compaction import Vacuum, compact
from orchard.storage.delta import DataFile, StoreTable, snapshot
from orchard.storage.digest import store_digests
from orchard.storage.errors import BlobCorrupt, EventsLost, StorageError, StoreDamaged
from orchard.storage.location import Location
from orchard.storage.reader import open_tables, position
from orchard.storage.table_log import FollowedTable
from orchard.storage.tables import DERIVED, EVENTS, PROGRESS, TABLES
from orchard.storage.upkeep.maintenance import rebuild_derived, rebuild_events
from orchard.storage.writing.writer import Writer, WriterSettings
from orchard.streams.connection import Connection
from orchard.streams.publisher import Publisher

Write = Callable[..., Awaitable[None]]


@pytest.fixture
async def filled(publisher: Publisher, store: str, write: Write, log) -> Path:
    """A store with several commits of each table, a checkpoint of each log, and a blob."""
    for sample in range(6):
        await publisher.events(log.whole_rollout(sample))
    await write(WriterSettings(commit_rows=6))
    location = Location.parse(store)
    for table in (PROGRESS, *TABLES):
        DeltaTable(location.table_url(table)).create_checkpoint()
    await publisher.events(log.whole_rollout(6))
    await write()
    BlobStore(store).put(b"a picture" * 100)
    assert check(store, read=True) == []
    return Path(store)


async def test_a_file_that_cannot_be_read_is_named_and_does_not_end_the_writer(
    filled: Path, connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    store, location = str(filled), Location.parse(str(filled))
    unreadable = filled / "tables" / EVENTS / snapshot(location, EVENTS)[2].path
    unreadable.unlink()
    unreadable.mkdir()  # reading it is an error of the operating system
    writer, followed = Writer(store, connection), FollowedTable(location, EVENTS)

    assert writer._keep(followed, 1, Vacuum(followed), False, None) is None

    (said,) = caplog.messages
    assert "table events is not compacted" in said and unreadable.name in said


def _files(store: Path, kind: str) -> list[Path]:
    patterns = {
        "events": f"tables/{EVENTS}/*.parquet",
        "derived": "tables/*_all/*.parquet",
        "commit": "tables/*/_delta_log/*.json",
        "checkpoint": "tables/*/_delta_log/*.checkpoint.parquet",
        "blob": "blobs/*/*/*",
    }
    return sorted(path for path in store.glob(patterns[kind]) if path.stat().st_size)


KINDS = ("events", "derived", "commit", "checkpoint", "blob")


def damage(path: Path, chance: random.Random) -> None:
    """Flips one bit, or cuts the file."""
    data = bytearray(path.read_bytes())
    at = chance.randrange(len(data))
    if chance.random() < 0.7:
        data[at] ^= 1 << chance.randrange(8)
    else:
        del data[at:]
    path.write_bytes(data)


@dataclass
class Told:
    """What readers see of a store, and the blob."""

    digests: dict[str, str]
    rows: dict[str, int]
    blob: bool


def _told(store: Path) -> Told:
    with open_tables(str(store)) as tables:
        rows = {
            table: tables.execute(f"select count(*) from tables.{table}").fetchall()[0][0] for table in TABLES
        }
    names = [path.name for path in store.glob("blobs/*/*/*")]
    return Told(store_digests(str(store)), rows, all(map(_is_whole, [store] * len(names), names)))


def _is_whole(store: Path, blob: str) -> bool:
    try:
        BlobStore(str(store)).read(blob)
    except BlobCorrupt:
        return False
    return True


def _damaged(filled: Path, number: int) -> Iterator[tuple[Path, Path]]:
    """Copies of a store, each with one damage, and what was damaged."""
    for seed in range(number):
        chance = random.Random(seed)
        copy = filled.with_name("copy")
        shutil.copytree(filled, copy)
        path = chance.choice(_files(copy, KINDS[seed % len(KINDS)]))
        damage(path, chance)
        yield copy, path
        shutil.rmtree(copy)


@pytest.mark.long
@pytest.mark.parametrize("number", [5, pytest.param(200, marks=pytest.mark.slow)])
async def test_a_reading_check_finds_every_damage_that_matters(filled: Path, number: int) -> None:
    before = _told(filled)
    for copy, path in _damaged(filled, number):
        found = check(str(copy), read=True)
        try:
            assert found or _told(copy) == before, path
        except (StorageError, duckdb.Error) as error:
            raise AssertionError(f"{path} cannot be read and the check has not found it") from error


def _spoil(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.long
@pytest.mark.parametrize(
    ("table", "what"),
    [("messages_all", "0*.json"), ("messages_all", "*"), (PROGRESS, "*.checkpoint.parquet")],
)
async def test_a_damaged_log_is_named_with_its_command_and_a_rebuild_needs_nothing_of_it(
    filled: Path, table: str, what: str
) -> None:
    before = store_digests(str(filled))
    for path in (filled / "tables" / table / "_delta_log").glob(what):
        _spoil(path) if what != "*" else path.unlink()

    (finding,) = check(str(filled))
    assert finding.startswith(f"{table}: its log is damaged")
    assert finding.endswith("stop `orchard up` and run `orchard store rebuild`")
    with pytest.raises(StoreDamaged, match="run `orchard store rebuild`"):
        open_tables(str(filled))
    with pytest.raises(StoreDamaged, match="run `orchard store rebuild`"):
        StoreTable(Location.parse(str(filled)), table)

    rebuild_derived(str(filled))
    assert check(str(filled), read=True) == []
    assert store_digests(str(filled)) == before


@pytest.mark.long
async def test_events_with_a_damaged_log_come_again_from_the_stream(
    filled: Path, connection: Connection
) -> None:
    before = store_digests(str(filled))
    for path in (filled / "tables" / EVENTS / "_delta_log").glob("*.checkpoint.parquet"):
        path.unlink()
    (finding,) = check(str(filled))
    assert "run `orchard store rebuild --from-stream`" in finding
    with pytest.raises(StoreDamaged, match="orchard store rebuild --from-stream"):
        rebuild_derived(str(filled))

    await rebuild_events(str(filled), connection)
    rebuild_derived(str(filled))
    assert check(str(filled), read=True) == []
    assert store_digests(str(filled)) == before


@pytest.mark.long
async def test_a_stream_that_has_less_than_the_files_of_a_damaged_log_replaces_nothing(
    filled: Path, connection: Connection
) -> None:
    log = filled / "tables" / EVENTS / "_delta_log"
    for path in log.iterdir():
        path.unlink()
    await connection.jetstream.delete_stream("ORCHARD_EVENTS")
    await connection.jetstream.add_stream(name="ORCHARD_EVENTS", subjects=["orchard.events.>"])
    kept = sorted(path.name for path in (filled / "tables" / EVENTS).glob("*.parquet"))
    with pytest.raises(EventsLost, match="nothing was changed"):
        await rebuild_events(str(filled), connection)
    assert sorted(path.name for path in (filled / "tables" / EVENTS).glob("*.parquet")) == kept


@pytest.mark.long
async def test_a_flipped_byte_is_neither_derived_from_nor_merged_nor_built_into_a_dataset(
    filled: Path,
) -> None:
    location = Location.parse(str(filled))
    for table, command in (("messages_all", "run `orchard store rebuild`"), (EVENTS, "--from-stream")):
        path = filled / "tables" / table / snapshot(location, table)[0].path
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
        with pytest.raises(StoreDamaged, match=command):
            compact(location, table, above=1)
    with pytest.raises(StoreDamaged, match="run `orchard store rebuild"):
        open_tables(str(filled), verify=DERIVED)
    with pytest.raises(StoreDamaged, match="--from-stream"):
        rebuild_derived(str(filled))
    assert {finding.split(":")[0] for finding in check(str(filled), read=True)} == {"messages_all", EVENTS}


@pytest.mark.long
async def test_a_file_without_a_checksum_is_not_known_and_no_finding(filled: Path) -> None:
    """As versions before this one wrote it."""
    location = Location.parse(str(filled))
    table = StoreTable(location, "rewards_all")
    files = []
    for number, file in enumerate(table.files()):
        old = DataFile(f"rewards_all-{number:024x}.parquet", file.size, file.rows, file.first, file.last)
        shutil.copy(
            filled / "tables" / "rewards_all" / file.path, filled / "tables" / "rewards_all" / old.path
        )
        files.append(old)
    table.replace(files, table.watermark)
    checked = examine(str(filled), read=True)
    assert (checked.findings, checked.unknown) == ([], {"rewards_all": len(files)})
    rebuild_derived(str(filled))
    assert not examine(str(filled), read=True).unknown


async def test_a_check_beside_a_writer_takes_what_belongs_together(
    publisher: Publisher, store: str, write: Write, log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer commits between any two tables that the check opens."""
    from orchard.storage import reader

    await publisher.events(log.whole_rollout(0))
    await write()
    location, current = Location.parse(store), table_log.FollowedTable.current
    events, rewards = StoreTable(location, EVENTS), StoreTable(location, "rewards_all")
    rows = {table.name: next(_one_row(store, table.name)) for table in (events, rewards)}

    def opened_late(followed: table_log.FollowedTable) -> DeltaTable | None:
        found = current(followed)
        if followed.table in ("rewards_all", "messages_all", "rollouts_all"):
            at = events.watermark.last(0) + 1
            for table in (events, rewards):
                table.append(_at(rows[table.name], at), Position.of(at))
        return found

    monkeypatch.setattr(table_log.FollowedTable, "current", opened_late)
    monkeypatch.setattr(reader, "ThreadPoolExecutor", _InTurn)
    assert check(store) == []
    assert events.watermark != position(store)


class _InTurn:
    """A pool that works in the order of what it is given."""

    def __init__(self, _workers: int) -> None: ...

    def __enter__(self) -> "_InTurn":
        return self

    def __exit__(self, *_: object) -> None: ...

    map = staticmethod(map)


def _one_row(store: str, table: str):
    from orchard.storage.derived import read_rows

    location = Location.parse(store)
    for rows in read_rows(location, table, snapshot(location, table)[-1]):
        yield rows.slice(rows.num_rows - 1)


def _at(rows, sequence: int):
    import pyarrow as pa

    return rows.set_column(0, "sequence", pa.array([sequence], pa.int64()))


@pytest.mark.long
async def test_a_table_that_is_made_while_it_is_opened_is_not_damaged(
    filled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Delta finds no commit, and the first is there when its directory is looked at."""
    location, log = Location.parse(str(filled)), filled / "tables" / EVENTS / "_delta_log"
    away = log.with_name("away")
    log.rename(away)

    def looked(*args: Any, **options: Any) -> DeltaTable:
        try:
            return DeltaTable(*args, **options)
        finally:
            if away.exists():
                away.rename(log)

    monkeypatch.setattr(table_log, "DeltaTable", looked)
    table = table_log.opened(location, EVENTS)
    assert table is not None and table.version()

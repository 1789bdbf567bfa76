"""A connection that follows commits reads what is new of a log, and no log that is not there any more."""

import re
import shutil
from pathlib import Path

import duckdb
import pytest

from orchard.storage.location import Location
from orchard.storage.reader import open_tables, refresh
from orchard.storage.table_log import opened, set_aside
from orchard.storage.tables import TABLES
from orchard.storage.upkeep.maintenance import rebuild_derived
from orchard.storage.writing.writer import WriterSettings
from orchard.streams.publisher import Publisher


def _counts(tables: duckdb.DuckDBPyConnection) -> dict[str, int]:
    return {name: tables.sql(f"select count(*) from tables.{name}").fetchall()[0][0] for name in TABLES}


def _files(tables: duckdb.DuckDBPyConnection) -> set[str]:
    """Names of all files that are read."""
    views = tables.sql("select sql from duckdb_views() where schema_name = 'tables'").fetchall()
    return set(re.findall(r"[^/']+\.parquet", str(views)))


def _agrees(tables: duckdb.DuckDBPyConnection, store: str) -> dict[str, int]:
    """Refresh, and compare with a connection that reads everything anew."""
    refresh(tables, store)
    with open_tables(store) as anew:
        expected = _counts(anew)
        assert _files(tables) == _files(anew)
    assert _counts(tables) == expected
    return expected


@pytest.mark.long
async def test_a_connection_sees_what_was_committed_since(
    publisher: Publisher, store: str, write, log
) -> None:
    await publisher.events(log.whole_rollout(0))
    await write()
    with open_tables(store) as tables:
        seen = [_agrees(tables, store)]
        for sample in range(1, 4):
            await publisher.events(log.whole_rollout(sample))
            await write()
            seen.append(_agrees(tables, store))
        assert [counts["rollouts_all"] for counts in seen] == [1, 2, 3, 4]


@pytest.mark.long
async def test_a_connection_finds_a_log_that_was_made_anew(
    publisher: Publisher, store: str, write, log
) -> None:
    await publisher.events(log.whole_rollout(0))
    await write()
    with open_tables(store) as tables:
        _agrees(tables, store)
        for name in ("rollouts_all", "messages_all"):
            set_aside(Location.parse(store), name)
        rebuild_derived(store)
        for sample in range(1, 4):  # the log has more commits than the one before
            await publisher.events(log.whole_rollout(sample))
            await write()
        assert _agrees(tables, store)["rollouts_all"] == 4


@pytest.mark.long
async def test_a_connection_that_slept_through_the_cleaning_of_a_log_sees_the_newest(
    publisher: Publisher, store: str, write, log
) -> None:
    await publisher.events(log.whole_rollout(0))
    await write()
    with open_tables(store) as tables:
        for sample in range(1, 7):
            await publisher.events(log.whole_rollout(sample))
            await write(WriterSettings(commit_rows=6))
        for name in TABLES:
            delta = opened(Location.parse(store), name)
            if delta is not None:
                delta.create_checkpoint()
                for commit in Path(store, "tables", name, "_delta_log").glob("0*.json"):
                    if int(commit.stem) < delta.version():
                        commit.unlink()
        assert _agrees(tables, store)["rollouts_all"] == 7


async def test_a_connection_that_is_shown_a_copy_of_a_store_reads_the_copy(
    publisher: Publisher, store: str, write, log, tmp_path: Path
) -> None:
    await publisher.events(log.whole_rollout(0))
    await write()
    copy = shutil.copytree(store, tmp_path / "copy")
    with open_tables(store) as tables:
        refresh(tables, str(copy))
        shutil.rmtree(Path(store))
        assert _counts(tables)["rollouts_all"] == 1

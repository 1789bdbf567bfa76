"""The generator of benchmark histories is a history: sound, and the same by way of the stream."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from orchard.schemas.queues import Queue
from orchard.storage.digest import store_digests
from orchard.storage.reader import open_tables
from orchard.storage.tables import DERIVED
from orchard.storage.upkeep.maintenance import check
from orchard.streams import names
from orchard.streams.campaigns import CampaignBook
from orchard.streams.connection import Connection
from orchard.streams.reading import bounds
from orchard.streams.settings import NatsSettings
from orchard.streams.topology import declare
from tests.benchmarks.million import OPEN_FATES, Plan, fill_store, fill_stream

pytestmark = pytest.mark.long

PLAN = Plan(rollouts=301, campaigns=2, samples=2, open_share=0.3)


async def test_tables_made_directly_are_those_that_a_writer_makes_from_the_stream(
    connection: Connection, store: str, write: Callable[..., Awaitable[None]], tmp_path: Path
) -> None:
    directly = str(tmp_path / "directly")
    count = fill_store(PLAN, directly)
    assert check(directly) == []
    await declare(connection, NatsSettings(), [Queue()])
    assert await fill_stream(PLAN, connection, store) == count
    await write()
    live, made = store_digests(store), store_digests(directly)
    assert {table: live[table] for table in DERIVED} == {table: made[table] for table in DERIVED}

    book = await CampaignBook(connection).list()
    assert [record.size for record, _ in book.values()] == [151, 150]
    open_now = [fate for fate in PLAN.fates(1) if fate in OPEN_FATES]
    queued = (await bounds(connection, names.WORK)).messages
    delayed = (await bounds(connection, names.LATER)).messages
    assert (queued, delayed) == (len(open_now) - open_now.count("delayed"), open_now.count("delayed"))
    with open_tables(directly) as tables:
        counted = tables.sql("select sum(open), bool_and(holds) from conservation").fetchall()
        fates = tables.sql("select count(*) from reopenings").fetchall()
    assert counted == [(len(open_now), True)]
    assert fates == [((PLAN.fates(0) + PLAN.fates(1)).count("reopened"),)]

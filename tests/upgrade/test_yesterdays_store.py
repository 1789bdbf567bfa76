"""A store and its streams as the version of commit 46d858f left them when all its processes were killed.

Three tiny tasks, and campaigns in all conditions: finished and then paused, parked before it began,
cancelled, waiting in the queue, retrying against a dead endpoint (delayed), resumed after it aborted (that
version lost these retries, so they are in no queue), and one dead letter. `expected.json` has what that
version's tables said.
"""

import asyncio
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from orchard.storage.digest import store_digests
from orchard.storage.maintenance import check, rebuild_derived, rebuild_events
from orchard.storage.reader import open_tables
from orchard.storage.writer import Writer, WriterSettings
from orchard.streams import names
from orchard.streams.connection import connect
from orchard.streams.reading import bounds
from orchard.streams.server import EmbeddedServer
from orchard.streams.settings import NatsSettings, Queue
from orchard.streams.topology import declare

HERE = Path(__file__).parent
EXPECTED: dict[str, Any] = json.loads((HERE / "expected.json").read_text())


@pytest.fixture
def old_store(tmp_path: Path) -> Path:
    """The store, unpacked."""
    store = tmp_path / "store"
    with tarfile.open(HERE / "store.tar.xz") as archive:
        archive.extractall(store, filter="data")
    return store


async def test_it_opens_goes_on_and_rebuilds_equal(old_store: Path, tmp_path: Path) -> None:
    settings = NatsSettings()
    async with (
        EmbeddedServer(old_store / "nats") as server,
        connect(settings, name="test", url=server.url) as connection,
    ):
        await declare(connection, settings, [Queue()])
        held = {name: (await bounds(connection, name)).messages for name in EXPECTED["streams"]}
        assert held == EXPECTED["streams"]
        stop = asyncio.Event()
        stop.set()
        await Writer(str(old_store), connection, WriterSettings()).run(stop)
        assert check(str(old_store)) == []
        with open_tables(str(old_store)) as tables:
            rows = tables.sql(
                "select rollout_id, campaign, status, resolved, sequence, attempt from rollouts order by 1"
            ).fetchall()
            last = tables.sql("select max(sequence) from events").fetchall()[0][0]
        known = {row[0]: list(row) for row in rows}
        accepted = [row for row in EXPECTED["rollouts"] if row[2] != "aborted"]
        assert accepted and [known[row[0]] for row in accepted] == accepted
        assert last == (await bounds(connection, names.EVENTS)).last >= EXPECTED["watermark"]
        rebuilt = str(tmp_path / "rebuilt")
        Path(rebuilt).mkdir()
        await rebuild_events(rebuilt, connection)
        rebuild_derived(rebuilt)
        assert store_digests(rebuilt) == store_digests(str(old_store))

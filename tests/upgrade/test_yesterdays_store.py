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

from orchard.pipelines.campaigns.commands import Campaigns
from orchard.schemas.queues import Queue
from orchard.storage.digest import store_digests
from orchard.storage.reader import open_tables
from orchard.storage.upkeep.maintenance import check, rebuild_derived, rebuild_events
from orchard.storage.writing.writer import Writer, WriterSettings
from orchard.streams import names
from orchard.streams.campaigns import CampaignBook
from orchard.streams.connection import connect
from orchard.streams.reading import bounds
from orchard.streams.server import EmbeddedServer
from orchard.streams.settings import NatsSettings
from orchard.streams.topology import declare
from tests.chaos.world import pipeline, session_for
from tests.tiny_tasks import build_tiny_image

HERE = Path(__file__).parent
WAIT = {"dead", "late"}
"""Campaigns whose endpoint does not answer."""
EXPECTED: dict[str, Any] = json.loads((HERE / "expected.json").read_text())


@pytest.fixture
def old_store(tmp_path: Path) -> Path:
    """The store, unpacked."""
    store = tmp_path / "store"
    with tarfile.open(HERE / "store.tar.xz") as archive:
        archive.extractall(store, filter="data")
    return store


@pytest.mark.long
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


@pytest.mark.slow
async def test_its_campaigns_are_finished_by_this_version(
    old_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Queued, delayed, parked and cancelled rollouts of the old version. Those whose endpoint is still dead,
    delayed or lost by that version, wait until it answers (decision 83)."""
    monkeypatch.setenv("ORCHARD_ENDPOINTS__DEFAULT__BASE_URL", "http://127.0.0.1:9/v1")
    monkeypatch.setenv("ORCHARD_ENDPOINTS__DEFAULT__MAX_TRIES", "1")
    session = session_for(old_store)
    async with pipeline(old_store, workers=2, slots=2):
        async with session.sandboxes() as client:
            await build_tiny_image(client, 3)
        async with session.connection("test") as connection:
            campaigns = Campaigns(connection, session.blobs)
            for name in ("first", "parked", "gone"):
                async for _ in campaigns.resume(name):
                    pass
            book = CampaignBook(connection)
            sizes = {name: record.size for name, (record, _) in (await book.list()).items()}
            async with asyncio.timeout(240):
                while outcomes(old_store) != {name: sizes[name] for name in sizes.keys() - WAIT} or not lost(
                    old_store
                ):
                    await asyncio.sleep(1.0)
            await session.committed(connection)
    with open_tables(str(old_store)) as tables:
        rows = tables.sql("select campaign, open from conservation where aborted + open > 0").fetchall()
    assert dict(rows) == {name: sizes[name] for name in WAIT}
    assert lost(old_store) == 3  # the retries that the old version dropped
    assert check(str(old_store)) == []


def lost(store: Path) -> int:
    with open_tables(str(store)) as tables:
        found = tables.sql("select count(*) from events where type = 'rollout.reconciled'").fetchall()
    return int(found[0][0])


def outcomes(store: Path) -> dict[str, int]:
    """Rollouts with an outcome, by campaign."""
    with open_tables(str(store)) as tables:
        return dict(tables.sql("select campaign, count(*) from rollouts group by 1").fetchall())

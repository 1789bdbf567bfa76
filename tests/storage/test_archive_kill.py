"""Archiving that is killed at any of its effects loses nothing, and the next run ends what it began."""

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from pathlib import Path

import pytest

from orchard.schemas.blobs import BlobRef
from orchard.schemas.campaigns import CampaignRecord, CampaignState
from orchard.schemas.events import campaign_subjects
from orchard.storage.archive.history import whole_log
from orchard.storage.archive.shelf import Shelf
from orchard.storage.archive.verify import verify_archive
from orchard.storage.digest import store_digests
from orchard.storage.maintenance import rebuild_derived, rebuild_events
from orchard.streams import names
from orchard.streams.campaigns import CampaignBook
from orchard.streams.connection import Connection
from orchard.streams.publisher import Publisher
from orchard.streams.reading import bounds, subjects
from orchard.streams.server import EmbeddedServer

EFFECTS = 6
"""Segment, manifest, event, purge, campaign book, event of the state."""

Archiver = Callable[[str, int], Awaitable[str]]


@pytest.fixture
async def archiver(store: str, nats_server: EmbeddedServer) -> AsyncIterator[Archiver]:
    """Archives a campaign in a process that is killed at its effect of a number; how the process ended."""
    script = Path(__file__).with_name("archive_process.py")
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        script,
        store,
        nats_server.url,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    stdin, stdout = process.stdin, process.stdout

    async def archive(campaign: str, kill_at: int) -> str:
        stdin.write(f"{campaign} {kill_at}\n".encode())
        return (await stdout.readline()).decode().strip()

    yield archive
    stdin.close()
    await process.wait()


async def _everything(connection: Connection, shelf: Shelf) -> dict[int, bytes]:
    """The whole log by sequence; each sequence is there once and in order, or reading raises."""
    found: dict[int, bytes] = {}
    last = (await bounds(connection, names.EVENTS)).last
    async with aclosing(whole_log(connection, shelf, 1, until=last)) as batches:
        async for batch in batches:
            for message in batch:
                assert message.sequence == len(found) + 1
                found[message.sequence] = message.raw
    assert len(found) == last
    return found


async def test_a_kill_at_any_effect_loses_nothing(
    connection: Connection,
    publisher: Publisher,
    store: str,
    write: Callable[[], Awaitable[None]],
    log,
    archiver: Archiver,
) -> None:
    shelf = Shelf(f"{store}/archive")
    campaigns = [f"c{number}" for number in range(1, EFFECTS + 2)]
    for name in campaigns:
        record = CampaignRecord(spec=BlobRef(sha256="0" * 64, size=1), spec_hash=name, size=3, offered=3)
        await CampaignBook(connection).create(name, record)
        mine = log.__class__(name)
        for sample in range(3):
            await publisher.events(mine.whole_rollout(sample))
    await write()
    known = await _everything(connection, shelf)
    for kill_at, name in enumerate(campaigns, start=1):
        ended = await archiver(name, kill_at)
        assert ended == ("killed" if kill_at <= EFFECTS else "done")
        now = await _everything(connection, shelf)
        assert known.items() <= now.items()
        assert await archiver(name, 0) == "done"
        known = await _everything(connection, shelf)
        assert now.items() <= known.items()
        book = await CampaignBook(connection).get(name)
        assert book is not None
        assert book[0].state is CampaignState.ARCHIVED
        left = await subjects(connection, names.EVENTS, campaign_subjects(name))
        assert {subject.split(".", 4)[4] for subject in left} <= {
            "campaign.archived",
            "campaign.state_changed",
        }
    await write()
    live = store_digests(store)
    assert verify_archive(shelf, store).findings == []
    await rebuild_events(store, connection)
    rebuild_derived(store)
    assert store_digests(store) == live

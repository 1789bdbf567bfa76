"""Archiving that is killed at any of its effects loses nothing, and the next run ends what it began."""

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from pathlib import Path

import pytest

from orchard.schemas.blobs import BlobRef
from orchard.schemas.campaigns import CampaignRecord, CampaignState
from orchard.schemas.subjects import campaign_subjects
from orchard.storage.archive.files import ArchiveFiles
from orchard.storage.archive.history import whole_log
from orchard.storage.archive.verify import verify_archive
from orchard.storage.digest import store_digests
from orchard.storage.upkeep.maintenance import rebuild_derived, rebuild_events
from orchard.streams import names
from orchard.streams.campaigns import CampaignBook
from orchard.streams.connection import Connection
from orchard.streams.publisher import Publisher
from orchard.streams.reading import bounds, subjects
from orchard.streams.server import EmbeddedServer

KILLS = {
    1: "before the segment's file has its name",
    2: "before the manifest's file has its name",
    3: "before the event",
    4: "before the purge",
    5: "before the campaign book",
    6: "before the event of the campaign's state",
}
EFFECTS = (1, 2, 3, 2, 3, 4)
"""Which effect of its run that is, for each kill: what is verified already is not repeated. Until the tables
have the event, it is published again under its id."""

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


async def _everything(connection: Connection, shelf: ArchiveFiles) -> dict[int, bytes]:
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


@pytest.mark.slow
async def test_a_kill_at_any_effect_loses_nothing(
    connection: Connection,
    publisher: Publisher,
    store: str,
    write: Callable[[], Awaitable[None]],
    log,
    archiver: Archiver,
) -> None:
    shelf = ArchiveFiles(f"{store}/archive")
    for name in ("demo", "other"):
        record = CampaignRecord(spec=BlobRef(sha256="0" * 64, size=1), spec_hash=name, size=5, offered=5)
        await CampaignBook(connection).create(name, record)
    mine, other = log.__class__("demo"), log.__class__("other")
    for sample in range(5):
        await publisher.events([*mine.whole_rollout(sample), *other.whole_rollout(sample)])
    await write()
    known = await _everything(connection, shelf)
    for when, effect in zip(KILLS.values(), EFFECTS, strict=True):
        assert await archiver("demo", effect) == "killed", when
        now = await _everything(connection, shelf)
        assert known.items() <= now.items(), when
        known = now
    assert await archiver("demo", 0) == "done"
    assert known.items() <= (await _everything(connection, shelf)).items()
    book = await CampaignBook(connection).get("demo")
    assert book is not None
    assert book[0].state is CampaignState.ARCHIVED
    left = await subjects(connection, names.EVENTS, campaign_subjects("demo"))
    assert {subject.split(".", 4)[4] for subject in left} == {"campaign.archived", "campaign.state_changed"}
    await write()
    live = store_digests(store)
    assert len(shelf.parts()) == 1
    assert verify_archive(shelf, store).findings == []
    await rebuild_events(store, connection)
    rebuild_derived(store)
    assert store_digests(store) == live

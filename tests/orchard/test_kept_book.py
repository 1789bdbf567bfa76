"""The steward puts back what a server has lost of the campaigns."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from orchard.pipelines.campaigns.commands import Campaigns
from orchard.processes import steward
from orchard.processes.steward import keep_book
from orchard.schemas.blobs import BlobRef
from orchard.schemas.campaigns import CampaignSpec, CampaignState, ModelSpec, TaskRef
from orchard.schemas.events import CampaignSubmitted, make_event
from orchard.schemas.positions import Position
from orchard.storage import campaigns as campaigns_of_the_log
from orchard.storage import reader
from orchard.storage.blobs import BlobStore
from orchard.storage.writing.writer import Writer
from orchard.streams import names
from orchard.streams.campaigns import CampaignBook
from orchard.streams.connection import Connection, connect
from orchard.streams.publisher import Publisher
from orchard.streams.server import EmbeddedServer
from orchard.streams.settings import NatsSettings
from orchard.streams.tasks import end
from orchard.streams.topology import declare

SPEC = CampaignSpec(
    name="first",
    tasks=(TaskRef(task_id="t1", source="test", repo="a/b", blob=BlobRef(sha256="0" * 64, size=1)),),
    harnesses=("mini-swe-agent",),
    models=(ModelSpec(name="m"),),
    samples=3,
)


async def test_a_campaign_that_was_cancelled_is_not_running_after_its_record_was_damaged(
    nats_server: EmbeddedServer, tmp_path: Path
) -> None:
    """Its rollouts would be claimed again, and nobody would be told."""
    settings, store = NatsSettings(), str(tmp_path / "store")
    async with connect(settings, name="test", url=nats_server.url) as connection:
        await declare(connection, settings, [])
        campaigns, book = Campaigns(connection, BlobStore(store)), CampaignBook(connection)
        async for _ in campaigns.submit(SPEC):
            pass
        async for _ in campaigns.cancel("first"):
            pass
        stop = asyncio.Event()
        stop.set()
        await Writer(store, connection).run(stop)
        keeping = asyncio.create_task(keep_book(store, connection))

        await lose_the_newest_record(nats_server)
        await cancelled(book, keeping)


async def test_a_change_that_the_tables_lack_at_the_first_look_is_put_back_too(
    nats_server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, store = NatsSettings(), str(tmp_path / "store")
    looked, stop = asyncio.Event(), asyncio.Event()
    stop.set()
    loop = asyncio.get_running_loop()

    def position(store_url: str) -> Position:
        loop.call_soon_threadsafe(looked.set)
        return reader.position(store_url)

    async def restore_campaigns(store_url: str, connection: Connection) -> list[str]:
        try:
            return await campaigns_of_the_log.restore_campaigns(store_url, connection)
        finally:
            looked.set()

    monkeypatch.setattr(steward, "position", position)
    monkeypatch.setattr(steward, "restore_campaigns", restore_campaigns)
    monkeypatch.setattr(steward, "BEHIND_SECONDS", 0.05)
    async with connect(settings, name="test", url=nats_server.url) as connection:
        await declare(connection, settings, [])
        campaigns, book = Campaigns(connection, BlobStore(store)), CampaignBook(connection)
        async for _ in campaigns.submit(SPEC):
            pass
        await Writer(store, connection).run(stop)
        async for _ in campaigns.cancel("first"):
            pass
        await lose_the_newest_record(nats_server)
        keeping = asyncio.create_task(keep_book(store, connection))
        await looked.wait()
        await Writer(store, connection).run(stop)
        await cancelled(book, keeping)


async def test_a_plan_that_is_none_does_not_end_the_steward(
    nats_server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, store = NatsSettings(), str(tmp_path / "store")
    looked, again = [], asyncio.Event()

    async def restore_campaigns(store_url: str, connection: Connection) -> list[str]:
        looked.append(True)
        if len(looked) == 2:
            again.set()
        return await campaigns_of_the_log.restore_campaigns(store_url, connection)

    monkeypatch.setattr(steward, "restore_campaigns", restore_campaigns)
    monkeypatch.setattr(steward, "AGAIN_SECONDS", 0.0)
    plan = CampaignSubmitted(
        spec=BlobStore(store).put(b"[]"),
        spec_hash="h",
        size=1,
        tasks=1,
        harnesses=("h",),
        models=("m",),
        samples=1,
    )
    async with connect(settings, name="test", url=nats_server.url) as connection:
        await declare(connection, settings, [])
        await Publisher(connection).event(make_event(plan, id="p", source="test", campaign="first"))
        stop = asyncio.Event()
        stop.set()
        await Writer(store, connection).run(stop)
        keeping = asyncio.create_task(keep_book(store, connection))
        waiting = asyncio.create_task(again.wait())
        await asyncio.wait({keeping, waiting}, return_when=asyncio.FIRST_COMPLETED)
        assert not keeping.done(), keeping
        await end(keeping)


async def lose_the_newest_record(server: EmbeddedServer) -> None:
    os.kill(server.pid, signal.SIGKILL)
    await server.wait()
    [block] = server.store.glob(f"jetstream/*/streams/{names.CAMPAIGNS_STREAM}/msgs/*.blk")
    os.truncate(block, block.stat().st_size - 10)
    await server.start()


async def cancelled(book: CampaignBook, keeping: "asyncio.Task[None]") -> None:
    """Waits until the book says so, and ends what keeps it."""
    async with asyncio.timeout(60):
        while True:
            assert not keeping.done(), keeping
            found = await book.get("first")
            if found is not None and found[0].state is CampaignState.CANCELLED:
                break
            await asyncio.sleep(0.05)
    keeping.cancel()

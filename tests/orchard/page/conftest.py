"""A store with rollouts of several kinds, and its page served by the real server."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from orchard.actions.session import Session
from orchard.configuration.config import Config
from orchard.page.access import Access
from orchard.page.server import PageSite
from orchard.schemas import events as e
from orchard.storage.writing.writer import Writer
from orchard.streams.connection import connect
from orchard.streams.publisher import Publisher
from orchard.streams.server import EmbeddedServer
from orchard.streams.settings import NatsSettings
from orchard.streams.topology import declare

TOKEN = "the-token-of-the-test"


async def stored(place: Path, events: Sequence[e.Event], store: str = "store", streams: int = 1) -> Path:
    """The store that a writer makes of these events, beside those that it has already."""
    settings = NatsSettings(event_streams=streams)
    async with (
        EmbeddedServer(place / "nats") as server,
        connect(settings, name="test", url=server.url) as connection,
    ):
        await declare(connection, settings, [])
        await Publisher(connection).events(events)
        stop = asyncio.Event()
        stop.set()
        await Writer(str(place / store), connection).run(stop)
    return place / store


@asynccontextmanager
async def served(
    store: Path,
    *,
    loopback: bool = True,
    private: bool = False,
    session: Session | None = None,
    base: str = "",
) -> AsyncIterator[str]:
    """The address of the page of a store, on a port of its own."""
    access = Access(TOKEN, loopback=loopback, private=private, hosts=())
    site = PageSite(session or Session(Config(store=str(store))), access, base=base)
    runner = web.AppRunner(site.application(), access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


Serve = Callable[..., AbstractAsyncContextManager[str]]


@pytest.fixture
def serve() -> Serve:
    return served

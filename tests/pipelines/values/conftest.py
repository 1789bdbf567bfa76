"""Fixtures of the values: a store that is being written, and an annotator on a real queue."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from aiohttp import web

from orchard.pipelines.values.requests import QUEUE
from orchard.storage.blobs import BlobStore
from orchard.storage.writing.writer import Writer
from orchard.streams.connection import connect
from orchard.streams.publisher import Publisher
from orchard.streams.server import EmbeddedServer
from orchard.streams.settings import NatsSettings
from orchard.streams.topology import declare


@pytest.fixture
async def pipeline(nats_server: EmbeddedServer, tmp_path: Path) -> AsyncIterator[Any]:
    """Connection, publisher, store and blobs, and `keep`, which publishes events and writes the tables."""
    store = str(tmp_path / "store")
    settings = NatsSettings()
    async with connect(settings, name="test", url=nats_server.url) as connection:
        await declare(connection, settings, [QUEUE])
        publisher = Publisher(connection)

        async def keep(*events: Any) -> None:
            if events:
                await publisher.events(events)
            stop = asyncio.Event()
            stop.set()
            await Writer(store, connection).run(stop)

        yield SimpleNamespace(
            connection=connection, publisher=publisher, store=store, blobs=BlobStore(store), keep=keep
        )


@pytest.fixture
async def teacher() -> AsyncIterator[Any]:
    """An OpenAI endpoint that says what `replies` holds, in turn, and remembers what it was asked. It answers
    nothing while `open` is not set."""
    asked: list[dict[str, Any]] = []
    replies: list[str | web.Response] = []
    open_ = asyncio.Event()
    open_.set()

    async def chat(request: web.Request) -> web.Response:
        asked.append(msgspec.json.decode(await request.read()))
        await open_.wait()
        said = replies[min(len(asked), len(replies)) - 1]
        if isinstance(said, web.Response):
            return web.Response(status=said.status, body=said.body, content_type="application/json")
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": said}}
        usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
        return web.json_response(
            {
                "id": "x",
                "object": "chat.completion",
                "created": 0,
                "model": "served",
                "choices": [choice],
                "usage": usage,
            }
        )

    app = web.Application(client_max_size=2**26)
    app.router.add_post("/v1/chat/completions", chat)
    runner = web.AppRunner(app, shutdown_timeout=1.0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    yield SimpleNamespace(url=url, asked=asked, replies=replies, open=open_)
    await runner.cleanup()

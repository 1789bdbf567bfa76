"""Creations that their caller gives up before the service has answered: nothing of them stays."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from orchard.injector.agent.protocol import REASON_HEADER
from orchard.injector.client import AsyncSandboxClient

if TYPE_CHECKING:
    from tests.injector.conftest import Service

DEADLINE = 60.0


class SlowPost:
    """Passes requests on, and keeps the answers of posts until it is told to give them."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.done = asyncio.Event()
        """The service has answered."""
        self.give = asyncio.Event()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        headers = {name: value for name, value in request.headers.items() if name.lower() != "host"}
        async with aiohttp.ClientSession(auto_decompress=False) as session:
            there = session.request(
                request.method, self._url + request.path_qs, headers=headers, data=await request.read()
            )
            async with there as reply:
                body = await reply.read()
        if request.method == "POST":
            self.done.set()
            await self.give.wait()
        names = ("Content-Type", REASON_HEADER)
        said = {name: reply.headers[name] for name in names if name in reply.headers}
        return web.Response(status=reply.status, body=body, headers=said)


@pytest.fixture
async def slow(service: "Service") -> AsyncIterator[tuple[SlowPost, str]]:
    made = SlowPost(service.url)
    made.give.set()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", made.handle)
    server = TestServer(app)
    await server.start_server()
    yield made, str(server.make_url("")).rstrip("/")
    made.give.set()
    await server.close()


async def create(client: AsyncSandboxClient) -> Any:
    return await client.create_sandbox("host", labels={"given": "up"})


async def fork(client: AsyncSandboxClient) -> Any:
    (origin,) = await client.list_sandboxes({"given": "origin"})
    return await (await client.get_sandbox(origin.sandbox_id)).fork(2, labels={"given": "up"})


@pytest.mark.long
@pytest.mark.parametrize("begin", [create, fork])
async def test_who_gives_up_a_creation_leaves_no_sandbox(
    client: AsyncSandboxClient,
    slow: tuple[SlowPost, str],
    begin: Callable[[AsyncSandboxClient], Awaitable[Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Naive: an id that only the answer has, which nobody waits for any more."""
    monkeypatch.setattr("orchard.injector.client.UNDOING", DEADLINE)
    proxy, url = slow
    async with asyncio.timeout(DEADLINE):
        await client.create_sandbox("host", labels={"given": "origin"})
        async with AsyncSandboxClient(url, auto_cleanup=False) as hasty:
            proxy.done.clear()
            proxy.give.clear()
            creating = asyncio.ensure_future(begin(hasty))
            await proxy.done.wait()
            assert await client.list_sandboxes({"given": "up"}) != []
            creating.cancel()
            proxy.give.set()
            with pytest.raises(asyncio.CancelledError):
                await creating
            assert await client.list_sandboxes({"given": "up"}) == []


async def test_closing_the_client_waits_until_nothing_is_left(
    client: AsyncSandboxClient, slow: tuple[SlowPost, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchard.injector.client.UNDOING", 0.0)
    proxy, url = slow
    async with asyncio.timeout(DEADLINE):
        async with AsyncSandboxClient(url, auto_cleanup=False) as hasty:
            proxy.give.clear()
            creating = asyncio.ensure_future(create(hasty))
            await proxy.done.wait()
            creating.cancel()
            with pytest.raises(asyncio.CancelledError):
                await creating
            assert await client.list_sandboxes({"given": "up"}) != []
            proxy.give.set()
        assert await client.list_sandboxes({"given": "up"}) == []

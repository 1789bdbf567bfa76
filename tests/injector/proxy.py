"""A proxy to a service that a test has answer in its place, or lose what it answers."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import aiohttp
from aiohttp import web
from aiohttp.test_utils import TestServer

from orchard.injector.orchestrator.relay import relay

HOP_BY_HOP = {"connection", "host", "transfer-encoding", "content-length", "upgrade"}
PAGE = "<html><body>maintenance</body></html>"
BAD_GATEWAY = (502, PAGE, "text/html")
"""Status, body and media type of an answer."""


class Proxy:
    """Passes on what it has no answer for."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.answers: list[tuple[str, web.Response]] = []
        self.losing = 0
        """Creations whose answers will be lost."""
        self.asked: list[str] = []
        self.lines: list[web.WebSocketResponse] = []
        self._changed = asyncio.Condition()

    def instead(self, *answers: tuple[int, str | bytes, str], of: str = "", **headers: str) -> None:
        """Give these answers, one each, to the next requests that begin with `of` (`GET /path`)."""
        for status, body, media in answers:
            data = body.encode() if isinstance(body, str) else body
            made = web.Response(status=status, body=data, content_type=media, headers=headers or None)
            self.answers.append((of, made))

    async def until(self, condition: Callable[[], bool], end: "asyncio.Task[None]") -> None:
        """Wait until a condition of this proxy holds; fails if `end` comes before."""

        async def holds() -> None:
            async with self._changed:
                await self._changed.wait_for(condition)

        waiting = asyncio.create_task(holds())
        await asyncio.wait({waiting, end}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        assert not end.done(), "it ended"

    async def _noted(self, line: web.WebSocketResponse | None = None) -> None:
        async with self._changed:
            self.lines += [] if line is None else [line]
            self._changed.notify_all()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        asked = f"{request.method} {request.path}"
        self.asked.append(asked)
        await self._noted()
        given = next((one for one in self.answers if asked.startswith(one[0])), None)
        if given is not None:
            self.answers.remove(given)
            await request.read()
            return given[1]
        if "upgrade" in request.headers:
            return await self._line(request)
        headers = {name: value for name, value in request.headers.items() if name.lower() not in HOP_BY_HOP}
        async with (
            aiohttp.ClientSession(auto_decompress=False) as session,
            session.request(
                request.method, self._url + request.path_qs, data=await request.read(), headers=headers
            ) as reply,
        ):
            said = {name: value for name, value in reply.headers.items() if name.lower() not in HOP_BY_HOP}
            answer = web.Response(status=reply.status, body=await reply.read(), headers=said)
        if self.losing and asked == "POST /sandboxes":
            self.losing -= 1
            assert request.transport is not None
            request.transport.abort()
        return answer

    async def _line(self, request: web.Request) -> web.StreamResponse:
        async with (
            aiohttp.ClientSession() as session,
            session.ws_connect(self._url + request.path_qs) as there,
        ):
            here = web.WebSocketResponse()
            await here.prepare(request)
            await self._noted(here)
            await relay(here, there)
        return here


@asynccontextmanager
async def proxied(url: str, port: int = 0) -> AsyncIterator[tuple[Proxy, str]]:
    """A proxy and its URL."""
    proxy = Proxy(url)
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", proxy.handle)
    async with TestServer(app, port=port or None) as server:
        yield proxy, str(server.make_url("")).rstrip("/")

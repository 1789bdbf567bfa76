"""A load balancer without any affinity: each request goes to the next replica, whatever it is about."""

import itertools
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager

import aiohttp
from aiohttp import hdrs, web
from yarl import URL

from orchard.injector.event_loop import EventLoopThread
from orchard.injector.orchestrator.relay import relay

FRAME_LIMIT = 16 * 1024 * 1024
HOP_BY_HOP = {
    hdrs.CONNECTION,
    hdrs.KEEP_ALIVE,
    hdrs.TRANSFER_ENCODING,
    hdrs.UPGRADE,
    hdrs.HOST,
    hdrs.SEC_WEBSOCKET_KEY,
    hdrs.SEC_WEBSOCKET_VERSION,
    hdrs.SEC_WEBSOCKET_EXTENSIONS,
    hdrs.SEC_WEBSOCKET_PROTOCOL,
    hdrs.SEC_WEBSOCKET_ACCEPT,
}


class Balancer:
    """Runs on a thread of its own, so that tests may block. It can also lose answers."""

    def __init__(self, replicas: Sequence[str]) -> None:
        self._next = itertools.cycle(replicas)
        self._to_lose = 0
        self.lost: list[tuple[str, str]] = []
        """Method and path of the requests that were handled and whose answers were lost."""
        self.url = ""

    @contextmanager
    def serving(self) -> Iterator["Balancer"]:
        """With it on a free port of the loopback interface."""
        loop = EventLoopThread()
        runner = loop.run(self._start())
        try:
            yield self
        finally:
            loop.run(runner.cleanup())
            loop.stop()

    def lose(self, answers: int) -> None:
        """Let the next so many requests other than GET be handled, and cut the line instead of answering."""
        self.lost.clear()
        self._to_lose = answers

    async def _start(self) -> web.AppRunner:
        app = web.Application(client_max_size=1 << 40)
        app.router.add_route("*", "/{path:.*}", self._forward)
        app.cleanup_ctx.append(self._connected)
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        return runner

    async def _connected(self, _app: web.Application) -> AsyncIterator[None]:
        timeout = aiohttp.ClientTimeout(total=None)
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(
            timeout=timeout, connector=connector, auto_decompress=False
        ) as session:
            self._session = session
            yield

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        url = URL(next(self._next) + request.raw_path, encoded=True)
        try:
            if request.headers.get(hdrs.UPGRADE, "").lower() == "websocket":
                return await self._forward_line(request, url)
            return await self._forward_request(request, url)
        except aiohttp.ClientError:
            assert request.transport is not None
            request.transport.abort()
            raise

    async def _forward_request(self, request: web.Request, url: URL) -> web.StreamResponse:
        data = request.content.iter_any() if request.body_exists else None
        async with self._session.request(
            request.method, url, headers=_passed_on(request.headers), data=data, allow_redirects=False
        ) as answer:
            if request.method != "GET" and self._to_lose:
                self._to_lose -= 1
                self.lost.append((request.method, request.path))
                raise aiohttp.ClientConnectionError("lost, as the test wants it")
            reply = web.StreamResponse(status=answer.status, headers=_passed_on(answer.headers))
            await reply.prepare(request)
            async for piece in answer.content.iter_any():
                await reply.write(piece)
            await reply.write_eof()
            return reply

    async def _forward_line(self, request: web.Request, url: URL) -> web.StreamResponse:
        try:
            agent = await self._session.ws_connect(
                url, headers=_passed_on(request.headers), max_msg_size=FRAME_LIMIT
            )
        except aiohttp.WSServerHandshakeError as error:
            return web.Response(status=error.status, headers=_passed_on(error.headers or {}))
        client = web.WebSocketResponse(max_msg_size=FRAME_LIMIT, compress=False)
        await client.prepare(request)
        await relay(client, agent)
        return client


def _passed_on(headers: Mapping[str, str]) -> list[tuple[str, str]]:
    return [(name, value) for name, value in headers.items() if name not in HOP_BY_HOP]

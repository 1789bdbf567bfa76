"""Authenticates the agent's HTTP interface: without a key it does nothing, then only sealed requests count.

    GET  /health         open, for the kubelet's probes: {"status", "introduced"}
    POST /introduction   {"key": hex, "time": epoch seconds}, sealed by that very key; the first one counts
    GET  /introduction   sealed: shows that the agent has the key

Every other request without a seal is refused, and every response to a sealed one is sealed, refusals too.
Requests are judged by the sender's clock at the introduction, whatever time the node believes it is.
"""

import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from aiohttp import web

from orchard.injector.agent import bodies
from orchard.injector.agent.errors import AgentError, Conflict, RequestInvalid
from orchard.injector.agent.protocol import INTRODUCTION, REASON_HEADER
from orchard.injector.agent.signing import (
    KEY_SIZE,
    LINE,
    SEAL_HEADER,
    STREAM,
    Admitted,
    SealBroken,
    SealRefused,
    SealVerifier,
)

INTRODUCTION_LIMIT = 4096
_ADMITTED = web.RequestKey("admitted", Admitted)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class NotSealed(AgentError):
    """The request is not from a holder of the key."""

    status = 403
    reason = "not_sealed"


class NotIntroduced(AgentError):
    status = 403
    reason = "not_introduced"


class StaleRequest(AgentError):
    """A request from a holder of the key that was sent before, or at another time."""

    status = 403
    reason = "seal_refused"


class SealMiddleware:
    def __init__(self) -> None:
        self._guard: SealVerifier | None = None

    def install(self, application: web.Application) -> None:
        """Add the routes, and seals on all responses, to an application made with the middleware."""
        application.router.add_get("/introduction", _introduced)
        application.router.add_post("/introduction", _introduced)
        application.on_response_prepare.append(_seal_answer)

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if SEAL_HEADER not in request.headers and (request.method, request.path) == ("GET", "/health"):
            return web.json_response({"status": "healthy", "introduced": self._guard is not None})
        introducing = (request.method, request.path) == ("POST", INTRODUCTION)
        admitted = await self._first(request) if introducing and self._guard is None else None
        if admitted is None:
            admitted = self._admit(request, introducing)
        request[_ADMITTED] = admitted
        request[bodies.OUTGOING] = lambda: SealedStream(admitted)
        try:
            admitted.insist()
            if admitted.streamed:
                request[bodies.INCOMING] = admitted.opened(request.content)
            else:
                admitted.check_body(await request.read())
                request[bodies.INCOMING] = _whole(await request.read())
            return await handler(request)
        except SealRefused as error:
            raise StaleRequest(str(error)) from error
        except SealBroken as error:
            raise NotSealed(str(error)) from error

    def _admit(self, request: web.Request, introducing: bool) -> Admitted:
        if self._guard is None:
            raise NotIntroduced("nobody has introduced itself to this agent")
        try:
            return self._guard.admit(request.method, request.raw_path, request.headers)
        except SealBroken as error:
            if introducing:
                raise Conflict("this agent has another key", reason="introduced") from error
            raise NotSealed(str(error)) from error

    async def _first(self, request: web.Request) -> Admitted | None:
        """Take the key; None when another sender's came first."""
        if not 0 < (request.content_length or 0) <= INTRODUCTION_LIMIT:
            raise RequestInvalid(f"an introduction has up to {INTRODUCTION_LIMIT} bytes")
        key, sent = _introduction(await request.read())
        received = time.clock_gettime(time.CLOCK_BOOTTIME)
        guard = SealVerifier(key, lambda: sent + time.clock_gettime(time.CLOCK_BOOTTIME) - received)
        if self._guard is not None:
            return None
        try:
            admitted = guard.admit(request.method, request.raw_path, request.headers)
        except SealBroken as error:
            raise NotSealed(str(error)) from error
        self._guard = guard
        return admitted


class SealedStream(web.StreamResponse):
    def __init__(self, admitted: Admitted) -> None:
        super().__init__()
        self._admitted = admitted
        self._ended = False

    async def write(self, data: Any) -> None:
        for frame in self._admitted.frames(bytes(data)) if data else ():
            await super().write(frame)

    async def write_eof(self, data: bytes = b"") -> None:
        if not self._ended:
            self._ended = True
            await self.write(data)
            for frame in self._admitted.frames(b""):
                await super().write(frame)
        await super().write_eof()


def _introduction(body: bytes) -> tuple[bytes, float]:
    """Parse the key and the sender's time. Raises RequestInvalid."""
    try:
        document = json.loads(body)
        key, sent = bytes.fromhex(document["key"]), float(document["time"])
    except (ValueError, KeyError, TypeError) as error:
        raise RequestInvalid("an introduction has `key`, in hexadecimal digits, and `time`") from error
    if len(key) != KEY_SIZE:
        raise RequestInvalid(f"a key has {KEY_SIZE} bytes")
    return key, sent


async def _whole(body: bytes) -> AsyncIterator[bytes]:
    yield body


async def _introduced(_request: web.Request) -> web.Response:
    return web.json_response({"status": "introduced"})


async def _seal_answer(request: web.Request, response: web.StreamResponse) -> None:
    """Seal the response to a holder of the key; others get their refusal unsealed."""
    admitted = request.get(_ADMITTED)
    if admitted is None:
        return
    content: bytes | str
    if isinstance(response, web.WebSocketResponse):
        content = LINE
    elif isinstance(response, SealedStream):
        content = STREAM
    else:
        body = response.body if isinstance(response, web.Response) else None
        assert isinstance(body, bytes | None), "every other answer of this agent is whole, and bytes"
        content = body or b""
    reason = response.headers.get(REASON_HEADER, "")
    response.headers.update(admitted.answer(response.status, content, reason))

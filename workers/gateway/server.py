"""The gateway's HTTP server on loopback, with a secret path for each attempt."""

import asyncio
import hashlib
import secrets
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import msgspec
from aiohttp import web
from aiohttp.http_exceptions import BadHttpMessage
from aiohttp.web_protocol import RequestPayloadError

from orchard.streams.tasks import end
from orchard.workers.gateway import gemini
from orchard.workers.gateway.chat import CHAT
from orchard.workers.gateway.counting import estimated_tokens
from orchard.workers.gateway.gemini import GEMINI
from orchard.workers.gateway.recording import Recording
from orchard.workers.gateway.routes import PATH, Route, is_gemini, route_of
from orchard.workers.gateway.wire_types import (
    BadProgramRequest,
    CallError,
    CallRejected,
    ProgramReply,
    ProgramRequest,
    Wire,
)

LARGEST_BODY = 32 * 1024 * 1024
MOST_MESSAGES = 20_000
CALLS_AT_ONCE = 16
"""Maximum concurrent calls of one program, whose bodies are in memory; other calls wait."""
QUIET_SECONDS = 15.0
_LARGE = 2**20
"""Bodies with more bytes are parsed in a thread, so that other programs need not wait."""
_STREAM = {"Content-Type": "text/event-stream", "Cache-Control": "no-cache"}
_OBJECT = {"Content-Type": "application/json"}
_FINAL = {"x-should-retry": "false"}
"""Tells clients of both vendors not to retry: the gateway has already retried."""


@dataclass(frozen=True)
class GatewayAccess:
    """The address of one attempt's program, while it is open."""

    path: str
    """The path `/r/ROLLOUT.ATTEMPT.SECRET`; whoever knows it may call."""
    port: int
    """Port on this machine's loopback; a sandbox reaches it by a reverse tunnel."""
    recording: Recording
    calls: "set[asyncio.Task[Any]]" = field(default_factory=set)
    slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(CALLS_AT_ONCE))

    @property
    def url(self) -> str:
        """The URL on this machine. Clients append `/v1`, or nothing."""
        return f"http://127.0.0.1:{self.port}{self.path}"


class Gateway:
    """One gateway per worker. It listens only while an access is open."""

    def __init__(self, quiet_seconds: float = QUIET_SECONDS) -> None:
        self._quiet = quiet_seconds
        self._open: dict[bytes, GatewayAccess] = {}
        """Accesses by the digest of their key."""
        self._salt = secrets.token_hex(16).encode()
        self._runner: web.AppRunner | None = None
        self._users = 0
        self._turn = asyncio.Lock()

    @asynccontextmanager
    async def open(self, name: str, recording: Recording) -> AsyncIterator[GatewayAccess]:
        """Opens an access for the program of attempt `name`. On exit, its calls have ended and nothing more
        is recorded."""
        port = await self._listen()
        key = f"{name}.{secrets.token_hex(16)}"
        digest = self._digest(key)
        access = self._open[digest] = GatewayAccess(f"/r/{key}", port, recording)
        try:
            yield access
        finally:
            del self._open[digest]
            for call in list(access.calls):
                await end(call)
            await self._leave()

    async def _listen(self) -> int:
        async with self._turn:
            if self._runner is None:
                app = web.Application()
                app.router.add_route("*", "/{rest:.*}", self._handle)
                runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0)
                await runner.setup()
                await web.TCPSite(runner, "127.0.0.1", 0, backlog=1024).start()
                self._runner = runner
            self._users += 1
            port: int = self._runner.addresses[0][1]
            return port

    async def _leave(self) -> None:
        async with self._turn:
            self._users -= 1
            if not self._users and self._runner is not None:
                runner, self._runner = self._runner, None
                await runner.cleanup()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        found = PATH.fullmatch(request.path.rstrip("/"))
        access = self._open.get(self._digest(found[1])) if found else None
        if found is None or access is None:
            return _failure(CHAT, CallError.NOT_FOUND)
        call = asyncio.current_task()
        assert call is not None
        access.calls.add(call)
        try:
            return await self._routed(request, access, found[2], found[3])
        except ConnectionError:
            return web.Response()  # for nobody: the program has gone away
        finally:
            access.calls.discard(call)

    def _digest(self, key: str) -> bytes:
        """Returns what accesses are found by: a digest that nobody can compute, so that the time of a search
        says nothing about the key."""
        return hashlib.blake2b(key.encode(errors="replace"), digest_size=16, key=self._salt).digest()

    async def _routed(
        self, request: web.Request, access: GatewayAccess, version: str, address: str
    ) -> web.StreamResponse:
        google = is_gemini(version, request.headers)
        if request.method == "GET" and (address == "models" or address.startswith("models/")):
            name, served = address.partition("/")[2], access.recording.spec.name
            return _json((_gemini_models if google else _models)(name, served))
        route = route_of(address, request.query.get("alt", ""))
        if route is None or request.method != "POST":
            return _failure(route.wire if route else GEMINI if google else CHAT, CallError.NOT_FOUND)
        wire = route.wire
        try:
            async with access.slots:
                ask = await _read(request, route)
                if route.counted is not None:
                    return _json(route.counted(estimated_tokens(ask)))
                return await self._answered(request, access, wire, ask)
        except web.HTTPRequestEntityTooLarge:
            return _failure(wire, CallError.TOO_LARGE)
        except (BadProgramRequest, BadHttpMessage, RequestPayloadError) as error:
            return _failure(wire, CallError.INVALID, str(error))

    async def _answered(
        self, request: web.Request, access: GatewayAccess, wire: Wire, ask: ProgramRequest
    ) -> web.StreamResponse:
        """Answers one call. A stream begins when there is an answer or after a quiet period, so that early
        errors can have a status."""
        if len(ask.messages) > MOST_MESSAGES:
            return _failure(wire, CallError.TOO_LARGE, f"more than {MOST_MESSAGES} messages")
        headers = {name.lower(): value for name, value in request.headers.items()}
        answer = asyncio.create_task(access.recording.answer(ask, headers))
        ask = msgspec.structs.replace(ask, messages=())  # they are in the record
        access.calls.add(answer)
        answer.add_done_callback(access.calls.discard)
        stream: web.StreamResponse | None = None
        try:
            while not (await asyncio.wait({answer}, timeout=self._quiet if ask.stream else None))[0]:
                stream = stream or await _begun(request)
                await stream.write(wire.waiting)
            reply = ProgramReply(
                id=secrets.token_hex(12), created=int(time.time()), completion=answer.result()
            )
            if not ask.stream:
                return await _sent(request, msgspec.json.encode(wire.whole(ask, reply)), _OBJECT)
            events = b"".join(wire.stream(ask, reply))
            if stream is None:
                return await _sent(request, events, _STREAM)
            await stream.write(events)
        except CallRejected as refused:
            if stream is None:
                return _failure(wire, refused.failure, refused.message)
            await stream.write(wire.broken(refused.failure, refused.message))
        finally:
            await end(answer)
            if not answer.cancelled():
                answer.exception()  # told, though nobody may be there to hear it
        await stream.write_eof()
        return stream


async def _body(request: web.Request) -> bytes:
    """Reads a request's body without keeping it in memory with the request. Raises
    HTTPRequestEntityTooLarge."""
    pieces, size = list[bytes](), 0
    async for piece in request.content.iter_any():
        size += len(piece)
        if size > LARGEST_BODY:
            raise web.HTTPRequestEntityTooLarge(max_size=LARGEST_BODY, actual_size=size)
        pieces.append(piece)
    return b"".join(pieces)


async def _read(request: web.Request, route: Route) -> ProgramRequest:
    """Parses a request. Raises BadProgramRequest and HTTPRequestEntityTooLarge."""
    raw = await _body(request)
    return await asyncio.to_thread(route.read, raw) if len(raw) > _LARGE else route.read(raw)


async def _sent(request: web.Request, body: bytes, headers: Mapping[str, str]) -> web.StreamResponse:
    """Sends an answer and returns when nearly all of it was read. An unread one keeps its slot, and ends with
    its access."""
    answer = web.Response(body=body, headers=headers)
    await answer.prepare(request)
    await answer.write_eof()  # the head too, in one write
    return answer


async def _begun(request: web.Request) -> web.StreamResponse:
    stream = web.StreamResponse(headers=_STREAM)
    await stream.prepare(request)
    return stream


def _json(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    return web.Response(
        body=msgspec.json.encode(value), status=status, headers=headers, content_type="application/json"
    )


def _failure(wire: Wire, failure: CallError, message: str = "") -> web.Response:
    status, body = wire.error(failure, message or failure.value)
    return _json(body, status, _FINAL)


def _gemini_models(name: str, served: str) -> dict[str, Any]:
    return gemini.model_response(name) if name else {"models": [gemini.model_response(served)]}


def _models(name: str, served: str) -> dict[str, Any]:
    now = int(time.time())
    return model_response(name, now) if name else models_response(served, now)


def models_response(name: str, created: int) -> dict[str, Any]:
    """Answers `GET models` for clients of OpenAI and of Anthropic, with the one model that is asked, whatever
    name a program uses. `created` is in seconds since 1970."""
    data = [model_response(name, created)]
    return {"object": "list", "data": data, "has_more": False, "first_id": name, "last_id": name}


def model_response(name: str, created: int) -> dict[str, Any]:
    """Answers `GET models/NAME` for any name."""
    return {
        "id": name,
        "object": "model",
        "type": "model",
        "created": created,
        "created_at": datetime.fromtimestamp(created, UTC).isoformat().replace("+00:00", "Z"),
        "owned_by": "orchard",
        "display_name": name,
    }

"""Serves a world's services over HTTP and MCP (streamable HTTP) on loopback while an attempt lasts.

A program in the sandbox reaches them by a reverse tunnel, under a secret path. The audit log, other attempts'
worlds, and records except through tools cannot be reached here.
"""

import asyncio
import hmac
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal, Protocol

import msgspec
from aiohttp import web

from orchard.schemas.decoding import Unreadable, decode_text
from orchard.workers.domains.claw.engine import CallResult, Services

Face = Literal["harness", "mcp", "http"]
LARGEST_BODY = 4 * 1024 * 1024
CALLS_AT_ONCE = 16
MOST_CALLS = 5000
"""Maximum calls in one attempt; more are rejected and not logged."""
MOST_BYTES = 32 * 1024 * 1024
"""Maximum bytes of arguments and answers in one attempt, because its log is held in memory; more are
rejected, too."""
PROTOCOLS = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")

_TOO_MANY = f"more than {MOST_CALLS} calls, or {MOST_BYTES >> 20} MiB of them"
_PARSE, _INVALID, _NO_METHOD, _BAD_PARAMS = -32700, -32600, -32601, -32602


class ServedWorld(Protocol):
    services: Services

    async def served(
        self, tool: str, arguments: str | dict[str, Any], face: Face
    ) -> tuple[CallResult, float]: ...


@asynccontextmanager
async def served(world: ServedWorld) -> AsyncIterator[tuple[int, str]]:
    """Serves the world's services; yields the port on loopback and the path of the MCP server, whose parent
    is the HTTP API. On exit, running calls finish and their entries are published."""
    face = _Faces(world)
    app = web.Application(client_max_size=LARGEST_BODY)
    app.router.add_route("*", "/{secret}/{rest:.*}", face.handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=5.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        port: int = runner.addresses[0][1]
        yield port, f"/{face.secret}/mcp"
    finally:
        await runner.cleanup()
        await face.settle()


class _Faces:
    def __init__(self, world: ServedWorld) -> None:
        self.secret = secrets.token_hex(16)
        self._world = world
        self._places = asyncio.Semaphore(CALLS_AT_ONCE)
        self._calls: set[asyncio.Task[Any]] = set()
        self._count = self._bytes = 0

    async def handle(self, request: web.Request) -> web.Response:
        guess = request.match_info["secret"].encode(errors="replace")
        if not hmac.compare_digest(guess, self.secret.encode()):
            return _json({"error": "not found"}, 404)
        address = request.match_info["rest"].strip("/")
        if address == "mcp":
            return await self._mcp(request)
        if address == "tools" and request.method == "GET":
            return _json({"tools": self._tools()})
        tool = address.removeprefix("tools/")
        if tool != address and request.method == "POST":
            return await self._http(tool, await request.read())
        return _json({"error": "not found: GET tools, POST tools/NAME, or POST mcp"}, 404)

    async def settle(self) -> None:
        """Waits until all calls are published; raises the error that prevented one."""
        await asyncio.gather(*self._calls)

    async def _called(self, tool: str, arguments: Any, face: Face, size: int) -> CallResult | None:
        """Finishes one call of `size` bytes even if the client disconnects, because it has had its effect.
        Returns None beyond the limits."""
        async with self._places:
            self._count += 1
            self._bytes += size
            if self._count > MOST_CALLS or self._bytes > MOST_BYTES:
                return None
            call = asyncio.create_task(self._world.served(tool, arguments, face))
            self._calls.add(call)
            answered, _ = await asyncio.shield(call)
            self._calls.discard(call)
            self._bytes += len(answered.text)
        return answered

    async def _http(self, tool: str, body: bytes) -> web.Response:
        answered = await self._called(tool, body.decode(errors="replace"), "http", len(body))
        if answered is None:
            return _json({"error": _TOO_MANY}, 429)
        entry = answered.entry
        retry = entry.response.get("retry_after") if isinstance(entry.response, dict) else None
        headers = {"Retry-After": str(retry)} if entry.status == 429 and retry else None
        return web.Response(
            text=answered.text, status=entry.status, headers=headers, content_type="application/json"
        )

    async def _mcp(self, request: web.Request) -> web.Response:
        if request.method != "POST":
            return web.Response(status=405, headers={"Allow": "POST"})
        body = await request.read()
        try:
            asked = decode_text(body.decode(errors="replace"))
        except Unreadable as error:
            return _json(_error(None, _PARSE, str(error)), 400)
        several = asked if isinstance(asked, list) else [asked]
        if not 0 < len(several) <= CALLS_AT_ONCE:
            return _json(_error(None, _INVALID, f"a batch has 1 to {CALLS_AT_ONCE} messages"), 400)
        answers = [answer for each in several if (answer := await self._message(each, len(body)))]
        if not answers:
            return web.Response(status=202)
        return _json(answers if isinstance(asked, list) else answers[0])

    async def _message(self, asked: Any, size: int) -> dict[str, Any] | None:
        """Answers one JSON-RPC message; None for a notification or a response."""
        if not isinstance(asked, dict) or asked.get("jsonrpc") != "2.0":
            return _error(None, _INVALID, "no JSON-RPC 2.0 message")
        name, key = asked.get("method"), asked.get("id")
        if key is None or name is None:
            return None
        given = asked.get("params")
        params: dict[str, Any] = given if isinstance(given, dict) else {}
        match name:
            case "initialize":
                wanted = params.get("protocolVersion")
                return _result(key, self._hello(wanted if wanted in PROTOCOLS else PROTOCOLS[0]))
            case "ping":
                return _result(key, {})
            case "tools/list":
                return _result(key, {"tools": self._tools()})
            case "tools/call":
                return await self._tool_call(key, params, size)
            case _:
                return _error(key, _NO_METHOD, f"there is no method {str(name)[:60]!r}")

    def _hello(self, version: str) -> dict[str, Any]:
        return {
            "protocolVersion": version,
            "capabilities": {"tools": {"listChanged": False}},
            "serverInfo": {"name": "orchard-claw", "version": "1"},
        }

    async def _tool_call(self, key: Any, params: dict[str, Any], size: int) -> dict[str, Any]:
        tool, arguments = params.get("name"), params.get("arguments", {})
        if not isinstance(tool, str):
            return _error(key, _BAD_PARAMS, "params.name must be the name of a tool")
        answered = await self._called(tool, {} if arguments is None else arguments, "mcp", size)
        if answered is None:
            return _error(key, _INVALID, _TOO_MANY)
        content = [{"type": "text", "text": answered.text}]
        return _result(key, {"content": content, "isError": answered.entry.status >= 400})

    def _tools(self) -> list[dict[str, Any]]:
        offers = self._world.services.offers.items()
        return [
            {"name": name, "description": offer.about, "inputSchema": offer.operation.schema}
            for name, offer in offers
        ]


def _result(key: Any, result: dict[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": key, "result": result}


def _error(key: Any, code: int, message: str) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": key, "error": {"code": code, "message": message}}


def _json(value: Any, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), status=status, content_type="application/json")

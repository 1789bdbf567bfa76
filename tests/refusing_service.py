"""A proxy to a sandbox service that refuses creations as a test wants."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec
from aiohttp import web

from orchard.injector.agent.protocol import KEY_HEADER, REASON_HEADER

Refusal = tuple[int, str]
"""HTTP status, and the word for programs."""


@asynccontextmanager
async def refusing(
    url: str, refusal: Callable[[dict[str, Any]], Refusal | None]
) -> AsyncIterator[tuple[str, list[str]]]:
    """Its URL, and the idempotency keys of all creations; `refusal` is asked with the body of each."""
    keys: list[str] = []
    async with aiohttp.ClientSession() as session:

        async def forward(request: web.Request) -> web.Response:
            body, there = await request.read(), url + request.path_qs
            if (request.method, request.path) == ("POST", "/sandboxes"):
                keys.append(request.headers[KEY_HEADER])
                if (refused := refusal(msgspec.json.decode(body))) is not None:
                    status, reason = refused
                    detail = {"detail": f"because of {reason}"}
                    return web.json_response(detail, status=status, headers={REASON_HEADER: reason})
            async with session.request(request.method, there, data=body, headers=request.headers) as reply:
                said = {
                    name: reply.headers[name]
                    for name in ("Content-Type", REASON_HEADER)
                    if name in reply.headers
                }
                return web.Response(status=reply.status, body=await reply.read(), headers=said)

        app = web.Application()
        app.router.add_route("*", "/{path:.*}", forward)
        runner = web.AppRunner(app, shutdown_timeout=1.0)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}", keys
        await runner.cleanup()

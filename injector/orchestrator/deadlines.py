"""Bounds the time for a request to arrive: a stalled or trickling one would hold its connection for ever."""

import asyncio
from collections.abc import AsyncIterator

from aiohttp import hdrs, web

from orchard.injector.unix_http import Sized

HEADER_SECONDS = 60.0
"""Seconds for a connection to send the headers of its next request; then it is closed, even if idle."""
GRACE_SECONDS = 30.0
SMALL = 256 * 1024
"""Largest body in bytes that is forwarded whole."""
SLOWEST = 16 * 1024
"""Lowest average rate of a body in bytes a second, after the grace period."""


def runner(app: web.Application, header_seconds: float = HEADER_SECONDS) -> web.AppRunner:
    return web.AppRunner(
        app,
        access_log=None,
        handler_cancellation=True,
        shutdown_timeout=1.0,
        keepalive_timeout=header_seconds,
        lingering_time=min(header_seconds, 10.0),  # for the rest of a body that was refused
    )


GRACE = web.AppKey("body_grace", float)
"""Application key that replaces GRACE_SECONDS."""


async def arriving(request: web.Request) -> AsyncIterator[bytes]:
    """Yield the body in pieces; delays of this process do not count as slowness.

    Raises HTTPRequestTimeout when it comes too slowly, and HTTPBadRequest for one that does not match its
    Content-Encoding or Transfer-Encoding.
    """
    loop = asyncio.get_running_loop()
    received, waited = 0, 0.0
    grace = request.app[GRACE]
    while True:
        begun = loop.time()
        try:
            async with asyncio.timeout(grace + received / SLOWEST - waited):
                piece, ended_chunk = await request.content.readchunk()  # as it lies there, not joined
        except web.RequestPayloadError as error:
            raise web.HTTPBadRequest(
                reason="the body is not encoded as its headers say", headers={"Connection": "close"}
            ) from error
        except TimeoutError:
            raise web.HTTPRequestTimeout(
                reason="the body comes too slowly", headers={"Connection": "close"}
            ) from None
        waited += loop.time() - begun
        if not piece:
            if ended_chunk and not request.content.at_eof():  # one object is the body of all that have none
                continue
            return
        received += len(piece)
        yield piece


async def arriving_content(request: web.Request) -> bytes | Sized | AsyncIterator[bytes]:
    """Return a body of any length in the form to forward: a small one whole, else in pieces."""
    size = None if hdrs.CONTENT_ENCODING in request.headers else request.content_length
    if size is None:
        return arriving(request)
    return await body(request, size) if size <= SMALL else Sized(arriving(request), size)


async def body(request: web.Request, limit: int) -> bytes:
    """Read the whole body. Raises HTTPRequestEntityTooLarge beyond `limit` bytes."""
    whole = bytearray()
    async for piece in arriving(request):
        whole += piece
        if len(whole) > limit:
            raise web.HTTPRequestEntityTooLarge(limit, len(whole))
    return bytes(whole)

"""Bodies that come or go in pieces: as they are, unless a middleware has put seals around them."""

from collections.abc import AsyncIterator, Callable

from aiohttp import web

CHUNK = 1 << 20
INCOMING = "incoming pieces"
OUTGOING = "outgoing stream"
"""Under these names a middleware leaves on the request what `pieces` and `stream` then give."""


def pieces(request: web.Request) -> AsyncIterator[bytes]:
    """The body of the request as it comes."""
    incoming: AsyncIterator[bytes] | None = request.get(INCOMING)
    return aiter(request.content.iter_chunked(CHUNK)) if incoming is None else incoming


def stream(request: web.Request, content_type: str) -> web.StreamResponse:
    """An answer to be prepared, written to and ended."""
    make: Callable[[], web.StreamResponse] = request.get(OUTGOING, web.StreamResponse)
    reply = make()
    reply.content_type = content_type
    return reply

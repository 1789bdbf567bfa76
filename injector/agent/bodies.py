"""Streamed request and response bodies; a middleware that encrypts bodies may replace them."""

import logging
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import parse_qsl

from aiohttp import web

CHUNK = 1 << 18
log = logging.getLogger(__name__)
INCOMING = web.RequestKey("incoming pieces", AsyncIterator[bytes])
OUTGOING: web.RequestKey[Callable[[], web.StreamResponse]] = web.RequestKey("outgoing stream")
"""A middleware leaves its replacements of `pieces` and `stream` on the request under these keys."""


def pieces(request: web.Request) -> AsyncIterator[bytes]:
    incoming = request.get(INCOMING)
    return aiter(request.content.iter_chunked(CHUNK)) if incoming is None else incoming


def stream(request: web.Request, content_type: str) -> web.StreamResponse:
    make = request.get(OUTGOING)
    reply = web.StreamResponse() if make is None else make()
    reply.content_type = content_type
    return reply


async def streamed(
    request: web.Request, content_type: str, pieces: AsyncIterator[bytes]
) -> web.StreamResponse:
    """Stream `pieces` as the response; an error on the way aborts the connection, so that nobody takes it for
    whole."""
    reply = stream(request, content_type)
    await reply.prepare(request)
    with broken_off(request):
        async for piece in pieces:
            await reply.write(piece)
        await reply.write_eof()
    return reply


@contextmanager
def broken_off(request: web.Request) -> Iterator[None]:
    """Abort the connection on an OSError after the response has begun."""
    try:
        yield
    except OSError as error:
        log.warning("%s %s is broken off: %s", request.method, request.path, error)
        if request.transport is not None:
            request.transport.abort()


def query(request: web.Request) -> Mapping[str, str]:
    pairs = parse_qsl(request.rel_url.raw_query_string, keep_blank_values=True, errors="surrogateescape")
    return dict(reversed(pairs))

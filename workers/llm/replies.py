"""Bodies of replies, with an end: what an endpoint sends is bounded before it is in memory, and unpacked."""

import asyncio
import re
import zlib
from collections.abc import AsyncIterator
from contextlib import suppress

import aiohttp

from orchard.workers.llm.unfinished import LOOKED_AT

ENCODINGS = "gzip, deflate"
"""What `body` can unpack, for the header Accept-Encoding."""
_PIECE = 256 * 1024
"""Bytes that are unpacked at once."""
_WINDOWS = {"gzip": zlib.MAX_WBITS | 16, "x-gzip": zlib.MAX_WBITS | 16, "deflate": zlib.MAX_WBITS}
_PLAIN = ("", "identity")
_DONE = re.compile(rb"(?:^|[\r\n])data: ?\[DONE\] *(?:[\r\n]|$)")
"""How a stream ends; some servers leave the connection open after it."""
_LINE = 32
"""Bytes of its end that may have come with the piece before."""
_DONE_SECONDS = 1.0
"""For what may follow that, as an error."""
_ERROR_SECONDS = 5.0
"""For the body of an error."""


class ReplyTooLarge(Exception):
    """A body that went on after the limit."""

    def __init__(self, begins: bytes) -> None:
        super().__init__("the body of the reply has no end in sight")
        self.begins = begins
        """How it begins."""


class WrongEncoding(Exception):
    """A body that is not packed as its header says, or in an encoding that was not asked for."""


async def body(reply: aiohttp.ClientResponse, limit: int) -> bytes:
    """The body of a reply of a session that unpacks nothing itself. Raises ReplyTooLarge for one of more than
    `limit` bytes, unpacked; WrongEncoding; and aiohttp's errors for one that breaks off."""
    pieces, size, tail = list[bytes](), 0, b""
    try:
        async with asyncio.timeout(None) as clock:
            async for piece in _unpacked(reply):
                pieces.append(piece)
                size += len(piece)
                if size > limit:
                    raise ReplyTooLarge(b"".join(pieces)[:LOOKED_AT])
                if clock.when() is None and _DONE.search(tail + piece):
                    clock.reschedule(asyncio.get_running_loop().time() + _DONE_SECONDS)
                tail = (tail + piece)[-_LINE:]
    except TimeoutError:
        if not clock.expired():
            raise
    return b"".join(pieces)


async def error_text(reply: aiohttp.ClientResponse, limit: int) -> bytes:
    """The body of a reply whose status says an error, as much of it as can be read: the status and the
    headers hold without it."""
    pieces, size = list[bytes](), 0
    with suppress(WrongEncoding, aiohttp.ClientError, OSError):  # a TimeoutError is one of the last
        async with asyncio.timeout(_ERROR_SECONDS):
            async for piece in _unpacked(reply):
                pieces.append(piece)
                size += len(piece)
                if size > limit:
                    break
    return b"".join(pieces)


async def _unpacked(reply: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    encoding = reply.headers.get("Content-Encoding", "").strip().lower()
    chunks = reply.content.iter_any()
    if encoding in _PLAIN:
        async for chunk in chunks:
            yield chunk
        return
    if encoding not in _WINDOWS:
        raise WrongEncoding(f"the reply is encoded as {encoding[:40]!r}, which nobody asked for")
    unpacker = zlib.decompressobj(_WINDOWS[encoding])
    try:
        async for chunk in chunks:
            left = chunk
            while left:
                if unpacker.eof:  # a body may be packed in several parts
                    unpacker = zlib.decompressobj(_WINDOWS[encoding])
                yield unpacker.decompress(left, _PIECE)
                left = unpacker.unused_data if unpacker.eof else unpacker.unconsumed_tail
    except zlib.error as error:
        raise WrongEncoding(f"the reply is not {encoding}: {error}") from error
    yield unpacker.flush()

"""Bodies of replies, with an end: what an endpoint sends is bounded before it is in memory, and unpacked."""

import zlib
from collections.abc import AsyncIterator

import aiohttp

from orchard.workers.llm.unfinished import LOOKED_AT

ENCODINGS = "gzip, deflate"
"""What `body` can unpack, for the header Accept-Encoding."""
_PIECE = 256 * 1024
"""Bytes that are unpacked at once."""
_WINDOWS = {"gzip": zlib.MAX_WBITS | 16, "deflate": zlib.MAX_WBITS}


class ReplyTooLarge(Exception):
    """A body that went on after the limit."""

    def __init__(self, status: int, begins: bytes) -> None:
        super().__init__(f"the body of the reply (status {status}) has no end in sight")
        self.status = status
        self.begins = begins
        """How it begins."""


class WrongEncoding(Exception):
    """A body that is not packed as its header says, or in an encoding that was not asked for."""


async def body(reply: aiohttp.ClientResponse, limit: int) -> bytes:
    """The body of a reply of a session that unpacks nothing itself. Raises ReplyTooLarge for one of more than
    `limit` bytes, unpacked; WrongEncoding; and aiohttp's errors for one that breaks off."""
    encoding = reply.headers.get("Content-Encoding", "identity").strip().lower()
    pieces, size = list[bytes](), 0
    async for piece in _unpacked(reply.content.iter_any(), encoding):
        pieces.append(piece)
        size += len(piece)
        if size > limit:
            raise ReplyTooLarge(reply.status, b"".join(pieces)[:LOOKED_AT])
    return b"".join(pieces)


async def _unpacked(chunks: AsyncIterator[bytes], encoding: str) -> AsyncIterator[bytes]:
    if encoding == "identity":
        async for chunk in chunks:
            yield chunk
        return
    if encoding not in _WINDOWS:
        raise WrongEncoding(f"the reply is encoded as {encoding[:40]!r}, which nobody asked for")
    unpacker = zlib.decompressobj(_WINDOWS[encoding])
    try:
        async for chunk in chunks:
            yield unpacker.decompress(chunk, _PIECE)
            while unpacker.unconsumed_tail:
                yield unpacker.decompress(unpacker.unconsumed_tail, _PIECE)
    except zlib.error as error:
        raise WrongEncoding(f"the reply is not {encoding}: {error}") from error
    yield unpacker.flush()

"""Bodies of replies, with an end: what an endpoint sends is bounded before it is in memory, and unpacked."""

import zlib
from collections.abc import AsyncIterator, Awaitable, Callable

import httpx

_PIECE = 256 * 1024
"""Bytes that are unpacked at once."""
_WINDOWS = {"gzip": zlib.MAX_WBITS | 16, "deflate": zlib.MAX_WBITS}


class ReplyTooLarge(Exception):
    """A body that went on after the limit."""

    def __init__(self, status: int, begins: bytes) -> None:
        super().__init__(f"the body of the reply (status {status}) has no end in sight")
        self.status = status
        self.begins = begins
        """Its first byte that is no blank."""


def bounded(limit: int) -> Callable[[httpx.Response], Awaitable[None]]:
    """A response hook of httpx: reading a body of more than `limit` bytes, unpacked, raises ReplyTooLarge,
    and one in an encoding that was not asked for httpx.DecodingError."""

    async def hook(response: httpx.Response) -> None:
        encoding = response.headers.pop("content-encoding", "identity").strip().lower()
        assert isinstance(response.stream, httpx.AsyncByteStream)
        response.stream = _Bounded(response.stream, encoding, response.status_code, limit)

    return hook


class _Bounded(httpx.AsyncByteStream):
    def __init__(self, inner: httpx.AsyncByteStream, encoding: str, status: int, limit: int) -> None:
        self._inner = inner
        self._encoding = encoding
        self._status = status
        self._limit = limit

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size, begins = 0, b""
        async for piece in self._unpacked():
            size += len(piece)
            begins = begins or piece.lstrip()[:1]
            if size > self._limit:
                raise ReplyTooLarge(self._status, begins)
            yield piece

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def _unpacked(self) -> AsyncIterator[bytes]:
        if self._encoding == "identity":
            async for chunk in self._inner:
                yield chunk
            return
        if self._encoding not in _WINDOWS:
            raise httpx.DecodingError(
                f"the reply is encoded as {self._encoding[:40]!r}, which nobody asked for"
            )
        unpacker = zlib.decompressobj(_WINDOWS[self._encoding])
        try:
            async for chunk in self._inner:
                yield unpacker.decompress(chunk, _PIECE)
                while unpacker.unconsumed_tail:
                    yield unpacker.decompress(unpacker.unconsumed_tail, _PIECE)
        except zlib.error as error:
            raise httpx.DecodingError(f"the reply is not {self._encoding}: {error}") from error
        yield unpacker.flush()

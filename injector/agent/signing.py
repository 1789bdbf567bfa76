"""Seals: MACs by which each end of a connection to an agent proves that it holds the sandbox's key.

A request carries its time, a nonce, a description of its body and a MAC over these, the method and the
target. A response carries a MAC over the nonce of its request, its status and the description of its body. A
body is either whole, and then covered by its digest, or a stream of frames:

    length (4 bytes), MAC (32 bytes), data; the last frame has no data

The MAC of a frame covers its number, so that frames cannot be left out, moved, or cut off unnoticed. Nothing
is encrypted: a seal proves who sent it and that nobody changed it. Only the standard library is imported.
"""

import asyncio
import hashlib
import heapq
import hmac
import secrets
import struct
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterator, Mapping
from typing import Protocol

from orchard.injector.agent.protocol import KEY_HEADER, REASON_HEADER

TIME_HEADER = "X-Seal-Time"
NONCE_HEADER = "X-Seal-Nonce"
BODY_HEADER = "X-Seal-Body"
SEAL_HEADER = "X-Seal"

KEY_SIZE = 32
WINDOW = 60.0
"""Seconds that the clocks of both ends may differ, transmission included."""
REMEMBERED = 8192
"""Nonces kept to refuse a second use; when more come within the window, the oldest are dropped."""
FRAME = 1 << 20
"""Largest number of data bytes in one frame."""
STREAM = "stream"
LINE = "line"
"""Descriptions of a body that is not whole: frames, or the messages of a WebSocket, which carry no seals."""

_MAC_SIZE = 32
_FRAME_HEAD = struct.Struct(f"!I{_MAC_SIZE}s")


class SealBroken(Exception):
    """A message was not made by a holder of the key, or was changed or cut off on the way."""


class SealRefused(Exception):
    """A message was made by a holder of the key, but sent before, or by a clock that differs too much."""


class FrameReader(Protocol):
    """A reader of frames, such as `aiohttp.StreamReader`."""

    async def readexactly(self, n: int, /) -> bytes:
        """Raises asyncio.IncompleteReadError at the end."""

    async def read(self, n: int = -1, /) -> bytes:
        """Return empty bytes at the end."""


def sandbox_key(master: bytes, sandbox_id: str, pod_uid: str) -> bytes:
    """Derive the key of one sandbox in one Pod, the same for every holder of `master` (HMAC-SHA256)."""
    return hmac.digest(master, _joined(b"orchard sandbox", sandbox_id.encode(), pod_uid.encode()), "sha256")


class Seal:
    """The caller's end: seals requests, checks responses."""

    def __init__(self, key: bytes, clock: Callable[[], float] = time.time) -> None:
        self.key = key
        self._clock = clock

    def now(self) -> float:
        """Epoch seconds by the clock that dates requests."""
        return self._clock()

    def request(
        self, method: str, target: str, *, body: bytes | None = b"", idempotency_key: str | None = None
    ) -> "SealedRequest":
        """Seal a request to `target`, path and query as they are sent; `body` None means a stream."""
        content = STREAM if body is None else _digest(body)
        sent, nonce = f"{self._clock():.3f}", secrets.token_hex(16)
        mac = _request_mac(self.key, method, target, sent, nonce, content, idempotency_key or "")
        headers = {TIME_HEADER: sent, NONCE_HEADER: nonce, BODY_HEADER: content, SEAL_HEADER: mac}
        return SealedRequest(self.key, nonce, headers)


class SealedRequest:
    def __init__(self, key: bytes, nonce: str, headers: dict[str, str]) -> None:
        self._key = key
        self._nonce = nonce
        self.headers = headers

    def frames(self, pieces: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
        return _framed(_stream_key(self._key, b"request", self._nonce), pieces)

    def check(self, status: int, headers: Mapping[str, str]) -> str:
        """Check the head of the response. Returns its body's digest, STREAM or LINE; raises SealBroken."""
        content = headers.get(BODY_HEADER, "")
        mac = _answer_mac(self._key, self._nonce, status, content, headers.get(REASON_HEADER, ""))
        if not _same(mac, headers.get(SEAL_HEADER, "")):
            raise SealBroken("the answer was not made by the agent that was given the key")
        return content

    def check_whole(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        check_body(self.check(status, headers), body)

    def opened(self, source: FrameReader) -> AsyncIterator[bytes]:
        """Yield the data of a streamed response. Raises SealBroken if it was changed or cut off."""
        return _opened(_stream_key(self._key, b"answer", self._nonce), source)


class SealVerifier:
    """The agent's end: checks requests, each once, and seals their responses."""

    def __init__(self, key: bytes, clock: Callable[[], float] = time.time) -> None:
        """`clock` returns epoch seconds by the callers' clocks, within WINDOW."""
        self.key = key
        self._clock = clock
        self._seen = _Seen()

    def admit(self, method: str, target: str, headers: Mapping[str, str]) -> "Admitted":
        """Check the head of a request. Raises SealBroken; `Admitted.insist` raises SealRefused."""
        sent, nonce = headers.get(TIME_HEADER, ""), headers.get(NONCE_HEADER, "")
        content = headers.get(BODY_HEADER, "")
        mac = _request_mac(self.key, method, target, sent, nonce, content, headers.get(KEY_HEADER, ""))
        if not _same(mac, headers.get(SEAL_HEADER, "")):
            raise SealBroken("the request has no seal by the key of this sandbox")
        refusal = self._seen.refusal(float(sent), bytes.fromhex(nonce), self._clock())
        return Admitted(self.key, nonce, content, refusal)


class Admitted:
    def __init__(self, key: bytes, nonce: str, content: str, refusal: str | None) -> None:
        self._key = key
        self._nonce = nonce
        self._content = content
        self._refusal = refusal
        self._answer_key = _stream_key(key, b"answer", nonce)
        self._frames_sent = 0

    @property
    def streamed(self) -> bool:
        return self._content == STREAM

    def insist(self) -> None:
        """Raise SealRefused for a request that was sent before or at another time."""
        if self._refusal is not None:
            raise SealRefused(self._refusal)

    def check_body(self, body: bytes) -> None:
        check_body(self._content, body)

    def opened(self, source: FrameReader) -> AsyncIterator[bytes]:
        return _opened(_stream_key(self._key, b"request", self._nonce), source)

    def answer(self, status: int, content: bytes | str, reason: str = "") -> dict[str, str]:
        """Return headers that seal a response: `content` is its whole body, or STREAM or LINE."""
        described = content if isinstance(content, str) else _digest(content)
        mac = _answer_mac(self._key, self._nonce, status, described, reason)
        return {BODY_HEADER: described, SEAL_HEADER: mac}

    def frames(self, data: bytes) -> Iterator[bytes]:
        """Yield the next frames of a streamed response; empty `data` ends it."""
        for start in range(0, max(len(data), 1), FRAME):
            yield _frame(self._answer_key, self._frames_sent, data[start : start + FRAME])
            self._frames_sent += 1


def check_body(digest: str, body: bytes) -> None:
    if not _same(digest, _digest(body)):
        raise SealBroken("the body was changed on the way")


class _Seen:
    """Nonces of the requests within the window, at most REMEMBERED."""

    def __init__(self) -> None:
        self._by_time: list[tuple[float, bytes]] = []
        self._nonces: set[bytes] = set()
        self._forgotten = float("-inf")
        """Time of the latest request whose nonce was dropped."""

    def refusal(self, sent: float, nonce: bytes, now: float) -> str | None:
        """Say why the request must be refused; None, and its nonce is kept, when it may be served."""
        if abs(sent - now) > WINDOW:
            return f"the request is {now - sent:.1f} s old by this agent's clock: set the orchestrator's"
        if nonce in self._nonces:
            return "the request was sent before"
        if sent <= self._forgotten:
            return "the request is too late: newer ones than the agent can remember came before it"
        heapq.heappush(self._by_time, (sent, nonce))
        self._nonces.add(nonce)
        while self._by_time[0][0] < now - WINDOW or len(self._by_time) > REMEMBERED:
            self._forgotten, forgotten = heapq.heappop(self._by_time)
            self._nonces.discard(forgotten)
        return None


def _joined(*parts: bytes) -> bytes:
    """Join parts unambiguously: no other parts give the same bytes."""
    return b"".join(len(part).to_bytes(8, "big") + part for part in parts)


def _mac(key: bytes, *parts: bytes) -> hashlib.blake2b:
    return hashlib.blake2b(_joined(*parts), digest_size=_MAC_SIZE, key=key)


def _request_mac(key: bytes, *parts: str) -> str:
    return _mac(key, b"request", *(part.encode("utf-8", "surrogateescape") for part in parts)).hexdigest()


def _answer_mac(key: bytes, nonce: str, status: int, content: str, reason: str) -> str:
    parts = (nonce, str(status), content, reason)
    return _mac(key, b"answer", *(part.encode("utf-8", "surrogateescape") for part in parts)).hexdigest()


def _same(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode("utf-8", "replace"), other.encode("utf-8", "replace"))


def _digest(body: bytes) -> str:
    return hashlib.blake2b(body, digest_size=_MAC_SIZE).hexdigest()


def _stream_key(key: bytes, direction: bytes, nonce: str) -> bytes:
    return _mac(key, b"stream", direction, nonce.encode()).digest()


def _frame(key: bytes, number: int, data: bytes) -> bytes:
    mac = hashlib.blake2b(number.to_bytes(8, "big"), digest_size=_MAC_SIZE, key=key)
    mac.update(data)
    return _FRAME_HEAD.pack(len(data), mac.digest()) + data


async def _framed(key: bytes, pieces: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    number = 0
    async for piece in pieces:
        for start in range(0, len(piece), FRAME):
            yield _frame(key, number, piece[start : start + FRAME])
            number += 1
    yield _frame(key, number, b"")


async def _opened(key: bytes, source: FrameReader) -> AsyncIterator[bytes]:
    number, data = 0, b"begin"
    while data:
        try:
            size, mac = _FRAME_HEAD.unpack(await source.readexactly(_FRAME_HEAD.size))
            if size > FRAME:
                raise SealBroken("the stream was changed on the way")
            data = await source.readexactly(size) if size else b""
        except asyncio.IncompleteReadError as error:
            raise SealBroken("the stream was cut off") from error
        expected = hashlib.blake2b(number.to_bytes(8, "big"), digest_size=_MAC_SIZE, key=key)
        expected.update(data)
        if not hmac.compare_digest(mac, expected.digest()):
            raise SealBroken("the stream was changed on the way")
        number += 1
        if data:
            yield data
    if await source.read(1):
        raise SealBroken("something follows the end of the stream")

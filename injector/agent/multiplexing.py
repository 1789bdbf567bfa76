"""Multiplexes byte streams over one line of messages, each stream with its own flow control.

A message is one frame:

    kind (1 byte), stream (4 bytes), payload

    OPEN    the opener begins the next stream: 1, 2, 3, ... There is no response
    DATA    bytes, never more than the other end has given credit for
    CREDIT  permits so many more bytes (4 bytes)
    END     no more bytes in this direction; the other one continues
    RESET   the stream is over, at once and in both directions

Each end keeps at most WINDOW unread bytes of a stream, so one that nobody reads blocks no other and costs no
more than that. One end opens streams, the other is told of them. A violation is a ProtocolError, and the line
with all its streams is given up.
"""

import asyncio
import struct
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

import aiohttp
from aiohttp import WSMsgType, web

HEADER = struct.Struct("!BI")
CREDIT_SIZE = struct.Struct("!I")
OPEN, DATA, CREDIT, END, RESET = range(5)

WINDOW = 256 * 1024
PIECE = 64 * 1024
STREAMS = 1024
CONGESTED = 512 * 1024
"""Bytes waiting to be sent over the line, from which on no stream should add to them."""
MOST_WAITING = 16 * STREAMS
"""Frames waiting for a peer that does not read; an honest one never has so many."""
_HIGHEST = 2**32 - 1
_OVERHEAD = 64
"""Bytes of memory that a waiting frame costs besides its own."""

Line = web.WebSocketResponse | aiohttp.ClientWebSocketResponse


class ProtocolError(Exception):
    pass


class Receiver(Protocol):
    def received(self, data: memoryview) -> None:
        """Take bytes; call `Stream.consumed` once they are out of memory."""

    def ended(self) -> None:
        """There will be no more bytes."""

    def lost(self) -> None:
        """The other end or the line ended the stream. It is the last call."""

    def room(self) -> None:
        """`Stream.wanted` may have become true."""


class Stream:
    def __init__(self, line: "Multiplexer", number: int) -> None:
        self._line = line
        self.number = number
        self.receiver: Receiver | None = None
        """Set by whoever opened it, or was told of it, before anything else happens."""
        self.moved = 0
        self.sent_last: bool | None = None
        """Whether its last bytes went to the other end; None before the first."""
        self.over = False
        self._credit = WINDOW
        self._unread = 0
        self._consumed = 0
        self._sent_end = self._got_end = False

    @property
    def allowed(self) -> int:
        """Bytes that the other end accepts now, at most PIECE."""
        return 0 if self._sent_end or self.over else min(self._credit, PIECE)

    @property
    def wanted(self) -> bool:
        """Whether to send now; else wait for `Receiver.room`."""
        return self.allowed > 0 and not self._line.congested

    def send(self, data: bytes | memoryview) -> None:
        self._credit -= len(data)
        self.moved += len(data)
        self.sent_last = True
        self._line.put(HEADER.pack(DATA, self.number) + data)

    def end(self) -> None:
        if not (self._sent_end or self.over):
            self._sent_end = True
            self._line.put(HEADER.pack(END, self.number))
            self._finish()

    def reset(self) -> None:
        """End the stream in both directions; does nothing when it is over."""
        if not self.over:
            self._line.put(HEADER.pack(RESET, self.number))
            self._line.forget(self)

    def consumed(self, count: int) -> None:
        """Report that `count` received bytes are out of memory."""
        self._unread -= count
        self._consumed += count
        if self._consumed >= WINDOW // 2 and not (self._got_end or self.over):
            self._line.put(HEADER.pack(CREDIT, self.number) + CREDIT_SIZE.pack(self._consumed))
            self._consumed = 0

    def take(self, kind: int, payload: memoryview) -> None:
        if kind == DATA:
            self._unread += len(payload)
            self.moved += len(payload)
            self.sent_last = False
            if self._got_end or self._unread + self._consumed > WINDOW:
                raise ProtocolError("it sent more than there was room for")
            self.told.received(payload)
        elif kind == CREDIT:
            (more,) = CREDIT_SIZE.unpack(payload)
            self._credit += more
            if self._credit > WINDOW:
                raise ProtocolError("it gave more room than it has")
            self.told.room()
        elif kind == END:
            if self._got_end:
                raise ProtocolError("a stream ended twice")
            self._got_end = True
            self._finish()
            self.told.ended()
        else:
            self._line.forget(self)
            self.told.lost()

    @property
    def told(self) -> Receiver:
        assert self.receiver is not None, "a stream has a receiver from its beginning"
        return self.receiver

    def _finish(self) -> None:
        if self._sent_end and self._got_end and not self.over:
            self._line.forget(self)


class Multiplexer:
    def __init__(self, line: Line, opened: Callable[[Stream], None] | None = None) -> None:
        """`opened` is called with each stream that the other end opens; None: the other end may open none."""
        self._line = line
        self._opened = opened
        self._streams: dict[int, Stream] = {}
        self.cut: tuple[Stream, ...] = ()
        """The streams that the line's end has ended."""
        self._last = 0
        self._closed = False
        self._waiting: deque[bytes] = deque()
        self._bytes = 0
        self._something = asyncio.Event()

    @property
    def congested(self) -> bool:
        """Whether the line takes less than there is to send."""
        return self._bytes >= CONGESTED

    async def run(self) -> None:
        """Run until the line ends; then all streams are over. Raises ProtocolError."""
        both = [asyncio.ensure_future(self._read()), asyncio.ensure_future(self._write())]
        try:
            done, _ = await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            self._closed = True
            for task in both:
                task.cancel()
            await asyncio.gather(*both, return_exceptions=True)
            self.cut = tuple(self._streams.values())
            for stream in self.cut:
                self.forget(stream)
                stream.told.lost()

    def open(self) -> Stream | None:
        """Open a stream, whose receiver must be set at once; None when the line is closed or has STREAMS."""
        if self._closed or len(self._streams) >= STREAMS or self._last == _HIGHEST:
            return None
        self._last += 1
        stream = self._streams[self._last] = Stream(self, self._last)
        self.put(HEADER.pack(OPEN, self._last))
        return stream

    def put(self, frame: bytes) -> None:
        if not self._closed:
            self._waiting.append(frame)
            self._bytes += len(frame) + _OVERHEAD
            self._something.set()

    def forget(self, stream: Stream) -> None:
        stream.over = True
        self._streams.pop(stream.number, None)

    def take(self, message: bytes) -> None:
        if not HEADER.size <= len(message) <= HEADER.size + PIECE:
            raise ProtocolError("a frame has no head, or too much behind it")
        if len(self._waiting) > MOST_WAITING:
            raise ProtocolError("it sends and does not read")
        kind, number = HEADER.unpack_from(message)
        payload = memoryview(message)[HEADER.size :]
        if kind > RESET or (kind != DATA and len(payload) != (CREDIT_SIZE.size if kind == CREDIT else 0)):
            raise ProtocolError("there is no such frame")
        if kind == OPEN:
            self._take_open(number)
        elif stream := self._streams.get(number):
            stream.take(kind, payload)
        elif not 0 < number <= self._last:
            raise ProtocolError("there was no such stream")  # else it is over, as the other end will hear

    def _take_open(self, number: int) -> None:
        if self._opened is None or number != self._last + 1:
            raise ProtocolError("it may not open this stream")
        self._last = number
        if len(self._streams) >= STREAMS:
            self.put(HEADER.pack(RESET, number))
            return
        stream = self._streams[number] = Stream(self, number)
        self._opened(stream)

    async def _read(self) -> None:
        async for message in self._line:
            if message.type is not WSMsgType.BINARY:
                raise ProtocolError("it sent a text")
            self.take(message.data)

    async def _write(self) -> None:
        with suppress(ConnectionError):
            while True:
                await self._something.wait()
                while self._waiting:
                    frame = self._waiting.popleft()
                    await self._line.send_bytes(frame)
                    was_congested = self.congested
                    self._bytes -= len(frame) + _OVERHEAD
                    if was_congested and not self.congested:
                        for stream in list(self._streams.values()):
                            stream.told.room()
                self._something.clear()

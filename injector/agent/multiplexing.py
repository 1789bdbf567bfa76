"""Many byte streams over one line of messages, each with flow control of its own.

A message is one frame:

    kind (1 byte), stream (4 bytes), payload

    OPEN    the opener begins the next stream: 1, 2, 3, ... No answer is waited for
    DATA    bytes, never more than the other end has given room for
    CREDIT  room for so many bytes more (4 bytes)
    END     no more bytes in this direction; the other one goes on
    RESET   the stream is over, at once and in both directions

Each end keeps at most WINDOW unread bytes of a stream, so one that nobody reads holds up no other and costs
no more than that. One end opens streams, the other is told of them. What does not fit is a ProtocolError, and
the line with all its streams is given up.
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
"""Unread bytes of a stream that one end keeps."""
PIECE = 64 * 1024
"""Bytes of DATA in a frame, at most."""
STREAMS = 1024
"""Streams of a line at the same time."""
CONGESTED = 512 * 1024
"""Bytes waiting to be sent over the line from which on no stream should add to them."""
MOST_WAITING = 16 * STREAMS
"""Frames waiting for a peer that does not read: from an honest one there are never so many."""
_HIGHEST = 2**32 - 1
_OVERHEAD = 64
"""Bytes that a waiting frame costs beside its own."""

Line = web.WebSocketResponse | aiohttp.ClientWebSocketResponse


class ProtocolError(Exception):
    """The other end did not keep to the rules."""


class Receiver(Protocol):
    """Whoever a stream's bytes are for."""

    def received(self, data: memoryview) -> None:
        """Bytes, to be answered by `Stream.consumed` once they are gone from memory."""

    def ended(self) -> None:
        """There will be no more."""

    def lost(self) -> None:
        """The stream is over, and not by us. Nothing else is called after it."""

    def room(self) -> None:
        """`Stream.wanted` may have grown."""


class Stream:
    """One end of a stream."""

    def __init__(self, line: "Multiplexer", number: int) -> None:
        self._line = line
        self.number = number
        self.receiver: Receiver | None = None
        """Set by whoever opened it, or was told of it, before anything else happens."""
        self.moved = 0
        """Bytes, in both directions together."""
        self.over = False
        self._credit = WINDOW
        self._unread = 0
        self._consumed = 0
        self._sent_end = self._got_end = False

    @property
    def allowed(self) -> int:
        """Bytes that the other end takes now, at most PIECE."""
        return 0 if self._sent_end or self.over else min(self._credit, PIECE)

    @property
    def wanted(self) -> bool:
        """Whether to send; else wait for `Receiver.room`."""
        return self.allowed > 0 and not self._line.congested

    def send(self, data: bytes | memoryview) -> None:
        """Send up to `allowed` bytes."""
        self._credit -= len(data)
        self.moved += len(data)
        self._line.put(HEADER.pack(DATA, self.number) + data)

    def end(self) -> None:
        """Nothing more will be sent."""
        if not (self._sent_end or self.over):
            self._sent_end = True
            self._line.put(HEADER.pack(END, self.number))
            self._finish()

    def reset(self) -> None:
        """Give it up; nothing when it is over."""
        if not self.over:
            self._line.put(HEADER.pack(RESET, self.number))
            self._line.forget(self)

    def consumed(self, count: int) -> None:
        """So many bytes that were received are gone from memory."""
        self._unread -= count
        self._consumed += count
        if self._consumed >= WINDOW // 2 and not (self._got_end or self.over):
            self._line.put(HEADER.pack(CREDIT, self.number) + CREDIT_SIZE.pack(self._consumed))
            self._consumed = 0

    def take(self, kind: int, payload: memoryview) -> None:
        """A frame from the other end. Raises ProtocolError."""
        if kind == DATA:
            self._unread += len(payload)
            self.moved += len(payload)
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
        """Its receiver."""
        assert self.receiver is not None, "a stream has a receiver from its beginning"
        return self.receiver

    def _finish(self) -> None:
        if self._sent_end and self._got_end and not self.over:
            self._line.forget(self)


class Multiplexer:
    """One end of a line."""

    def __init__(self, line: Line, opened: Callable[[Stream], None] | None = None) -> None:
        """`opened` is told of each stream; None: the other end may open none, because this one does."""
        self._line = line
        self._opened = opened
        self._streams: dict[int, Stream] = {}
        self._last = 0
        self._closed = False
        self._waiting: deque[bytes] = deque()
        self._bytes = 0
        self._something = asyncio.Event()

    @property
    def congested(self) -> bool:
        """The line takes less than there is to send."""
        return self._bytes >= CONGESTED

    async def run(self) -> None:
        """Until the line ends; then all streams are over. Raises ProtocolError."""
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
            for stream in list(self._streams.values()):
                self.forget(stream)
                stream.told.lost()

    def open(self) -> Stream | None:
        """A new stream, whose receiver is to be set at once; None when the line is closed or has STREAMS."""
        if self._closed or len(self._streams) >= STREAMS or self._last == _HIGHEST:
            return None
        self._last += 1
        stream = self._streams[self._last] = Stream(self, self._last)
        self.put(HEADER.pack(OPEN, self._last))
        return stream

    def put(self, frame: bytes) -> None:
        """Send a frame when its turn has come."""
        if not self._closed:
            self._waiting.append(frame)
            self._bytes += len(frame) + _OVERHEAD
            self._something.set()

    def forget(self, stream: Stream) -> None:
        """It is over."""
        stream.over = True
        self._streams.pop(stream.number, None)

    def take(self, message: bytes) -> None:
        """A message from the other end. Raises ProtocolError."""
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

"""Reads a command's output as it comes and keeps a bounded amount."""

import asyncio
import fcntl
import os
import re
import struct
import termios
from collections import deque
from collections.abc import Callable

CHUNK = 256 * 1024
_SMALL = 4096
_NOISE = b"bash: cannot set terminal process group ("
_LOGIN_NOISE = re.compile(rb"\A" + re.escape(_NOISE) + rb"[^\n]*\nbash: no job control in this shell\n")
IDLE_READ_INTERVAL = 0.1
"""Seconds between reads of a pipe that outlived its job, so that a runaway writer costs the agent little."""


class BoundedOutput:
    """Keeps the first and the last half of `limit` bytes; a marker replaces the middle."""

    def __init__(self, limit: int) -> None:
        self._head_limit = limit - limit // 2
        self._tail_limit = limit // 2
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._tail_size = 0
        self.total = 0
        """Bytes printed, kept or not."""

    def add(self, data: bytes) -> None:
        self.total += len(data)
        room = self._head_limit - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if not data:
            return
        if self._tail and len(self._tail[-1]) < _SMALL:  # a million one-byte writes must not cost 50 MB
            self._tail[-1] += data
        else:
            self._tail.append(data)
        self._tail_size += len(data)
        while self._tail_size - len(self._tail[0]) >= self._tail_limit:
            self._tail_size -= len(self._tail.popleft())

    def read(self, offset: int, most: int) -> tuple[int, bytes]:
        """Read up to `most` bytes from the first kept offset at or after `offset`; returns that offset and
        the bytes."""
        if offset < len(self._head):
            return offset, bytes(self._head[offset : offset + most])
        place = self.total - self._tail_size
        for piece in self._tail:
            if offset < place + len(piece):
                begin = max(offset - place, 0)
                return place + begin, bytes(piece[begin : begin + most])
            place += len(piece)
        return offset, b""

    @property
    def kept(self) -> int:
        return len(self._head) + self._tail_size

    def text(self) -> str:
        """Decode UTF-8 with replacement characters; the marker states the true size."""
        tail = b"".join(self._tail)
        if self._tail_limit < len(tail):
            tail = tail[len(tail) - self._tail_limit :]
        left_out = self.total - len(self._head) - len(tail)
        if left_out == 0:
            return (bytes(self._head) + tail).decode(errors="replace")
        marker = f"\n[... {left_out} bytes left out of {self.total} ...]\n"
        return self._head.decode(errors="replace") + marker + tail.decode(errors="replace")


class WithoutLoginNoise:
    """Forwards data, without the first messages of an interactive bash that has no terminal."""

    def __init__(self, consume: Callable[[bytes], None]) -> None:
        self._consume = consume
        self._held: bytes | None = b""

    def __call__(self, data: bytes) -> None:
        """Take a piece; empty `data` is the end."""
        if self._held is None:
            self._consume(data)
            return
        self._held += data
        if data and self._held.startswith(_NOISE[: len(self._held)]) and self._held.count(b"\n") < 2:
            return
        held, self._held = self._held, None
        self._consume(_LOGIN_NOISE.sub(b"", held, count=1))


class PipeReader:
    """Reads a pipe into a consumer until it is told that the process writing to it has ended."""

    def __init__(self, consume: Callable[[bytes], None]) -> None:
        self.consume = consume
        self._loop = asyncio.get_running_loop()
        self._fd, self.writer = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._fd, False)
        self._timer: asyncio.TimerHandle | None = None
        self.closed = asyncio.Event()
        """Set when nobody can write to the pipe any more."""
        self._loop.add_reader(self._fd, self._read)

    @property
    def open(self) -> bool:
        """Whether anybody can still write to the pipe."""
        return self._fd >= 0

    def close_writer(self) -> None:
        os.close(self.writer)

    def pipe(self) -> tuple[int, int] | None:
        """Device and inode; None when nobody can write to it."""
        if self._fd < 0:
            return None
        status = os.fstat(self._fd)
        return status.st_dev, status.st_ino

    def catch_up(self) -> bool:
        """Read what is in the pipe now. Returns whether others can still write to it."""
        if self._fd < 0:
            return False
        pending = struct.unpack("i", fcntl.ioctl(self._fd, termios.FIONREAD, b"\0\0\0\0"))[0]
        while pending > 0:
            data = os.read(self._fd, min(pending, CHUNK))
            self.consume(data)
            pending -= len(data)
        self._read()  # the end, or what came meanwhile
        return self._fd >= 0

    def finish(self) -> bool:
        """Read what is in the pipe now, and no more. Returns whether other processes still hold its writing
        end.

        The pipe then stays open and is slowly discarded, so that they are not killed for writing to it.
        """
        if not self.catch_up():
            return False
        self._loop.remove_reader(self._fd)
        self.consume(b"")
        self._read_into_nothing()
        return self._fd >= 0

    def close(self) -> None:
        self.closed.set()
        if self._timer is not None:
            self._timer.cancel()
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _read(self) -> None:
        data = self._next()
        if data is not None:
            self.consume(data)
        if data == b"":
            self.close()

    def _next(self) -> bytes | None:
        """Read a piece; None: nothing now; empty: the end."""
        try:
            return os.read(self._fd, CHUNK)
        except BlockingIOError:
            return None

    def _read_into_nothing(self) -> None:
        if self._next() == b"":
            self.close()
            return
        self._timer = self._loop.call_later(IDLE_READ_INTERVAL, self._read_into_nothing)


class PipeOutput:
    """A pipe whose first piece, and all its data once its writers have closed it, are futures."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self._reader, self.writer = os.pipe2(os.O_CLOEXEC)
        self._data = b""
        self.first: asyncio.Future[bytes] = loop.create_future()
        self.all: asyncio.Future[bytes] = loop.create_future()
        loop.add_reader(self._reader, self._read)

    def _read(self) -> None:
        piece = os.read(self._reader, 65536)
        self._data += piece
        if not self.first.done():
            self.first.set_result(piece)
        if not piece:
            asyncio.get_running_loop().remove_reader(self._reader)
            self.all.set_result(self._data)

    def close_writer(self) -> None:
        if self.writer >= 0:
            os.close(self.writer)
            self.writer = -1

    def close(self) -> None:
        self.close_writer()
        asyncio.get_running_loop().remove_reader(self._reader)
        os.close(self._reader)
        self.all.cancel()

"""A minimal HTTP/1.1 client over a unix socket, for whole requests and responses.

Every request of a client causes one to the agent. A general client, with redirects, cookies and proxies,
takes a third of an orchestrator's processor time for that; this one takes a tenth.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Mapping
from typing import NamedTuple, cast

from multidict import CIMultiDict

WAITING = 1 << 19
"""Bytes of a body that may wait for the socket."""
UNDER_WAY = 1 << 20
"""Bytes of a body that the kernel may hold for the server, where the machine allows as many. With its
default, a fifth of that, client and server wake each other for every piece."""
GO_AHEAD = 100
IDLE_SECONDS = 15.0
"""Seconds of idleness after which a connection is not reused: the server may just be closing it."""


class HttpResponse(NamedTuple):
    """A response; names of headers are case-insensitive."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Sized:
    def __init__(self, pieces: AsyncIterator[bytes], size: int) -> None:
        self._pieces = pieces
        self.size = size

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._pieces


class HttpConnection(asyncio.Protocol):
    def __init__(self, free: "dict[HttpConnection, float]") -> None:
        """After a response it adds itself to `free`, with the time, until it is taken or closed."""
        self._free = free
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[HttpResponse] | None = None
        self._received = bytearray()
        self._status = 0
        self._headers: CIMultiDict[str] = CIMultiDict()
        self._begin = 0
        """Offset of the body; 0 before the head has come."""
        self._end = 0
        self._sending = False
        self._writable = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass
        self._transport.set_write_buffer_limits(high=WAITING)
        line = self._transport.get_extra_info("socket")
        line.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, UNDER_WAY)
        self._writable.set()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._writable.set()
        self._free.pop(self, None)
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(exc or ConnectionResetError("closed before the answer"))

    def data_received(self, data: bytes) -> None:
        if self._answer is None:  # nobody asked
            self.close()
            return
        self._received += data
        try:
            if not self._begin:
                self._read_head()
            if not self._begin or len(self._received) < self._end:
                return
            if len(self._received) > self._end:
                raise ValueError("more than one answer")
        except (ValueError, LookupError):
            self.close()
            return
        with memoryview(self._received) as received:
            answer = HttpResponse(self._status, self._headers, bytes(received[self._begin :]))
        self._received, self._begin = bytearray(), 0
        waiting, self._answer = self._answer, None
        if not waiting.done():
            waiting.set_result(answer)
            if self._sending or self._headers.get("Connection", "").lower() == "close":
                self.close()
            elif answer.status != GO_AHEAD:
                self._free[self] = self._loop.time()

    def _read_head(self) -> None:
        end = self._received.find(b"\r\n\r\n")
        if end < 0:
            return
        first, *lines = self._received[:end].decode("latin-1").split("\r\n")
        self._status = int(first.split(" ", 2)[1])
        self._headers = CIMultiDict((name, value.strip()) for name, _, value in map(_parted, lines))
        self._begin = end + 4
        self._end = self._begin
        if self._status != GO_AHEAD:
            self._end += int(self._headers["Content-Length"])

    async def ask(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> HttpResponse:
        """Send a request and return the response. Raises ConnectionError when that is incomplete."""
        if self._transport is None:
            raise ConnectionResetError("closed before the request")
        lines = [f"{method} {target} HTTP/1.1", "Host: agent", f"Content-Length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        head = "\r\n".join([*lines, "", ""]).encode("utf-8", "surrogateescape")
        answer = self._answer = self._loop.create_future()
        self._transport.writelines((head, body))
        return await self._answered(answer)

    async def put(self, target: str, headers: Mapping[str, str], body: Sized) -> HttpResponse:
        """Send a request, and `body` once the server answers `100 Continue`. Raises as `ask` does.

        An exception of the pieces is passed on, and the server sees a broken connection.
        """
        answer = await self.ask("PUT", target, headers, b"")
        if answer.status != GO_AHEAD:
            return answer
        last = self._answer = self._loop.create_future()
        self._sending = True
        left = body.size
        try:
            async for piece in body:
                await self._writable.wait()
                if self._transport is None:
                    break
                left -= len(piece)
                if left < 0:  # the rest would be taken for requests
                    raise ConnectionAbortedError("more came than its size")
                self._sending = left > 0
                self._transport.write(piece)
        finally:
            if self._sending or left < 0:
                last.cancel()
                self.close()
        return await self._answered(last)

    async def _answered(self, answer: asyncio.Future[HttpResponse]) -> HttpResponse:
        try:
            return await answer
        except asyncio.CancelledError:
            if answer.cancelled() or _goes_on(answer):  # else it is free already, or another request's
                self.close()  # so the server learns that nobody waits
            raise

    def close(self) -> None:
        """Abort; a waiting caller gets a ConnectionResetError."""
        if self._transport is not None:
            self._transport.abort()


def _goes_on(answer: "asyncio.Future[HttpResponse]") -> bool:
    return answer.exception() is None and answer.result().status == GO_AHEAD


def _parted(line: str) -> tuple[str, str, str]:
    return line.partition(":")


class ConnectionPool:
    def __init__(self, path: str) -> None:
        self._path = path
        self._free: dict[HttpConnection, float] = {}

    async def connection(self) -> HttpConnection:
        """Return an idle connection, or a new one. Raises OSError when there is no server."""
        loop = asyncio.get_running_loop()
        while self._free:
            connection, since = self._free.popitem()
            if loop.time() - since < IDLE_SECONDS:
                return connection
            connection.close()
        _, made = await loop.create_unix_connection(lambda: HttpConnection(self._free), self._path)
        return made

    def close(self) -> None:
        for connection in list(self._free):
            connection.close()

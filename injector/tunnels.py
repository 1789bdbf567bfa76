"""The client's end of a tunnel: a port of the sandbox here, or a port of this host in the sandbox."""

import asyncio
import logging
import os
import socket
import time
import uuid
import weakref
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Literal, Self
from urllib.parse import urlencode

import aiohttp
import msgspec

from orchard.injector.agent.connections import Connections, Dial, connected, keep_alive
from orchard.injector.agent.errors import RequestInvalid
from orchard.injector.agent.multiplexing import STREAMS, ProtocolError
from orchard.injector.agent.tunnel_requests import TunnelRequest
from orchard.injector.errors import (
    SandboxConflict,
    SandboxError,
    SandboxRequestInvalid,
    SandboxUnavailable,
    error_for,
)
from orchard.injector.event_loop import Blocking, blocking

LOOPBACK = "127.0.0.1"
FIRST_PAUSE = 0.05
LONGEST_PAUSE = 2.0
"""Seconds before a connection that broke at once is made again; doubled each time."""
LASTING = 5.0
"""Seconds after which a connection did not break at once."""
_PENDING = "pending"
"""Reason of a conflict that ends when the sandbox is ready."""
Target = tuple[str, int]

log = logging.getLogger(__name__)


class _First(msgspec.Struct, frozen=True):
    """The service's first message: `ready`, with a port inside, or `error`."""

    type: str
    port: int = 0
    status: int = 500
    reason: str | None = None
    message: str = ""


class _Lost(SandboxUnavailable):
    pass


class AsyncTunnel:
    """A tunnel that is open within its block, or from `open` to `close`.

    `host` and `port` are where to connect to: of a forward tunnel here, of a reverse tunnel in the sandbox.
    When the connection to the service breaks, the tunnel's connections are reset and it reopens by itself; it
    ends, with `error`, when the sandbox is gone or the service does not respond for the client's
    `retry_seconds`.
    """

    def __init__(
        self,
        dial: Callable[[str], Awaitable[aiohttp.ClientWebSocketResponse]],
        tunnels: "set[AsyncTunnel]",
        direction: Literal["forward", "reverse"],
        port: int,
        here: Target,
        idle_seconds: float | None,
    ) -> None:
        """`dial` opens a WebSocket for a query; the tunnel is in `tunnels` while it is open.

        `port` is inside; `here` is where a forward tunnel listens, or a reverse one connects to.
        """
        self._dial = dial
        self._tunnels = tunnels
        self._direction = direction
        self._inside = port
        self._here = here
        self._idle_seconds = idle_seconds
        self._name = uuid.uuid4().hex
        self._listener: socket.socket | None = None
        self._line: aiohttp.ClientWebSocketResponse | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._opened_by = -1
        self.host = LOOPBACK
        self.port = 0
        self.breaks = 0
        """How often the tunnel was reopened; each time all its connections were reset."""
        self.interrupted = 0
        """How many of these connections waited for an answer: their last bytes were a client's."""
        self.error: SandboxError | None = None
        """Why it ended by itself."""

    @property
    def url(self) -> str:
        """URL of a web server behind it."""
        return f"http://{self.host}:{self.port}"

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        await self.close()

    async def open(self) -> Self:
        """Open the tunnel. Raises SandboxError, and OSError for a port that is taken here."""
        end: socket.socket | Dial = self._connect
        if self._direction == "forward":
            end = self._listener = await _listening(self._here)
            self.host, self.port = self._listener.getsockname()[:2]
        try:
            self._line = await self._lined()
        except BaseException:
            self._close_listener()
            raise
        if self._direction == "reverse":
            self.port = self._inside
        self._opened_by = os.getpid()
        _open.add(self)
        self._keeping = asyncio.get_running_loop().create_task(self._keep(end))
        self._tunnels.add(self)
        return self

    async def close(self) -> None:
        """Reset all connections and stop listening; does nothing when it is closed, or in a forked child."""
        keeping, self._keeping = self._keeping, None
        if keeping is None or self._opened_by != os.getpid():
            return
        if not keeping.done():
            keeping.cancel()
            await asyncio.wait([keeping])
        self._close_listener()  # as it does, unless it was cancelled before it began
        if self._line is not None:
            await self._line.close()
        self._tunnels.discard(self)

    async def wait(self) -> None:
        """Wait until the tunnel has ended. Raises its `error`, unless it was closed."""
        if self._keeping is not None and not self._keeping.done():
            await asyncio.wait([self._keeping])
        if self.error is not None:
            raise self.error

    def forked(self, nothing: int) -> None:
        """Release, in a child, what would keep the tunnel open when its owner is dead.

        The descriptors stay and become copies of `nothing`, because inherited objects will close them.
        """
        line = None if self._line is None else self._line.get_extra_info("socket")
        for held in (self._listener, line):
            if held is not None and held.fileno() >= 0:
                os.dup2(nothing, held.fileno())

    async def _keep(self, end: socket.socket | Dial) -> None:
        places = (asyncio.Semaphore(STREAMS),)
        pause = FIRST_PAUSE
        try:
            while True:
                assert self._line is not None, "it was opened with one"
                begun = time.monotonic()
                connections = Connections(self._line, end, places)
                try:
                    await connections.run()
                except ProtocolError as error:
                    log.warning("a tunnel is given up and made anew: %s", error)
                finally:
                    await self._line.close()
                self.breaks += 1
                self.interrupted += connections.unanswered
                pause = FIRST_PAUSE if time.monotonic() - begun > LASTING else min(2 * pause, LONGEST_PAUSE)
                await asyncio.sleep(pause)
                self._line = await self._lined()
        except SandboxError as error:
            self.error = error
            self._tunnels.discard(self)
        finally:
            self._close_listener()

    async def _lined(self) -> aiohttp.ClientWebSocketResponse:
        """Open a connection that is ready.

        Retries while a restore runs, and some times if one breaks before or the service has a fault of its
        own.
        """
        pause = FIRST_PAUSE
        while True:
            try:
                return await self._asked()
            except SandboxConflict as error:
                if error.reason != _PENDING:
                    raise
                pause = min(pause, LONGEST_PAUSE)
            except SandboxError as error:
                fault = isinstance(error, _Lost) or error.status == SandboxError.default_status
                if not fault or pause > LONGEST_PAUSE:
                    raise
            await asyncio.sleep(pause)
            pause *= 2

    async def _asked(self) -> aiohttp.ClientWebSocketResponse:
        query = {"port": str(self._inside), "direction": self._direction, "name": self._name}
        if self._idle_seconds is not None:
            query["idle_seconds"] = str(self._idle_seconds)
        try:
            TunnelRequest.of(query)  # a refused WebSocket cannot say why; this can
        except RequestInvalid as error:
            raise SandboxRequestInvalid(error.detail) from error
        line = await self._dial(urlencode(query))
        try:
            keep_alive(line.get_extra_info("socket"))
            message = await line.receive()
            if message.type is not aiohttp.WSMsgType.TEXT:
                raise _Lost("the tunnel was lost before it was open")
            try:
                first = msgspec.json.decode(message.data, type=_First)
            except msgspec.DecodeError as error:
                raise _Lost(f"the tunnel's first message is not the service's: {error}") from error
            if first.type != "ready":
                raise error_for(first.status, first.message, first.reason)
        except BaseException:
            await line.close()
            raise
        self._inside = first.port
        return line

    async def _connect(self) -> socket.socket:
        host, port = self._here
        loop = asyncio.get_running_loop()
        failure = OSError(f"{host} has no address")
        for family, kind, _, _, address in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            try:
                made = socket.socket(family, kind | socket.SOCK_NONBLOCK)
                return await connected(made, address)
            except OSError as error:
                failure = error
        raise failure

    def _close_listener(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None


async def _listening(address: Target) -> socket.socket:
    host, port = address
    infos = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    family, kind, _, _, place = infos[0]
    listener = socket.socket(family, kind | socket.SOCK_NONBLOCK)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(place)
        listener.listen(STREAMS)
    except BaseException:
        listener.close()
        raise
    return listener


class Tunnel(Blocking[AsyncTunnel]):
    """AsyncTunnel for blocking code; see there for what each method does and raises."""

    def __enter__(self) -> Self:
        return self.open()

    def open(self) -> Self:
        self._loop.run(self._awaited.open())
        return self

    @property
    def host(self) -> str:
        return self._awaited.host

    @property
    def port(self) -> int:
        return self._awaited.port

    @property
    def url(self) -> str:
        return self._awaited.url

    @property
    def error(self) -> SandboxError | None:
        """Why it ended by itself."""
        return self._awaited.error

    close = blocking(AsyncTunnel.close)
    wait = blocking(AsyncTunnel.wait)


_open: "weakref.WeakSet[AsyncTunnel]" = weakref.WeakSet()


def _forked() -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    for tunnel in _open:
        tunnel.forked(nothing)
    os.close(nothing)


os.register_at_fork(after_in_child=_forked)

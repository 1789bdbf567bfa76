"""The connections at one end of a tunnel: offers those accepted here to the other end, or dials those
offered."""

import asyncio
import errno
import socket
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from orchard.injector.agent.multiplexing import PIECE, Line, Multiplexer, Stream
from orchard.injector.agent.splicing import Splice, prepared

OUT_OF_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
PAUSE = 0.2
"""Seconds between attempts to accept while the process is out of descriptors."""
KEEPALIVE = ((socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 3))
"""Seconds of silence before the first probe, seconds between probes, number of probes."""
_SCRATCH = memoryview(bytearray(PIECE))

Dial = Callable[[], Awaitable[socket.socket]]
"""Returns a connected, non-blocking socket. Raises OSError."""


class Connections:
    def __init__(
        self,
        line: Line,
        end: socket.socket | Dial,
        places: Sequence[asyncio.Semaphore],
        idle_seconds: float | None = None,
    ) -> None:
        """`end` is a listening socket, or dials connections. Each connection takes one of each of `places` or
        waits.

        A connection without traffic for `idle_seconds` to twice as long is reset; None: the other end does
        that.
        """
        self._listener = end if isinstance(end, socket.socket) else None
        self._dial = None if isinstance(end, socket.socket) else end
        self._places = places
        self._idle_seconds = idle_seconds
        self._multiplexer = Multiplexer(line, None if self._dial is None else self._offered)
        self._splices: set[Splice] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def unanswered(self) -> int:
        """The number of connections that the line's end has reset, and whose last bytes were a client's."""
        asks = self._listener is not None
        return sum(stream.sent_last is asks for stream in self._multiplexer.cut)

    async def run(self) -> None:
        """Forward connections until the line or the listener ends, then reset all. Raises ProtocolError."""
        running = asyncio.ensure_future(self._multiplexer.run())
        ending = [running]
        if self._listener is not None:
            ending.append(asyncio.ensure_future(self._accept(self._listener)))
        if self._idle_seconds is not None:
            ending.append(asyncio.ensure_future(self._sweep(self._idle_seconds)))
        try:
            await asyncio.wait(ending, return_when=asyncio.FIRST_COMPLETED)
        finally:
            tasks = [*ending, *self._tasks]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if not running.cancelled():
            running.result()

    async def _accept(self, listener: socket.socket) -> None:
        while True:
            await self._take_place()
            try:
                connection = prepared(await accepted(listener))
            except BaseException:
                self._leave_place()
                raise
            stream = self._multiplexer.open()
            if stream is None:
                connection.close()
                self._leave_place()
                continue
            task = self._keep(self._spliced(Splice(stream, _SCRATCH), connection))
            task.add_done_callback(partial(self._left, connection))

    def _left(self, connection: socket.socket, _task: object) -> None:
        connection.close()
        self._leave_place()

    def _offered(self, stream: Stream) -> None:
        self._keep(self._connect(Splice(stream, _SCRATCH)))

    async def _connect(self, splice: Splice) -> None:
        assert self._dial is not None
        await self._take_place()
        try:
            await self._spliced(splice, prepared(await self._dial()))
        except OSError:  # whoever connected to the other end learns it by a reset
            splice.give_up()
        finally:
            self._leave_place()

    async def _spliced(self, splice: Splice, connection: socket.socket) -> None:
        self._splices.add(splice)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(lambda: splice, connection)
            await splice.done.wait()
        finally:
            self._splices.discard(splice)
            splice.give_up()

    async def _take_place(self) -> None:
        taken: list[asyncio.Semaphore] = []
        try:
            for places in self._places:
                await places.acquire()
                taken.append(places)
        except BaseException:
            for places in taken:
                places.release()
            raise

    def _leave_place(self) -> None:
        for places in self._places:
            places.release()

    async def _sweep(self, idle_seconds: float) -> None:
        while True:
            seen = {splice: splice.moved for splice in self._splices}
            await asyncio.sleep(idle_seconds)
            for splice, moved in seen.items():
                if splice in self._splices and splice.moved == moved:
                    splice.give_up()

    def _keep(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


async def accepted(listener: socket.socket) -> socket.socket:
    """Accept the next connection; waits while the process is out of descriptors."""
    loop = asyncio.get_running_loop()
    while True:
        try:
            return (await loop.sock_accept(listener))[0]
        except ConnectionError:
            continue  # it went before it was taken
        except OSError as error:
            if error.errno not in OUT_OF_ROOM:
                raise
            await asyncio.sleep(PAUSE)


async def connected(connection: socket.socket, address: Any) -> socket.socket:
    """Connect the socket and return it; closes it on failure. Raises OSError."""
    try:
        await asyncio.get_running_loop().sock_connect(connection, address)
    except BaseException:
        connection.close()
        raise
    return connection


def keep_alive(line: socket.socket | None) -> None:
    """Enable keepalive on a TCP connection; does nothing for other sockets.

    A terminal may be silent for days, and its reader may pause, so neither silence nor a missing WebSocket
    pong means that the peer is gone.
    """
    if line is None or line.family not in (socket.AF_INET, socket.AF_INET6):
        return
    line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in KEEPALIVE:
        line.setsockopt(socket.IPPROTO_TCP, option, value)

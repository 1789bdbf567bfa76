"""A TCP proxy between clients and service that cuts lines: all, some, or after holding every byte back."""

import asyncio
import random
import socket
from contextlib import suppress
from types import TracebackType
from typing import Self

CHUNK = 65536


class CuttingProxy:
    """Listens on 127.0.0.1, passes bytes on to `port`. As a context manager it runs for the block."""

    def __init__(self, port: int) -> None:
        self.target = port
        self.port = 0
        self._lines: set[_Line] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._open = asyncio.Event()
        self._open.set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._server.close()
        self.cut(1.0, random.Random(0))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self, share: float, chance: random.Random) -> int:
        """Reset about `share` of the lines, whatever they are in the middle of. Returns how many."""
        doomed = [line for line in self._lines if chance.random() < share]
        for line in doomed:
            line.reset()
        return len(doomed)

    async def stall(self, seconds: float) -> None:
        """Pass nothing on for a while, then reset all lines: a network that is gone and comes back."""
        self._open.clear()
        try:
            await asyncio.sleep(seconds)
        finally:
            self._open.set()
            self.cut(1.0, random.Random(0))

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._open.wait()
        try:
            there = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:  # the service is away: so is the line
            writer.transport.abort()
            return
        line = _Line(writer, there[1])
        self._lines.add(line)
        try:
            await asyncio.gather(self._pass(reader, there[1]), self._pass(there[0], writer))
        except OSError:
            line.reset()
        finally:
            self._lines.discard(line)
            for end in (writer, there[1]):
                end.close()

    async def _pass(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        while data := await source.read(CHUNK):
            await self._open.wait()
            target.write(data)
            await target.drain()
        with suppress(OSError):
            target.write_eof()


class _Line:
    """Both ends of one connection."""

    def __init__(self, *ends: asyncio.StreamWriter) -> None:
        self._ends = ends

    def reset(self) -> None:
        """So that neither end gets what was under way."""
        for end in self._ends:
            sock: socket.socket = end.get_extra_info("socket")
            with suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            end.transport.abort()

"""The client's end of a terminal session."""

import asyncio
import base64
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self

import aiohttp
import msgspec

from orchard.injector import wire
from orchard.injector.agent.connections import keep_alive
from orchard.injector.errors import SandboxError, SandboxUnavailable
from orchard.injector.event_loop import Blocking, blocking

BUFFER_LIMIT = 64 * 1024 * 1024
"""Bytes of output kept for a caller that does not read; then the command has to wait."""
PIECE = 32 * 1024


class TerminalFrame(msgspec.Struct, frozen=True):
    type: str
    pid: int | None = None
    data: str = ""
    code: int = -1
    message: str = ""


class AsyncContainerProcess:
    """A running command on a terminal of its own. As a context manager it is killed at the end of the block.

    `pid` is its process id in the sandbox; `returncode` its exit status once it ended, negative for the
    signal that killed it. Output is collected from the start, and is complete before `wait` returns.
    """

    def __init__(self, line: aiohttp.ClientWebSocketResponse) -> None:
        self._line = line
        self._output = bytearray()
        self._changed = asyncio.Condition()
        self._error: SandboxError | None = None
        self._finished = False
        self._hung_up = False
        self.pid: int | None = None
        self.returncode: int | None = None
        self._reader = asyncio.get_running_loop().create_task(self._read_frames())

    @classmethod
    async def start(
        cls, line: aiohttp.ClientWebSocketResponse, init: Mapping[str, object]
    ) -> "AsyncContainerProcess":
        """Start the command that the frame `init` describes. Raises SandboxError when it cannot start."""
        keep_alive(line.get_extra_info("socket"))
        process = cls(line)
        try:
            await process._send(type="init", **init)
            await process._until(lambda: process.pid is not None or process._finished, None)
            if process._error is not None:
                raise process._error
        except BaseException:
            await process.close()
            raise
        return process

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        await self.close()

    def poll(self) -> int | None:
        """Return the exit status, or None while it runs."""
        return self.returncode

    async def write_stdin(self, data: bytes | str) -> None:
        """Send `data` to the terminal. Raises SandboxUnavailable when the connection is gone."""
        content = data.encode() if isinstance(data, str) else data
        for begin in range(0, len(content), PIECE):
            piece = content[begin : begin + PIECE]
            await self._send(type="stdin", data=base64.b64encode(piece).decode())

    async def read(self, timeout: float | None = None) -> bytes:
        """Return the output since the last read, at least a byte; b"" when it ended and all was read.

        Raises TimeoutError when nothing comes for `timeout` seconds; None waits without limit.
        """
        await self._until(lambda: bool(self._output) or self._finished, timeout)
        return await self._taken()

    async def read_all(self, timeout: float | None = None) -> bytes:
        """Return all unread output, once it has ended. Raises TimeoutError after `timeout` seconds."""
        await self.wait(timeout)
        return await self._taken()

    async def wait(self, timeout: float | None = None) -> int:
        """Return the exit status once it ended. Raises TimeoutError, or SandboxError when the session was
        lost."""
        await self._until(lambda: self._finished, timeout)
        if self._error is not None:
            raise self._error
        assert self.returncode is not None, "a session ends with an exit or an error"
        return self.returncode

    async def kill(self, signal_name: str = "TERM") -> None:
        """Send a signal, by its name, to the terminal's foreground; does nothing when the command ended."""
        if not self._finished:
            await self._send(type="signal", sig=signal_name)

    async def resize(self, rows: int, cols: int) -> None:
        """Change the terminal's size; does nothing when the command ended."""
        if not self._finished:
            await self._send(type="resize", rows=rows, cols=cols)

    async def close(self) -> None:
        """Hang up: what still runs gets SIGTERM, and SIGKILL after 5 s. Output so far can still be read."""
        self._hung_up = True
        async with self._changed:
            self._changed.notify_all()
        await self._line.close()
        await asyncio.wait([self._reader])

    async def _send(self, **frame: object) -> None:
        try:
            await self._line.send_str(wire.encode(frame).decode())
        except ConnectionError as error:
            raise SandboxUnavailable("the terminal session is over") from error

    async def _taken(self) -> bytes:
        async with self._changed:
            data = bytes(self._output)
            self._output.clear()
            self._changed.notify_all()
        return data

    async def _until(self, condition: Callable[[], bool], timeout: float | None) -> None:
        async with asyncio.timeout(timeout), self._changed:
            await self._changed.wait_for(condition)

    async def _read_frames(self) -> None:
        try:
            async for message in self._line:
                async with self._changed:
                    self._take(msgspec.json.decode(message.data, type=TerminalFrame))
                    self._changed.notify_all()
                    await self._changed.wait_for(lambda: len(self._output) < BUFFER_LIMIT or self._hung_up)
        finally:
            async with self._changed:
                if self.returncode is None and self._error is None:
                    self._error = SandboxUnavailable("the terminal session was lost before its command ended")
                self._finished = True
                self._changed.notify_all()

    def _take(self, frame: TerminalFrame) -> None:
        match frame.type:
            case "ready":
                self.pid = frame.pid
            case "stdout":
                self._output += base64.b64decode(frame.data)
            case "exit":
                self.returncode = frame.code
            case "error":
                self._error = SandboxError(frame.message, reason="terminal")


class ContainerProcess(Blocking[AsyncContainerProcess]):
    """AsyncContainerProcess for blocking code; see there for what each method does and raises."""

    @property
    def pid(self) -> int | None:
        """Process id in the sandbox."""
        return self._awaited.pid

    @property
    def returncode(self) -> int | None:
        """Exit status once it ended, negative for a signal."""
        return self._awaited.returncode

    def poll(self) -> int | None:
        """Return the exit status, or None while it runs."""
        return self._awaited.poll()

    write_stdin = blocking(AsyncContainerProcess.write_stdin)
    read = blocking(AsyncContainerProcess.read)
    read_all = blocking(AsyncContainerProcess.read_all)
    wait = blocking(AsyncContainerProcess.wait)
    kill = blocking(AsyncContainerProcess.kill)
    resize = blocking(AsyncContainerProcess.resize)
    close = blocking(AsyncContainerProcess.close)

"""A terminal session over a WebSocket: JSON frames, `data` in base64.

    client: init {cmd, env, cwd, rows, cols, login_shell, user}, stdin {data}, signal {sig},
            resize {rows, cols}, close
    server: ready {pid}, stdout {data}, exit {code, error}, error {message}

`code` is the exit status, negative for the signal that killed the command, and 127 if it could not start,
which `error` and the output explain. `exit` is the last frame, after all output. Invalid frames are ignored,
except input. The session ends with its command, and with a client that closes or vanishes: all its processes
get SIGTERM, and SIGKILL after CLOSE_GRACE.
"""

import asyncio
import base64
import binascii
import json
import logging
import os
import signal
import uuid
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from aiohttp import WSMsgType, web

from orchard.injector.agent.command_lines import command_line
from orchard.injector.agent.errors import AgentError, RequestInvalid
from orchard.injector.agent.interfaces import RunningSandbox, account_of
from orchard.injector.agent.protocol import WORKSPACE
from orchard.injector.agent.spawning import Spawner
from orchard.injector.agent.terminals import TerminalProcesses, open_pair, resize, signal_number

CHUNK = 64 * 1024
TAIL = 256 * 1024
"""Bytes read after the command ended: more than a terminal can hold, so all that the command printed, and
little of what its background children print."""
STDIN_LIMIT = 16 * 1024 * 1024
"""Bytes queued for a command that does not read; more is an error, never lost in silence."""
CLOSE_GRACE = 5.0
"""Seconds between SIGTERM at the end of a session and SIGKILL."""
LOOK_AGAIN = 0.02
RETRY_WRITE = 0.1
"""Seconds: a full terminal does not always signal that there is room again."""
DEFAULT_TERM = "xterm-256color"

log = logging.getLogger(__name__)


class InputLost(AgentError):
    """Input could not be delivered; the session ends, so that its command does not continue without it."""


class TerminalSession:
    """A command on a terminal of `machine`, until it ends or `socket` does."""

    def __init__(self, socket: web.WebSocketResponse, machine: RunningSandbox, spawner: Spawner) -> None:
        self._socket = socket
        self._machine = machine
        self._spawner = spawner
        self._name = f"terminal {uuid.uuid4().hex}"
        loop = asyncio.get_running_loop()
        self._started: asyncio.Future[tuple[int, int]] = loop.create_future()
        self._ended: asyncio.Future[tuple[int, str | None]] = loop.create_future()
        self._stdin: asyncio.Queue[bytes] = asyncio.Queue()
        self._waiting = 0
        self._master = -1
        self._session: TerminalProcesses | None = None

    async def run(self) -> None:
        """Serve the connection; when it returns or is cancelled, no process of the session is left.

        That may take CLOSE_GRACE, or a second cancellation.
        """
        try:
            init = await self._init()
            self._master, slave = open_pair(self._machine.root)
        except AgentError as error:
            await self._send(type="error", message=error.detail)
            return
        try:
            resize(self._master, init["rows"], init["cols"])
            await self._serve(init, slave)
        finally:
            os.close(slave)
            os.close(self._master)

    async def _init(self) -> dict[str, Any]:
        """Receive the first frame, validated and with defaults. Raises RequestInvalid."""
        message = await self._socket.receive()
        frame = _decoded(message.data) if message.type is WSMsgType.TEXT else {}
        if frame.get("type") != "init":
            raise RequestInvalid("the first frame must be `init`")
        command = frame.get("cmd")
        words = [command] if isinstance(command, str) else command
        if not (isinstance(words, list) and words and all(isinstance(word, str) for word in words)):
            raise RequestInvalid("`cmd` must be a command line or a list of words")
        environment = frame.get("env") or {}
        cwd = frame.get("cwd") or WORKSPACE
        if not isinstance(cwd, str) or not isinstance(environment, dict):
            raise RequestInvalid("`cwd` must be a path and `env` an object of strings")
        if not all(isinstance(value, str) for value in environment.values()):
            raise RequestInvalid("`env` must be an object of strings")
        for name in environment:
            if not name or "=" in name or "\0" in name:
                raise RequestInvalid(f"`env` has `{name[:100]!a}`, which is no name of a variable")
        rows, cols = _size(frame)
        user = frame.get("user")
        if not isinstance(user, str | None):
            raise RequestInvalid("`user` must be a name")
        frame["account"] = account_of(self._machine, user)
        return {**frame, "cmd": command, "env": environment, "cwd": cwd, "rows": rows, "cols": cols}

    async def _serve(self, init: dict[str, Any], slave: int) -> None:
        account, machine_environment = init["account"]
        if account is not None:
            os.fchown(slave, account.uid, -1)
        with command_line(init["cmd"], bool(init.get("login_shell"))) as command:
            await self._spawner.enter(
                self._name,
                self._machine.entrance,
                command=command,
                account=account,
                env={"TERM": DEFAULT_TERM, **machine_environment, **init["env"]},
                cwd=os.path.join(self._machine.working_directory, init["cwd"]),  # noqa: PTH118
                stdio=(slave, slave, slave),
                report=lambda status, failure: self._ended.set_result((status, failure and failure.why)),
                on_terminal=lambda leader, pid: self._started.set_result((leader, pid)),
            )
        helpers: list[asyncio.Task[Any]] = []
        try:
            await _first(self._started, self._ended)
            if self._started.done():
                leader, pid = self._started.result()
                self._session = TerminalProcesses(leader, self._machine.entrance)
                await self._send(type="ready", pid=pid)
            loop = asyncio.get_running_loop()
            output = loop.create_task(self._forward_output())
            receiving = loop.create_task(self._receive())
            helpers = [output, loop.create_task(self._forward_input()), receiving]
            await _first(self._ended, receiving, output)
            if not self._ended.done():
                await self._terminate(output)
                await self._ended
            await output
            status, failure = self._ended.result()
            if failure is not None:
                await self._send(type="ready", pid=0)
                await self._send(type="stdout", data=base64.b64encode(f"{failure}\r\n".encode()).decode())
            await self._send(type="exit", code=os.waitstatus_to_exitcode(status), error=failure)
        except ConnectionError:
            pass  # nobody is left to be told
        finally:
            for helper in helpers:
                helper.cancel()
            await self._terminate(None)
            for error in await asyncio.gather(*helpers, return_exceptions=True):
                if isinstance(error, Exception) and not isinstance(error, ConnectionError):
                    log.error("a terminal session failed", exc_info=error)

    async def _terminate(self, reading: asyncio.Task[None] | None) -> None:
        """End all processes of the session; their output meanwhile is read by `reading`, or else
        discarded."""
        if self._session is None:
            if not self._ended.done():
                self._spawner.kill(self._name)
            return
        loop = asyncio.get_running_loop()
        deadline = loop.time() + CLOSE_GRACE
        try:
            self._session.terminate()
            while self._session.runs() and loop.time() < deadline:
                if reading is None or reading.done():
                    with suppress(OSError):
                        os.read(self._master, CHUNK)
                await asyncio.sleep(LOOK_AGAIN)
        finally:
            self._session.kill()

    async def _send(self, **frame: object) -> None:
        await self._socket.send_str(
            json.dumps({name: value for name, value in frame.items() if value is not None})
        )

    async def _receive(self) -> None:
        async for message in self._socket:
            if message.type is not WSMsgType.TEXT:
                continue
            try:
                if not self._take(_decoded(message.data)):
                    return
            except RequestInvalid as error:
                log.debug("a frame is passed over: %s", error.detail)
            except InputLost as error:
                await self._send(type="error", message=error.detail)
                return

    def _take(self, frame: dict[str, Any]) -> bool:
        kind = frame.get("type")
        if kind == "stdin":
            self._feed(frame)
        elif kind == "resize":
            resize(self._master, *_size(frame))
        elif kind == "signal":
            number = signal_number(frame.get("sig")) or signal.SIGTERM
            if self._session is not None and not self._ended.done():
                self._session.signal(self._master, number)
        elif kind != "close":
            raise RequestInvalid(f"there is no frame of type {kind}")
        return bool(kind != "close")

    def _feed(self, frame: dict[str, Any]) -> None:
        try:
            data = base64.b64decode(frame.get("data") or "", validate=True)
        except (binascii.Error, TypeError, ValueError) as error:
            raise InputLost("`data` of `stdin` is not base64") from error
        self._waiting += len(data)
        if self._waiting > STDIN_LIMIT:
            raise InputLost(f"the command does not read: more than {STDIN_LIMIT} bytes of stdin wait for it")
        self._stdin.put_nowait(data)

    async def _forward_input(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            data = await self._stdin.get()
            while data:
                try:
                    written = os.write(self._master, data)
                except BlockingIOError:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(RETRY_WRITE):
                            await _ready(self._master, loop.add_writer, loop.remove_writer)
                    continue
                data = data[written:]
                self._waiting -= written

    async def _forward_output(self) -> None:
        """Send output until the command has ended and all of it is sent."""
        loop = asyncio.get_running_loop()
        left = TAIL
        while left > 0:
            ended = self._ended.done()
            try:
                data = os.read(self._master, CHUNK)
            except BlockingIOError:
                # The kernel has handed over by now whatever was written before.
                if ended:
                    return
                reading = loop.create_task(_ready(self._master, loop.add_reader, loop.remove_reader))
                try:
                    await _first(reading, self._ended)
                finally:
                    reading.cancel()
                    await asyncio.wait([reading])
                continue
            if ended:
                left -= len(data)
            await self._send(type="stdout", data=base64.b64encode(data).decode())


async def _first(*futures: asyncio.Future[Any]) -> None:
    await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)


async def _ready(descriptor: int, add: Callable[..., None], remove: Callable[[int], bool]) -> None:
    """Return when the descriptor is readable or writable, as `add` and `remove` say."""
    ready = asyncio.Event()
    add(descriptor, ready.set)
    try:
        await ready.wait()
    finally:
        remove(descriptor)


def _decoded(text: str) -> dict[str, Any]:
    try:
        frame = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RequestInvalid("a frame is a JSON object") from error
    if not isinstance(frame, dict):
        raise RequestInvalid("a frame is a JSON object")
    return frame


def _size(frame: dict[str, Any]) -> tuple[int, int]:
    rows, cols = frame.get("rows") or 24, frame.get("cols") or 80
    for number in (rows, cols):
        if not (isinstance(number, int) and 0 < number < 1 << 16):
            raise RequestInvalid("`rows` and `cols` are numbers from 1 to 65535")
    return rows, cols

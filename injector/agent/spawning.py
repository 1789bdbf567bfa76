"""The agent's side of the spawner: start a process, and get one report of how it ended."""

import asyncio
import json
import os
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from orchard.injector.agent.accounts import UserAccount
from orchard.injector.agent.command_lines import CommandLine
from orchard.injector.agent.spawner import HEADER


class StartFailure(NamedTuple):
    why: str
    errno: int
    executing: bool
    """Whether everything was ready but its program could not be executed."""


Report = Callable[[int, StartFailure | None], None]
"""Called once with the wait status (`os.WIFEXITED` ...) and why the process never ran, or None."""


@dataclass(frozen=True, kw_only=True)
class Entrance:
    """What a command needs to become a process of a sandbox."""

    pidfd: int | None
    """pidfd of the sandbox's first process; None: no namespaces, the command runs where the spawner runs."""
    cgroups: Sequence[str]
    """Files that admit the process to its cgroups when it writes `0` to them."""
    rlimits: Mapping[int, int] = field(default_factory=dict)
    """Limits of the process itself (`resource.RLIMIT_...`), where control groups do not limit."""


class Spawner:
    """Sends requests to the spawner process and passes each report to its requester."""

    def __init__(
        self,
        requests: socket.socket,
        reports: socket.socket,
        lost: Callable[[], None],
        among_tasks: int | None = None,
    ) -> None:
        """`lost` is called when the spawner process is gone, and with it every process it started.

        `among_tasks`: its process id if commands can see it; it is resumed before each request, should one
        have stopped it.
        """
        self._requests = requests
        self._reports = reports
        self._lost = lost
        self._among_tasks = among_tasks
        self._waiting: dict[str, Report] = {}
        self._failures: dict[str, StartFailure] = {}
        self._starting: dict[str, Callable[[int, int], None]] = {}
        self._endings: dict[str, asyncio.Event] = {}
        self._gone = False
        self._sending = asyncio.Lock()
        self._kills: set[asyncio.Task[None]] = set()
        requests.setblocking(False)
        reports.setblocking(False)
        asyncio.get_running_loop().add_reader(reports, self._receive)

    async def launch(
        self,
        name: str,
        argv: Sequence[str],
        env: dict[str, str],
        descriptors: Sequence[int],
        report: Report,
        ended: asyncio.Event,
        started: Callable[[int, int], None] | None = None,
    ) -> None:
        """Start a program of the host; the first two `descriptors` become its stdout and stderr.

        `ended` is set when it has ended, even if the spawner died and nothing is reported. `started` is
        called with its process id, twice.
        """
        self._expect(name, report, ended)
        if started is not None:
            self._starting[name] = started
        request = {"do": "launch", "id": name, "argv": list(argv), "env": env, "tell": started is not None}
        await self._send(request, descriptors)

    async def begin(
        self,
        name: str,
        *,
        out: int,
        written: int,
        program: tuple[int, int],
        steps: Sequence[str],
        report: Report,
        ended: asyncio.Event,
        started: Callable[[int, int], None],
    ) -> None:
        """Start the first process of a sandbox, in a pid namespace of its own, with the calls `written`.

        `out` becomes its stdout; `program` is a descriptor and its number there; `steps` describes the
        failure of each step of the calls. `ended` as for `launch`; `started` is called with the process id.
        """
        self._expect(name, report, ended)
        self._starting[name] = started
        request = {"do": "begin", "id": name, "steps": list(steps), "program": program[1]}
        await self._send(request, [out, written, program[0]])

    async def enter(
        self,
        name: str,
        entrance: Entrance,
        *,
        command: CommandLine,
        account: UserAccount | None,
        env: dict[str, str],
        cwd: str,
        stdio: tuple[int, int, int],
        report: Report,
        on_terminal: Callable[[int, int], None] | None = None,
    ) -> None:
        """Start a command in a sandbox, as the user `account`; None: as root, or as the agent's own user.

        With `on_terminal`, `stdio` is a terminal that becomes the command's own; then `on_terminal` is called
        with the process id as the agent sees it and as the sandbox does.
        """
        self._waiting[name] = report
        if on_terminal is not None:
            self._starting[name] = on_terminal
        request = {
            "do": "enter",
            "id": name,
            "namespaces": entrance.pidfd is not None,
            "terminal": on_terminal is not None,
            "cgroups": list(entrance.cgroups),
            "rlimits": list(entrance.rlimits.items()),
            "argv": list(command.argv),
            "line": command.line,
            "words": list(command.words),
            "login": command.login,
            "script": command.script >= 0,
            "account": account and [account.uid, account.gid, account.groups],
            "env": env,
            "cwd": cwd,
        }
        descriptors = [*stdio] if entrance.pidfd is None else [*stdio, entrance.pidfd]
        descriptors += [command.script] if command.script >= 0 else []
        await self._send(request, descriptors)

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._reports)
        self._requests.close()
        self._reports.close()

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        """Signal the process group of a process; does nothing once it has ended."""
        request = {"do": "kill", "id": name, "signal": int(number)}
        task = asyncio.get_running_loop().create_task(self._send(request, ()))
        self._kills.add(task)
        task.add_done_callback(self._kills.discard)

    def _expect(self, name: str, report: Report, ended: asyncio.Event) -> None:
        self._waiting[name] = report
        self._endings[name] = ended
        if self._gone:
            ended.set()

    async def _send(self, request: dict[str, Any], descriptors: Sequence[int]) -> None:
        body = json.dumps(request).encode()
        message = HEADER.pack(len(body), len(descriptors)) + body
        loop = asyncio.get_running_loop()
        if self._among_tasks is not None:
            with suppress(ProcessLookupError):  # then `lost` is about to be called
                os.kill(self._among_tasks, signal.SIGCONT)
        async with self._sending:
            while True:
                try:
                    sent = socket.send_fds(self._requests, [message], list(descriptors))
                    break
                except BlockingIOError:
                    await _writable(loop, self._requests)
            if sent < len(message):
                await loop.sock_sendall(self._requests, message[sent:])

    def _receive(self) -> None:
        try:
            message = self._reports.recv(65536)
        except BlockingIOError:
            return
        except ConnectionError:
            message = b""
        if not message:
            asyncio.get_running_loop().remove_reader(self._reports)
            self._gone = True
            for ended in self._endings.values():
                ended.set()
            self._lost()
            return
        report = json.loads(message)
        name = report["id"]
        if "failed" in report:
            self._failures[name] = StartFailure(*report["failed"])
        elif "started" in report:
            self._starting.pop(name)(report["started"], report["inner"])
        else:
            self._starting.pop(name, None)
            if name in self._endings:
                self._endings.pop(name).set()
            self._waiting.pop(name)(report["exit"], self._failures.pop(name, None))


async def _writable(loop: asyncio.AbstractEventLoop, sock: socket.socket) -> None:
    ready = loop.create_future()
    loop.add_writer(sock, ready.set_result, None)
    try:
        await ready
    finally:
        loop.remove_writer(sock)

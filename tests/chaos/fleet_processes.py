"""The processes of a fleet on this machine: started, restarted where they must run, killed, measured."""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from orchard.processes.signals import die_with_parent

TICKS = os.sysconf("SC_CLK_TCK")
SPAWNER = "spawner"
"""What forks the sandboxes' commands, which nobody else counts."""


@dataclass
class Used:
    """What one process, or all that had its name, took."""

    peak: int = 0
    """Bytes resident, at most."""
    cpu: float = 0.0
    """Seconds, of processes before the one that runs."""
    _pid: int = 0
    _now: float = 0.0

    def look(self, pid: int, *, forks: bool) -> None:
        """Take the figures of the process that has the name now; those of one that is gone stay as seen.
        With `forks` its children that ended count as its own."""
        try:
            status = Path(f"/proc/{pid}/status").read_text()
            times = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            return
        if pid != self._pid:
            self.cpu, self._now, self._pid = self.cpu + self._now, 0.0, pid
        self._now = sum(map(int, times[11 : 15 if forks else 13])) / TICKS  # user, system; the children's
        for line in status.splitlines():
            if line.startswith("VmHWM:"):
                self.peak = max(self.peak, int(line.split()[1]) * 1024)

    @property
    def seconds(self) -> float:
        """Of processor time, all together."""
        return self.cpu + self._now


@dataclass
class Processes:
    """By name. Those that are `kept` are started again when they end."""

    logs: Path
    used: dict[str, Used] = field(default_factory=dict)
    """By name."""
    ends: dict[str, int | None] = field(default_factory=dict)
    """The exit status of each that is not kept and ended."""
    _running: dict[str, asyncio.subprocess.Process] = field(default_factory=dict)
    _keepers: set[asyncio.Task[None]] = field(default_factory=set)
    _away: dict[str, float] = field(default_factory=dict)
    _stopping: bool = False

    async def start(
        self, name: str, command: list[str], environment: Mapping[str, str], *, keep: bool = False
    ) -> None:
        """Start one."""
        await self._start(name, command, environment)
        keeper = asyncio.create_task(self._keep(name, command, environment, keep))
        self._keepers.add(keeper)
        keeper.add_done_callback(self._keepers.discard)

    async def _start(self, name: str, command: list[str], environment: Mapping[str, str]) -> None:
        with (self.logs / f"{name.rstrip('0123456789')}.log").open("ab") as log:
            self._running[name] = await asyncio.create_subprocess_exec(
                *command,
                env=environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=die_with_parent,
            )

    async def _keep(self, name: str, command: list[str], environment: Mapping[str, str], keep: bool) -> None:
        while True:
            status = await self._running[name].wait()
            if not keep or self._stopping:
                del self._running[name]
                self.ends[name] = status
                return
            await asyncio.sleep(self._away.pop(name, 1.0))  # as a kubelet, which waits too
            await self._start(name, command, environment)

    def named(self, *prefixes: str) -> list[str]:
        """Names of those that run now, or are about to be started again."""
        return [name for name in self._running if name.startswith(prefixes)]

    def runs(self, name: str) -> bool:
        return self._running[name].returncode is None

    def kill(self, name: str, away: float = 1.0) -> None:
        """SIGKILL; nothing where it has just ended. One that is kept is started again so many seconds
        later."""
        self._away[name] = away
        with contextlib.suppress(ProcessLookupError):
            self._running[name].kill()

    def look(self, others: Mapping[str, int]) -> None:
        """Measure all, and others by their pids."""
        pids = {name: process.pid for name, process in self._running.items()} | dict(others)
        for name, pid in pids.items():
            self.used.setdefault(name, Used()).look(pid, forks=name == SPAWNER)

    async def stop(self, *prefixes: str, seconds: float = 60.0) -> None:
        """SIGTERM, then SIGKILL to what has not ended."""
        self._stopping = True
        for number in (signal.SIGTERM, signal.SIGKILL):
            for name in self.named(*prefixes):
                with contextlib.suppress(ProcessLookupError):
                    self._running[name].send_signal(number)
            deadline = time.monotonic() + seconds
            while self.named(*prefixes) and time.monotonic() < deadline:
                await asyncio.sleep(0.05)

"""A sandbox service in processes of its own, for benchmarks and the soak: start, kill, measure."""

import os
import select
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from orchard.injector.agent.local.cgroups import cgroup_name, layout

DEADLINE = 60.0
"""Seconds a process may take to start or to end."""


@dataclass(frozen=True)
class Usage:
    """A process's bytes resident, now and at most since the last reset; descriptors; seconds of CPU."""

    resident: int
    peak: int
    descriptors: int
    cpu: float


class LocalService:
    """An orchestrator over a state directory, and the agent that it starts."""

    def __init__(self, state: Path, *arguments: str) -> None:
        self.state = state
        self._arguments = arguments
        self.port = 0
        self.start()

    @property
    def url(self) -> str:
        """Of the orchestrator."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def agent_pid(self) -> int:
        """As the agent wrote it; it may have died since."""
        return int((self.state / "agent.lock").read_text())

    def start(self) -> None:
        """Start an orchestrator, on the port of the last one; returns when it serves."""
        port_file = self.state.with_name(f"{self.state.name}.port")
        port_file.unlink(missing_ok=True)
        line = [sys.executable, "-m", "orchard.injector.orchestrator", "--open", "--state", str(self.state)]
        line += ["--port", str(self.port), "--port-file", str(port_file), *self._arguments]
        with self.state.with_name(f"{self.state.name}.log").open("ab") as log:
            self.orchestrator = subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        deadline = time.monotonic() + DEADLINE
        while not port_file.exists():
            if self.orchestrator.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the orchestrator did not start; see {log.name}")
            time.sleep(0.005)
        self.port = int(port_file.read_text())

    def kill_orchestrator(self) -> None:
        """SIGKILL, and wait for its end."""
        self.orchestrator.kill()
        self.orchestrator.wait()

    def replace_orchestrator(self) -> None:
        """SIGTERM, as an upgrade does, and start the next one on the same port."""
        self.orchestrator.terminate()
        self.orchestrator.wait()
        self.start()

    def kill_agent(self) -> None:
        """SIGKILL, and wait for its end; nothing when it has ended already."""
        try:
            pidfd = os.pidfd_open(self.agent_pid)
        except ProcessLookupError:
            return
        try:
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            if not select.select([pidfd], [], [], DEADLINE)[0]:
                raise RuntimeError("the agent does not die")
        finally:
            os.close(pidfd)

    def stop(self) -> None:
        """End both in order."""
        self.orchestrator.terminate()
        self.orchestrator.wait()
        line = [sys.executable, "-m", "orchard.injector.agent", "--state", str(self.state), "--stop"]
        subprocess.run(line, check=True)

    def processes(self) -> dict[str, psutil.Process]:
        """The service's own processes by what they are."""
        agent = psutil.Process(self.agent_pid)
        # The spawner is the agent's first child: it is forked before anything else.
        spawner = min(agent.children(), key=lambda child: (child.create_time(), child.pid))
        return {
            "orchestrator": psutil.Process(self.orchestrator.pid),
            "agent": agent,
            "spawner": spawner,
        }

    def cgroups(self) -> list[Path]:
        """Control groups of this service's sandboxes."""
        parents = layout(
            Path("/proc/self/mountinfo").read_text(), Path("/proc/self/cgroup").read_text()
        ).parents
        own = {parent / cgroup_name(self.state.resolve()) for parent in parents.values()}
        return [path for parent in own if parent.is_dir() for path in parent.iterdir() if path.is_dir()]


def usage(process: psutil.Process) -> Usage:
    """What the process holds. CPU includes children that ended: a spawner's are the commands."""
    times = process.cpu_times()
    return Usage(
        resident=process.memory_info().rss,
        peak=_peak(process.pid),
        descriptors=process.num_fds(),
        cpu=times.user + times.system + times.children_user + times.children_system,
    )


def reset_peak(process: psutil.Process) -> None:
    """Let the kernel measure the peak of resident memory anew."""
    Path(f"/proc/{process.pid}/clear_refs").write_text("5")


def _peak(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise ProcessLookupError(f"process {pid} has no memory any more")

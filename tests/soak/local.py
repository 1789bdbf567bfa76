"""The local backend under soak: agent, orchestrator and lines are killed, and what stays is looked for."""

import asyncio
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

from orchard.injector.agent.local import building
from orchard.injector.client import AsyncSandboxClient
from tests.sandbox_service import LocalService, usage
from tests.soak.operations import Place
from tests.soak.proxy import CuttingProxy
from tests.soak.record import Effect, Fault

GONE_WITHIN = 90.0
"""Seconds until the last abandoned sandbox must have gone."""
SOCKETS = 64
"""Descriptors of connections that may be kept open at rest."""


class LocalLeg:
    """An orchestrator and an agent of its own; clients come through a proxy that can be cut."""

    name = "local"
    left_out = ()
    faults: dict[str, Effect] = {  # noqa: RUF012
        "all connections reset": Effect.LINES,
        "half the connections reset": Effect.LINES,
        "network gone for a second": Effect.LINES,
        "orchestrator killed": Effect.LINES,
        "orchestrator replaced": Effect.LINES,
        "orchestrator stopped for a second": Effect.NOTHING,
        "agent killed": Effect.SANDBOXES,
        "spawner killed": Effect.SANDBOXES,
    }

    def __init__(self, place: Path) -> None:
        self._begun = time.time()
        self._service = LocalService(place / "state")
        self._idle: Counter[str] | None = None

    async def __aenter__(self) -> "LocalLeg":
        self._proxy = await CuttingProxy(self._service.port).__aenter__()
        async with self.client() as client, await client.create_sandbox("host") as sandbox:
            await sandbox.exec("true")
        self._agent_holds = _kinds(self._service.agent_pid)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._proxy.__aexit__(None, None, None)
        self._service.stop()

    def client(self) -> AsyncSandboxClient:
        """See Leg."""
        return AsyncSandboxClient(f"http://127.0.0.1:{self._proxy.port}", auto_cleanup=False)

    async def create(self, client: AsyncSandboxClient, *, ttl: float, small: bool) -> Place:
        """See Leg."""
        memory = "128Mi" if small else "4Gi"
        sandbox = await client.create_sandbox("host", memory=memory, ttl_seconds=ttl)
        return Place(sandbox, random.Random(0))

    async def inject(self, fault: Fault, chance: random.Random) -> None:
        """See Leg."""
        match fault.kind:
            case "all connections reset":
                self._proxy.cut(1.0, chance)
            case "half the connections reset":
                self._proxy.cut(0.5, chance)
            case "network gone for a second":
                await self._proxy.stall(1.0)
            case "orchestrator killed":
                self._service.kill_orchestrator()
                await asyncio.to_thread(self._service.start)
            case "orchestrator replaced":
                await asyncio.to_thread(self._service.replace_orchestrator)
            case "orchestrator stopped for a second":
                self._service.orchestrator.send_signal(signal.SIGSTOP)
                await asyncio.sleep(1.0)
                self._service.orchestrator.send_signal(signal.SIGCONT)
            case "agent killed":
                await asyncio.to_thread(self._service.kill_agent)
                await self._agent_back()
            case "spawner killed":
                agent = psutil.Process(self._service.agent_pid)
                self._service.processes()["spawner"].kill()
                await asyncio.to_thread(agent.wait, 60)
                await self._agent_back()

    async def leftovers(self) -> list[str]:
        """See Leg: sandboxes, records, control groups, mounts, processes, descriptors."""
        deadline = time.monotonic() + GONE_WITHIN
        async with self.client() as client:
            while left := [*[f"sandbox {one.sandbox_id}" for one in await client.list_sandboxes()]]:
                if time.monotonic() > deadline:
                    break
                await asyncio.sleep(0.2)
        while left := [*left, *await asyncio.to_thread(lambda: list(self._left()))]:
            if time.monotonic() > deadline:
                return left
            await asyncio.sleep(0.2)
            left = []
        return []

    def holds(self) -> dict[str, dict[str, float]]:
        """See Leg."""
        found = {}
        for name, process in self._service.processes().items():
            held = usage(process)
            age = time.time() - process.create_time()
            found[name] = {
                "pid": process.pid,
                "age": age,
                "resident MiB": held.resident / 2**20,
                "descriptors": held.descriptors,
            }
        return found

    async def _agent_back(self) -> None:
        """The next call starts the next agent."""
        async with self.client() as client:
            await client.health()

    def _left(self) -> Iterator[str]:
        state = self._service.state
        for path in (state / "sandboxes").iterdir():
            yield f"directory {path.name}"
        for path in self._service.cgroups():
            yield f"control group {path}"
        for mount, times in self._mounts().items():
            if str(state / "sandboxes") in mount or times > 1:
                yield f"mount {mount}, {times} times"
        agent, spawner = self._service.processes()["agent"], self._service.processes()["spawner"]
        for child in agent.children(recursive=True):
            if child.pid != spawner.pid:
                yield f"process {child.pid}: {' '.join(_words(child))}"
        yield from _orphans(self._begun)
        for kind, number in (_kinds(agent.pid) - self._agent_holds).items():
            if kind != "socket" or number > SOCKETS:
                yield f"{number} descriptors of the agent: {kind}"
        for pid in (spawner.pid, self._service.orchestrator.pid):
            for kind, number in _kinds(pid).items():
                if number > SOCKETS:
                    yield f"{number} descriptors of process {pid}: {kind}"

    def _mounts(self) -> Counter[str]:
        """Mount points below the state directory; those of the image `host` stay as long as its agent."""
        own = Path(f"/proc/{self._service.agent_pid}/mounts").read_text().splitlines()
        elsewhere = Path("/proc/self/mounts").read_text().splitlines()
        points = [line.split()[1] for line in own]
        # Outside the agent's namespace there may be none at all: each counts as one too many.
        points += 2 * [line.split()[1] for line in elsewhere]
        return Counter(point for point in points if point.startswith(str(self._service.state)))


def _kinds(pid: int) -> Counter[str]:
    """Descriptors of a process by what they lead to."""
    found: Counter[str] = Counter()
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            target = str(path.readlink())
            found[target.split(":")[0] if target.startswith(("socket:", "pipe:")) else target] += 1
    return found


def _orphans(since: float) -> Iterator[str]:
    """First processes of sandboxes, started `since`, whose spawner is gone."""
    for process in psutil.process_iter(["ppid", "cmdline", "create_time"]):
        words = process.info["cmdline"] or [""]
        alone = words[0] == building.NAME and process.info["ppid"] == 1
        if alone and process.info["create_time"] >= since:
            yield f"first process {process.pid} without a parent"


def _words(process: psutil.Process) -> list[str]:
    try:
        words: list[str] = process.cmdline()
    except psutil.Error:
        return ["(ended)"]
    return words

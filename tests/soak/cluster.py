"""The Kubernetes backend under soak: agents killed, Pods cut off, the API server killed, the node drained."""

import asyncio
import os
import random
import secrets
import signal
import subprocess
import time
from collections import Counter
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil

from orchard.injector.client import AsyncSandboxClient
from tests.kubernetes import images
from tests.kubernetes.conftest import KEY, Cluster, Images, Service, new_namespace, serving
from tests.sandbox_service import usage
from tests.soak.operations import Place
from tests.soak.proxy import CuttingProxy
from tests.soak.record import Effect, Fault

SIZES = {"cpu_request_share": 0.05, "memory_request_share": 0.25, "ephemeral_storage_request": "16Mi"}
"""All sandboxes have to find room on one small node."""
GONE_WITHIN = 120.0
"""Seconds until the last abandoned Pod must have gone."""
CUT = 3.0
"""Seconds that a Pod is without network."""
AWAY = 2.0
"""Seconds that the API server is dead."""
SOCKETS = 64


class ClusterLeg:
    """An orchestrator over a node of our own, whose processes may be killed; run in its network namespace."""

    name = "kubernetes"
    left_out = ("fork",)
    """A Pod's root cannot be copied."""
    faults: dict[str, Effect] = {  # noqa: RUF012
        "all connections reset": Effect.LINES,
        "network gone for a second": Effect.LINES,
        "orchestrator killed": Effect.LINES,
        "orchestrator replaced": Effect.LINES,
        "agent in a Pod killed": Effect.SANDBOXES,
        "a Pod's network cut": Effect.LINES,
        "API server killed": Effect.LINES,
        "node drained": Effect.SANDBOXES,
    }

    def __init__(self, kubeconfig: Path, place: Path) -> None:
        """`kubeconfig` lies among the node's files, as up.sh makes them."""
        self._node = kubeconfig.parent
        self._place = place
        self._cluster = Cluster(kubeconfig, Images(images.FULL, images.BARE, images.AGENT))
        self._secret = secrets.token_hex(32)
        self._stack = ExitStack()

    async def __aenter__(self) -> "ClusterLeg":
        self._namespace = self._stack.enter_context(new_namespace(self._cluster))
        self._orchestrator = self._serve()
        self._proxy = await CuttingProxy(self._orchestrator.port).__aenter__()
        async with self.client() as client:
            place = await self.create(client, ttl=60.0, small=False)
            await place.sandbox.exec("true")
            await place.sandbox.delete()
        self._links = _links()  # the first Pod brought the bridge
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._proxy.__aexit__(None, None, None)
        await asyncio.to_thread(self._stack.close)

    def client(self) -> AsyncSandboxClient:
        """See Leg."""
        url = f"http://127.0.0.1:{self._proxy.port}"
        return AsyncSandboxClient(url, api_key=KEY, auto_cleanup=False)

    async def create(self, client: AsyncSandboxClient, *, ttl: float, small: bool) -> Place:
        """See Leg."""
        memory = "128Mi" if small else "512Mi"
        sandbox = await client.create_sandbox(
            self._cluster.images.full, cpu="1", memory=memory, ttl_seconds=ttl, timeout=120
        )
        return Place(sandbox, random.Random(0))

    async def inject(self, fault: Fault, chance: random.Random) -> None:
        """See Leg."""
        match fault.kind:
            case "all connections reset":
                self._proxy.cut(1.0, chance)
            case "network gone for a second":
                await self._proxy.stall(1.0)
            case "orchestrator killed":
                await asyncio.to_thread(self._replace, signal.SIGKILL)
            case "orchestrator replaced":
                await asyncio.to_thread(self._replace, signal.SIGTERM)
            case "agent in a Pod killed":
                await asyncio.to_thread(self._kill_agent, fault, chance)
            case "a Pod's network cut":
                await self._cut_off(chance)
            case "API server killed":
                await asyncio.to_thread(self._kill_api_server)
            case "node drained":
                await asyncio.to_thread(self._drain)

    async def leftovers(self) -> list[str]:
        """See Leg: Pods, policies, directories of the kubelet, network links, sockets of the orchestrator."""
        deadline = time.monotonic() + GONE_WITHIN
        while left := await asyncio.to_thread(self._left):
            if time.monotonic() > deadline:
                return left
            await asyncio.sleep(0.5)
        return []

    def holds(self) -> dict[str, dict[str, float]]:
        """See Leg."""
        process = psutil.Process(self._orchestrator.process.pid)
        held = usage(process)
        figures = {
            "pid": float(process.pid),
            "resident MiB": held.resident / 2**20,
            "descriptors": float(held.descriptors),
        }
        return {"orchestrator": figures}

    def _serve(self, port: int = 0) -> Service:
        running = serving(
            self._cluster, self._namespace, self._secret, self._place, port=port, settings=SIZES
        )
        return self._stack.enter_context(running)

    def _replace(self, number: signal.Signals) -> None:
        port = self._orchestrator.port
        self._orchestrator.stop(number)
        self._orchestrator = self._serve(port)

    def _agents(self) -> dict[str, int]:
        """By sandbox, the process of its agent as this machine sees it; only of Pods that run."""
        found = {}
        pods = {
            f"pod{pod['metadata']['uid']}": pod["metadata"]["labels"].get("sandbox-id", "")
            for pod in self._cluster.get("pods", self._namespace)
        }
        for process in psutil.process_iter(["cmdline"]):
            words = process.info["cmdline"] or []
            if "--serve" not in words or "--sandbox" not in words:
                continue
            with suppress(OSError):
                groups = Path(f"/proc/{process.pid}/cgroup").read_text()
                for pod, sandbox_id in pods.items():
                    if pod in groups and _first_of_its_namespace(process.pid):
                        found[sandbox_id] = process.pid
        return found

    def _kill_agent(self, fault: Fault, chance: random.Random) -> None:
        agents = self._agents()
        if agents:
            victim = chance.choice(sorted(agents))
            fault.sandboxes = frozenset({victim})
            with suppress(ProcessLookupError):
                os.kill(agents[victim], signal.SIGKILL)
        else:
            fault.sandboxes = frozenset()

    async def _cut_off(self, chance: random.Random) -> None:
        agents = await asyncio.to_thread(self._agents)
        if not agents:
            return
        link = _link_of(agents[chance.choice(sorted(agents))])
        if link is None:
            return  # it ended meanwhile
        with suppress(subprocess.CalledProcessError):  # its Pod may be deleted at any moment
            _run("ip", "link", "set", link, "down")
            await asyncio.sleep(CUT)
            _run("ip", "link", "set", link, "up")

    def _kill_api_server(self) -> None:
        pid_file = self._node / "apiserver.pid"
        process = psutil.Process(int(pid_file.read_text()))
        command, directory = process.cmdline(), process.cwd()
        process.kill()
        process.wait(60)
        time.sleep(AWAY)
        with (self._node / "apiserver.log").open("ab") as log:
            started = subprocess.Popen(
                command,
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        pid_file.write_text(f"{started.pid}\n")
        while self._cluster.attempt("get", "--raw", "/readyz").returncode:
            time.sleep(0.2)

    def _drain(self) -> None:
        [node] = self._cluster.kubectl("get", "nodes", "-o", "name").split()
        name = node.removeprefix("node/")
        words = ("--force", "--delete-emptydir-data", "--grace-period=1", "--timeout=100s")
        try:
            self._cluster.kubectl("drain", name, "--pod-selector=app=sandbox", *words)
        finally:
            self._cluster.kubectl("uncordon", name)

    def _left(self) -> list[str]:
        left = [
            f"{kind} {item['metadata']['name']}"
            for kind in ("pods", "networkpolicies")
            for item in self._cluster.get(kind, self._namespace)
        ]
        left += [f"volumes of Pod {path.name}" for path in (self._node / "kubelet" / "pods").iterdir()]
        left += [f"network link {name}" for name in _links() - self._links]
        kinds: Counter[str] = Counter()
        for path in Path(f"/proc/{self._orchestrator.process.pid}/fd").iterdir():
            with suppress(FileNotFoundError):
                kinds[str(path.readlink()).partition(":")[0]] += 1
        left += [f"{number} descriptors: {kind}" for kind, number in kinds.items() if number > SOCKETS]
        return left


def _first_of_its_namespace(pid: int) -> bool:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("NSpid:"):
            return line.split()[-1] == "1"
    return False


def _links() -> set[str]:
    """Names of the network interfaces here."""
    return {line.split(":")[1].split("@")[0].strip() for line in _run("ip", "-o", "link").splitlines()}


def _link_of(pid: int) -> str | None:
    """The interface here at whose other end a process's network hangs."""
    try:
        there = _run("nsenter", f"--net=/proc/{pid}/ns/net", "ip", "-o", "link", "show", "eth0")
    except subprocess.CalledProcessError:
        return None
    number = there.partition("@if")[2].partition(":")[0]
    for line in _run("ip", "-o", "link").splitlines():
        index, name, *_ = line.split(":")
        if index == number:
            return name.split("@")[0].strip()
    return None


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout

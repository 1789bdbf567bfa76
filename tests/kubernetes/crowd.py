"""`python -m tests.kubernetes.crowd`: many sandboxes at once, on a cluster without machines.

The API server is real, the orchestrators are, with the chart's limits; all creations are sent at the same
time. Says how long they took, what was refused, what the API server was asked for each sandbox, and what it
cost.
"""

import argparse
import asyncio
import json
import os
import resource
import secrets
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter, defaultdict
from contextlib import AsyncExitStack, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import psutil
from prometheus_client.parser import text_string_to_metric_families

from orchard.injector.client import AsyncSandbox, AsyncSandboxClient
from orchard.injector.errors import SandboxError
from orchard.injector.kubernetes.api import ClusterApi
from tests.infra.conftest import INFRA, Manifests, build, free_ports
from tests.kubernetes.crowd_cluster import Kubelets, agents, api_server
from tests.sandbox_service import usage

KEY = "key-of-the-crowd"


@dataclass
class Report:
    """What it took."""

    sandboxes: int
    replicas: int
    seconds_to_create: float = 0.0
    """From the first creation's begin to the last sandbox that is ready."""
    seconds_to_delete: float = 0.0
    failed: Counter[str] = field(default_factory=Counter)
    """Creations that ended in an error, by its reason."""
    refused: float = 0.0
    """Requests that the orchestrators refused for a limit."""
    waited_most: float = 0.0
    """Requests that waited for their turn at the same moment, of all replicas."""
    slowest_probe: float = 0.0
    """Seconds that a replica took for the longest answer to `/health`, which its kubelet asks for."""
    late_probes: int = 0
    """Answers that a kubelet would not have waited for, or that were a refusal."""
    probes: int = 0
    api_requests: dict[str, float] = field(default_factory=dict)
    """To the API server for each sandbox, by verb and path, without those of kubelet and scheduler."""
    api_requests_in_all: float = 0.0
    peak_mib: dict[str, float] = field(default_factory=dict)
    cpu_ms: dict[str, float] = field(default_factory=dict)
    """Processor time for each sandbox."""


class Orchestrators:
    """Processes, as the chart's Deployment starts them."""

    def __init__(self, home: Path, kubeconfig: Path, agent_port: int) -> None:
        self._home = home
        manifests = Manifests(build(INFRA / "overlays" / "cloud"))
        (home / "limits.toml").write_text(manifests.one("ConfigMap", "limits")["data"]["limits.toml"])
        self.namespace = manifests.one("ResourceQuota", "sandboxes")["metadata"]["namespace"]
        (container,) = manifests.one("Deployment", "orchestrator")["spec"]["template"]["spec"]["containers"]
        self.probe: dict[str, Any] = container["readinessProbe"]
        settings = manifests.one("ConfigMap", "sandboxes")["data"]["kubernetes.toml"]
        (home / "kubernetes.toml").write_text(
            f'{settings}\nkubeconfig = "{kubeconfig}"\nport = {agent_port}\n'
        )
        self._environment = {
            **os.environ,
            "SANDBOX_API_KEY": KEY,
            "ORCHARD_AGENT_SECRET": secrets.token_hex(32),
        }
        self.processes: list[psutil.Process] = []
        self.urls: list[str] = []
        self._metrics: list[int] = []

    def start(self, stack: AsyncExitStack) -> None:
        """One more."""
        number = len(self.processes)
        port, metrics = free_ports(2)
        words = ["--backend", "kubernetes", "--kubernetes-settings", str(self._home / "kubernetes.toml")]
        words += ["--limits", str(self._home / "limits.toml"), "--port", str(port)]
        words += ["--metrics-port", str(metrics)]
        log = stack.enter_context((self._home / f"orchestrator-{number}.log").open("wb"))
        process = subprocess.Popen(
            [sys.executable, "-m", "orchard.injector.orchestrator", *words],
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        stack.callback(process.wait)
        stack.callback(process.terminate)
        self.processes.append(psutil.Process(process.pid))
        self.urls.append(f"http://127.0.0.1:{port}")
        self._metrics.append(metrics)

    def figure(self, name: str) -> float:
        """The sum of a figure over replicas and labels."""
        found = 0.0
        for port in self._metrics:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as reply:
                found += sum(samples(reply.read().decode(), name).values())
        return found


def samples(text: str, name: str) -> dict[tuple[str, str], float]:
    """The samples of this name by their labels `verb`, `resource` and `subresource`; others are summed."""
    found: dict[tuple[str, str], float] = defaultdict(float)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == name:
                part = (sample.labels.get("resource", ""), sample.labels.get("subresource", ""))
                found[sample.labels.get("verb", ""), "/".join(filter(None, part))] += sample.value
    return found


class Crowd:
    """All at once, against some replicas."""

    def __init__(self, report: Report, orchestrators: Orchestrators, kubelets: Kubelets) -> None:
        self._report = report
        self._orchestrators = orchestrators
        self._kubelets = kubelets
        self._ready = 0

    async def run(self) -> None:
        """Create all, then delete all."""
        report = self._report
        async with AsyncExitStack() as stack:
            clients = [
                await stack.enter_async_context(
                    AsyncSandboxClient(
                        url, api_key=KEY, timeout=3600.0, retry_seconds=0.0, auto_cleanup=False
                    )
                )
                for url in self._orchestrators.urls
            ]
            started = time.monotonic()
            creating = [
                asyncio.create_task(self._create(clients[number % len(clients)]))
                for number in range(report.sandboxes)
            ]
            watching = [asyncio.create_task(self._watch())]
            watching += [asyncio.create_task(self._probe(url)) for url in self._orchestrators.urls]
            made = [one for one in await asyncio.gather(*creating) if one is not None]
            report.seconds_to_create = round(time.monotonic() - started, 1)
            started = time.monotonic()
            await asyncio.gather(*(self._delete(sandbox) for sandbox in made))
            report.seconds_to_delete = round(time.monotonic() - started, 1)
            for task in watching:
                task.cancel()
            await asyncio.wait(watching)

    async def _create(self, client: AsyncSandboxClient) -> AsyncSandbox | None:
        try:
            made = await client.create_sandbox(
                "image", cpu="1", memory="512Mi", timeout=3600.0, ttl_seconds=3600.0
            )
            self._ready += 1
            return made
        except SandboxError as error:
            self._report.failed[error.reason] += 1
            return None

    async def _delete(self, sandbox: AsyncSandbox) -> None:
        try:
            await sandbox.delete()
        except SandboxError as error:
            self._report.failed[f"deletion: {error.reason}"] += 1

    async def _watch(self) -> None:
        """The longest line, and how far it all is."""
        begun = time.monotonic()
        while True:
            waiting = await asyncio.to_thread(self._orchestrators.figure, "orchard_sandbox_requests_waiting")
            self._report.waited_most = max(self._report.waited_most, waiting)
            seconds = time.monotonic() - begun
            print(f"{seconds:.0f} s: {self._ready} ready, {waiting:.0f} wait", file=sys.stderr, flush=True)  # noqa: T201
            await asyncio.sleep(5.0)

    async def _probe(self, url: str) -> None:
        """As the kubelet of a replica does."""
        report, probe = self._report, self._orchestrators.probe
        async with aiohttp.ClientSession() as http:
            while True:
                begun, well = time.monotonic(), False
                with suppress(aiohttp.ClientError):
                    async with http.get(url + probe["httpGet"]["path"]) as reply:
                        well = reply.status == 200
                seconds = time.monotonic() - begun
                report.probes += 1
                report.slowest_probe = max(report.slowest_probe, round(seconds, 2))
                report.late_probes += not well or seconds > probe.get("timeoutSeconds", 1)
                await asyncio.sleep(probe["periodSeconds"])


async def run(sandboxes: int, replicas: int, home: Path) -> Report:
    """One crowd."""
    report = Report(sandboxes, replicas)
    (agent_port,) = free_ports(1)
    with api_server(home) as kubeconfig:
        words = ["kubectl", "--kubeconfig", str(kubeconfig)]
        orchestrators = Orchestrators(home, kubeconfig, agent_port)
        await asyncio.to_thread(
            subprocess.run,
            [*words, "create", "namespace", orchestrators.namespace],
            check=True,
            capture_output=True,
        )
        api = await ClusterApi.connect(str(kubeconfig), 32)
        kubelets = Kubelets(api, orchestrators.namespace)

        def asked() -> dict[tuple[str, str], float]:
            text = subprocess.run(
                [*words, "get", "--raw", "/metrics"], check=True, capture_output=True, text=True
            )
            return samples(text.stdout, "apiserver_request_total")

        async with AsyncExitStack() as stack:
            stack.push_async_callback(api.close)
            others = {"agents": stack.enter_context(agents(agent_port)), "driver": os.getpid()}
            playing = asyncio.create_task(kubelets.run())
            stack.callback(playing.cancel)
            for _ in range(replicas):
                orchestrators.start(stack)
            async with asyncio.timeout(120):
                for url in orchestrators.urls:
                    while not await healthy(url):
                        await asyncio.sleep(0.2)
            before = await asyncio.to_thread(asked)
            await Crowd(report, orchestrators, kubelets).run()
            after = await asyncio.to_thread(asked)
            for (verb, part), number in (Counter(before) + kubelets.requests).items():
                after[verb, part] -= number
            report.api_requests = {
                f"{verb} {part}": round(number / sandboxes, 3)
                for (verb, part), number in sorted(after.items())
                if number >= sandboxes / 1000
            }
            report.api_requests_in_all = round(sum(report.api_requests.values()), 2)
            report.refused = orchestrators.figure("orchard_sandbox_requests_refused_total")
            for number, process in enumerate(orchestrators.processes):
                used = usage(process)
                report.peak_mib[f"orchestrator-{number}"] = round(used.peak / 2**20)
                report.cpu_ms[f"orchestrator-{number}"] = round(1000 * used.cpu / sandboxes, 2)
            for child in psutil.Process().children():
                if child.name() in ("etcd", "kube-apiserver"):
                    others[child.name()] = child.pid
            for name, pid in others.items():
                used = usage(psutil.Process(pid))
                report.peak_mib[name] = round(used.peak / 2**20)
                report.cpu_ms[name] = round(1000 * used.cpu / sandboxes, 2)
    return report


async def healthy(url: str) -> bool:
    """Whether an orchestrator is ready."""
    async with aiohttp.ClientSession() as http:
        with suppress(aiohttp.ClientError):
            async with http.get(f"{url}/health") as reply:
                return reply.status == 200
    return False


def main() -> None:
    """From the command line; exit code 1 where a creation was refused or failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sandboxes", type=int, default=10_000)
    parser.add_argument("--replicas", type=int, default=2)
    options = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGINT):  # the latter is ignored in the background
        signal.signal(number, signal.default_int_handler)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)  # each creation is a connection here
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with tempfile.TemporaryDirectory(prefix="orchard-crowd-") as home:
        report = asyncio.run(run(options.sandboxes, options.replicas, Path(home)))
    sys.stdout.write(json.dumps(asdict(report), indent=1) + "\n")
    sys.exit(1 if report.failed or report.refused else 0)


if __name__ == "__main__":
    main()

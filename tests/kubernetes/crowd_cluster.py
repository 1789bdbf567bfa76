"""A cluster without machines: a real etcd and API server, and Pods that run because we say so.

What a scheduler and a kubelet do to a Pod is done here, three requests for each: it is bound to a node, its
status says that it runs, and its end is confirmed. Its agent is the real one's seals and nothing behind them;
one process answers for all Pods, each of which has an address of its own in 127.0.0.0/8.
"""

import asyncio
import ipaddress
import resource
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web

from orchard.injector.agent.pod.sealing import SealMiddleware
from orchard.injector.errors import SandboxUnavailable
from orchard.injector.kubernetes.api import ClusterApi, passing_over
from orchard.injector.kubernetes.cache import PodCache
from orchard.injector.kubernetes.objects import Pod
from tests.infra.conftest import free_ports
from tests.kubernetes.node import binaries

NODES = 100
FIRST_ADDRESS = ipaddress.IPv4Address("127.64.0.1")
START_SECONDS = 60.0
TOKEN = "administrator"
_KUBECONFIG = """apiVersion: v1
kind: Config
clusters: [{{name: c, cluster: {{server: "https://127.0.0.1:{port}", insecure-skip-tls-verify: true}}}}]
users: [{{name: a, user: {{token: {token}}}}}]
contexts: [{{name: c, context: {{cluster: c, user: a}}}}]
current-context: c
"""


@contextmanager
def api_server(home: Path) -> Iterator[Path]:
    """Its kubeconfig. etcd keeps its files in `home` and does not wait for the disk."""
    clients, peers, port = free_ports(3)
    (home / "tokens.csv").write_text(f"{TOKEN},admin,admin,system:masters\n")
    key = home / "accounts.key"
    subprocess.run(["openssl", "genrsa", "-out", str(key), "2048"], check=True, capture_output=True)
    kubeconfig = home / "kubeconfig"
    kubeconfig.write_text(_KUBECONFIG.format(port=port, token=TOKEN))
    url = f"http://127.0.0.1:{clients}"
    peer = f"http://127.0.0.1:{peers}"
    etcd = ["etcd", "--data-dir", str(home / "etcd"), "--unsafe-no-fsync"]
    etcd += [
        "--listen-client-urls",
        url,
        "--advertise-client-urls",
        url,
        "--quota-backend-bytes",
        str(8 << 30),
    ]
    etcd += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
    etcd += ["--initial-cluster", f"default={peer}"]
    server = [
        str(binaries("kube-apiserver") / "kube-apiserver"),
        f"--etcd-servers={url}",
        "--bind-address=127.0.0.1",
    ]
    server += [f"--secure-port={port}", "--advertise-address=127.0.0.1", "--endpoint-reconciler-type=none"]
    server += [f"--cert-dir={home / 'certificates'}", f"--token-auth-file={home / 'tokens.csv'}"]
    server += [f"--service-account-key-file={key}", f"--service-account-signing-key-file={key}"]
    server += ["--service-account-issuer=https://kubernetes.default.svc", "--authorization-mode=RBAC"]
    server += ["--service-cluster-ip-range=10.96.0.0/24", "--disable-admission-plugins=ServiceAccount"]
    with ExitStack() as stack:
        for name, command in (("etcd", etcd), ("server", server)):
            log = stack.enter_context((home / f"{name}.log").open("wb"))
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            stack.callback(process.wait)
            stack.callback(process.terminate)
        deadline = time.monotonic() + START_SECONDS
        ready = ["kubectl", "--kubeconfig", str(kubeconfig), "get", "--raw", "/readyz"]
        while subprocess.run(ready, capture_output=True, check=False).returncode:
            assert time.monotonic() < deadline, f"the API server did not start; see {home}"
            time.sleep(0.2)
        yield kubeconfig


class Kubelets:
    """Makes the Pods of a namespace run, and end."""

    def __init__(self, api: ClusterApi, namespace: str) -> None:
        self._api = api
        self._cache = PodCache(api, namespace)
        self._cache.listen(self._changed)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._numbers: dict[str, int] = {}
        self.tries_again = 0
        self.requests: Counter[tuple[str, str]] = Counter()
        """Sent to the API server, by verb and resource."""

    async def run(self) -> None:
        """Until cancelled."""
        self._cache.start()
        try:
            await asyncio.Event().wait()
        finally:
            await self._cache.close()
            for task in self._tasks.values():
                task.cancel()

    def _changed(self, _was: Pod | None, now: Pod | None) -> None:
        if now is None or now.uid in self._tasks:
            return
        leaving = now.metadata.deletion_timestamp is not None
        if leaving or not now.spec.node_name:
            step = self._end if leaving else self._begin
            task = asyncio.get_running_loop().create_task(self._until_done(step, now))
            self._tasks[now.uid] = task
            task.add_done_callback(lambda _: self._done(now))

    def _done(self, pod: Pod) -> None:
        del self._tasks[pod.uid]
        now = self._cache.named(pod.name)
        if now is not None and now.metadata.deletion_timestamp is not None:
            self._changed(None, now)

    async def _until_done(self, step: Callable[[Pod], Awaitable[None]], pod: Pod) -> None:
        """A kubelet does not give up because the API server is slow."""
        while True:
            try:
                return await step(pod)
            except SandboxUnavailable:
                self.tries_again += 1

    async def _begin(self, pod: Pod) -> None:
        number = self._numbers.setdefault(pod.uid, len(self._numbers) + 1)
        path = f"{self._cache.path}/{pod.name}"
        node = {"apiVersion": "v1", "kind": "Node", "name": f"node-{number % NODES}"}
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod.name}, "target": node}
        with passing_over(404):
            with passing_over(409):  # it is bound, by an earlier try
                self.requests["POST", "pods/binding"] += 1
                await self._api.create(msgspec.Raw, f"{path}/binding", body)
            self.requests["PATCH", "pods/status"] += 1
            status = running(str(FIRST_ADDRESS + number), pod)
            await self._api.patch(msgspec.Raw, f"{path}/status", {"status": status})

    async def _end(self, pod: Pod) -> None:
        self.requests["DELETE", "pods"] += 1
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0}
        await self._api.delete(f"{self._cache.path}/{pod.name}", body)


def running(address: str, pod: Pod) -> dict[str, Any]:
    """The status of a Pod whose container has started."""
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    kinds = ("Initialized", "Ready", "ContainersReady", "PodScheduled")
    container = {
        "name": "sandbox",
        "image": pod.spec.containers[0].image,
        "imageID": "",
        "restartCount": 0,
        "ready": True,
        "started": True,
        "state": {"running": {"startedAt": now}},
    }
    return {
        "phase": "Running",
        "podIP": address,
        "podIPs": [{"ip": address}],
        "startTime": now,
        "conditions": [{"type": kind, "status": "True", "lastTransitionTime": now} for kind in kinds],
        "containerStatuses": [container],
    }


@contextmanager
def agents(port: int) -> Iterator[int]:
    """The agents of all Pods, in a process of their own: each connection is a descriptor, at both ends. Its
    number is given."""
    command = [sys.executable, "-m", __name__, str(port)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None and process.stdout is not None
    with process:
        assert process.stdout.readline(), "the agents did not start"
        yield process.pid
        process.stdin.close()  # they end with it, however we end


async def serve_agents(port: int) -> None:
    """One server for all Pods, each with a key of its own, until stdin ends."""
    by_address: dict[str, SealMiddleware] = {}

    @web.middleware
    async def sealed(request: web.Request, handler: Any) -> web.StreamResponse:
        assert request.transport is not None
        address = request.transport.get_extra_info("sockname")[0]
        return await by_address.setdefault(address, SealMiddleware()).middleware(request, handler)

    app = web.Application(middlewares=[sealed])
    SealMiddleware().install(app)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "0.0.0.0", port, backlog=4096).start()
    sys.stdout.write("listening\n")
    sys.stdout.flush()
    await asyncio.to_thread(sys.stdin.read)
    await runner.cleanup()


if __name__ == "__main__":
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    asyncio.run(serve_agents(int(sys.argv[1])))

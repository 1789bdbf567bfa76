"""A cluster takes sandboxes away, by drain, preemption or a lost node: all look alike, no rollout suffers."""

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager
from typing import Any

import pytest

from orchard.injector.agent.interfaces import quantity
from orchard.injector.client import AsyncSandbox, AsyncSandboxClient
from orchard.injector.errors import SandboxError, SandboxFailed, SandboxUnavailable
from orchard.schemas.events import RolloutFinished, payload
from orchard.streams.server import EmbeddedServer
from orchard.workers.attempts import retries
from tests.attempts_world import QUICK_RETRIES, world
from tests.kubernetes.conftest import KEY, Cluster, Service, serving
from tests.tiny_tasks import tiny_task

SIZES = {"cpu_request_share": 0.02, "memory_request_share": 0.1, "ephemeral_storage_request": "1Mi"}
SMALL: dict[str, Any] = {"cpu": "500m", "memory": "128Mi", "timeout": 60}
DEADLINE = 60.0
BEGUN = "/tmp/begun"
LOST = "node.kubernetes.io/unreachable"
REPAIR = "sed -i 's/left - right/left + right/' arithmetic/mod_1.py"

Start = Callable[..., Service]


def evict(cluster: Cluster, namespace: str, pod: str) -> None:
    """What `kubectl drain` does to a Pod."""
    minor = json.loads(cluster.kubectl("version", "-o", "json"))["serverVersion"]["minor"]
    version = "v1" if int(minor.rstrip("+")) >= 22 else "v1beta1"
    body = {"apiVersion": f"policy/{version}", "kind": "Eviction", "metadata": {"name": pod}}
    path = f"/api/v1/namespaces/{namespace}/pods/{pod}/eviction"
    cluster.kubectl("create", "--raw", path, "-f", "-", given=json.dumps(body))


@pytest.fixture
def preempt(cluster: Cluster, namespace: str) -> Iterator[Callable[[], None]]:
    """Let a Pod of higher priority need all that the sandboxes of the namespace have."""

    def come() -> None:
        (node,) = json.loads(cluster.kubectl("get", "nodes", "-o", "json"))["items"]
        pods = json.loads(cluster.kubectl("get", "pods", "-A", "-o", "json"))["items"]
        reserved = sum(
            quantity(container["resources"].get("requests", {}).get("cpu", "0"))
            for pod in pods
            if pod["metadata"]["namespace"] != namespace and pod["status"]["phase"] == "Running"
            for container in pod["spec"]["containers"]
        )
        cpu = f"{int(1000 * (quantity(node['status']['allocatable']['cpu']) - reserved))}m"
        importance = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": 1000}
        pod = {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "priorityClassName": namespace,
            "containers": [
                {
                    "name": "main",
                    "image": cluster.images.bare,
                    "imagePullPolicy": "IfNotPresent",
                    "command": ["sleep", "600"],
                    "resources": {"requests": {"cpu": cpu}},
                }
            ],
        }
        kinds = [
            {**importance, "metadata": {"name": namespace}},
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": "first", "namespace": namespace},
                "spec": pod,
            },
        ]
        cluster.kubectl(
            "create", "-f", "-", given=json.dumps({"apiVersion": "v1", "kind": "List", "items": kinds})
        )

    yield come
    cluster.kubectl(
        "delete", "pod", "first", "-n", namespace, "--ignore-not-found", "--force", "--grace-period=0"
    )
    cluster.kubectl("delete", "priorityclass", namespace, "--ignore-not-found")


@pytest.fixture
def lose_node(cluster: Cluster) -> Iterator[Callable[[], None]]:
    """What the node controller does when a kubelet is silent."""
    (node,) = json.loads(cluster.kubectl("get", "nodes", "-o", "json"))["items"]
    name = node["metadata"]["name"]

    def lose() -> None:
        cluster.kubectl("taint", "nodes", name, f"{LOST}:NoExecute", "--overwrite")

    yield lose
    cluster.attempt("taint", "nodes", name, f"{LOST}:NoExecute-")


async def until_begun(sandbox: AsyncSandbox) -> None:
    async with asyncio.timeout(DEADLINE):
        while (await sandbox.exec(["test", "-e", BEGUN], cwd="/")).exit_code != 0:
            await asyncio.sleep(0.1)


@asynccontextmanager
async def working(
    service: Service, image: str, command: str
) -> AsyncIterator[tuple[AsyncSandbox, Awaitable[Any]]]:
    """A sandbox in which the command runs."""
    async with service.client(timeout=DEADLINE) as client:
        sandbox = await client.create_sandbox(image, **SMALL)
        running = asyncio.create_task(sandbox.exec(f"touch {BEGUN}; {command}", cwd="/"))
        await until_begun(sandbox)
        yield sandbox, running


@pytest.mark.parametrize("how", ["drain", "preemption", "lost node"])
async def test_what_runs_in_a_sandbox_that_is_taken_away_ends_as_evicted(
    cluster: Cluster,
    namespace: str,
    orchestrator: Start,
    preempt: Callable[[], None],
    lose_node: Callable[[], None],
    how: str,
) -> None:
    service = orchestrator(**SIZES, node_lost_after=0)
    async with working(service, cluster.images.bare, "sleep 1000") as (sandbox, running):
        take = {"drain": lambda: evict(cluster, namespace, f"sandbox-{sandbox.sandbox_id}")}
        await asyncio.to_thread({"preemption": preempt, "lost node": lose_node, **take}[how])
        with pytest.raises(SandboxFailed) as caught:
            await running
        assert caught.value.reason == "evicted"


async def test_in_its_grace_a_command_ends_and_its_result_is_read(
    cluster: Cluster, namespace: str, orchestrator: Start
) -> None:
    service = orchestrator(**SIZES, grace=30)
    async with working(service, cluster.images.bare, "sleep 3; echo done | tee /tmp/result") as (
        sandbox,
        running,
    ):
        evict(cluster, namespace, f"sandbox-{sandbox.sandbox_id}")
        assert (await sandbox.status()).status_message.startswith("it is being evicted")
        assert (await running).stdout == "done\n"
        assert await sandbox.download_content("/tmp/result") == b"done\n"
        with pytest.raises(SandboxError) as caught:
            async with asyncio.timeout(DEADLINE):
                await sandbox.exec("sleep 1000", cwd="/")
        assert caught.value.reason in ("evicted", "not_found")


async def test_a_rollout_that_is_evicted_twice_at_one_command_asks_its_model_nothing_twice(
    cluster: Cluster,
    namespace: str,
    nats_server: EmbeddedServer,
    orchestrator: Start,
    tmp_path: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(retries, "ROLLOUTS", QUICK_RETRIES)
    monkeypatch.setenv("SANDBOX_API_KEY", KEY)
    service = orchestrator(**SIZES)
    commands = ("ls", f"touch {BEGUN}; sleep 5", REPAIR)
    async with world(nats_server.url, service.url, tmp_path / "store", commands) as place:
        (rollout,) = await place.submit(tiny_task(1, image=cluster.images.full))
        seen: set[str] = set()
        async with place.working():
            for _ in range(2):
                sandbox = await _another(place.sandboxes, rollout, seen)
                await until_begun(sandbox)
                evict(cluster, namespace, f"sandbox-{sandbox.sandbox_id}")
            outcome = payload((await place.outcomes(rollout))[rollout])
        assert isinstance(outcome, RolloutFinished), outcome
        assert (outcome.exit_status.value, outcome.resolved) == ("submitted", True)
        assert set(place.model.turns().values()) == {1}
        rows = await place.rows("select ending, cause from attempts order by attempt")
    assert rows == [("released", "sandbox_died")] * 2 + [("completed", None)]


async def test_a_rollout_whose_agents_secret_is_exchanged_asks_its_model_nothing_twice(
    cluster: Cluster,
    namespace: str,
    nats_server: EmbeddedServer,
    agent_secret: str,
    tmp_path: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As docs/runbooks/cluster.md has it: the orchestrators anew, then older sandboxes are deleted."""
    monkeypatch.setattr(retries, "ROLLOUTS", QUICK_RETRIES)
    monkeypatch.setenv("SANDBOX_API_KEY", KEY)
    commands = ("ls", f"touch {BEGUN}; sleep 5", REPAIR)
    with ExitStack() as services:
        before = services.enter_context(serving(cluster, namespace, agent_secret, tmp_path, settings=SIZES))
        async with world(nats_server.url, before.url, tmp_path / "store", commands) as place:
            (rollout,) = await place.submit(tiny_task(1, image=cluster.images.full))
            async with place.working():
                sandbox = await _another(place.sandboxes, rollout, set())
                await until_begun(sandbox)
                before.stop()
                other = secrets.token_hex(32)
                services.enter_context(
                    serving(cluster, namespace, other, tmp_path, port=before.port, settings=SIZES)
                )
                with pytest.raises(SandboxUnavailable, match="another agent secret"):
                    async with before.client(retry_seconds=0.0) as client:
                        await (await client.get_sandbox(sandbox.sandbox_id)).exec("true", cwd="/")
                cluster.kubectl("delete", "pods", "-l", "app=sandbox", "-n", namespace, "--wait=false")
                outcome = payload((await place.outcomes(rollout))[rollout])
            assert isinstance(outcome, RolloutFinished), outcome
            assert (outcome.exit_status.value, outcome.resolved) == ("submitted", True)
            assert set(place.model.turns().values()) == {1}
            rows = await place.rows("select ending from attempts order by attempt")
    assert rows == [("released",), ("completed",)]


async def _another(client: AsyncSandboxClient, rollout: str, seen: set[str]) -> AsyncSandbox:
    """The ready sandbox of the rollout's next attempt."""
    async with asyncio.timeout(DEADLINE):
        while True:
            for info in await client.list_sandboxes({"rollout": rollout}):
                if info.ready and info.sandbox_id not in seen:
                    seen.add(info.sandbox_id)
                    return await client.get_sandbox(info.sandbox_id)
            await asyncio.sleep(0.1)

"""The life of a sandbox as a Pod: made, ready, used, failed for a reason, expired, gone."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import aiohttp
import pytest

from orchard.injector.client import AsyncSandbox, AsyncSandboxClient
from orchard.injector.errors import SandboxFailed, SandboxNotFound
from orchard.schemas.sandboxes import SandboxStatus
from tests.kubernetes.conftest import KEY, Cluster, Service, new_namespace, serving

SIZES = {"cpu_request_share": 0.02, "memory_request_share": 0.05, "ephemeral_storage_request": "1Mi"}
SMALL: dict[str, Any] = {"cpu": "500m", "memory": "128Mi", "timeout": 60}
DEADLINE = 60.0


@pytest.fixture(scope="module")
def namespace(cluster: Cluster) -> Iterator[str]:
    """One for all these tests, each of which leaves it empty."""
    with new_namespace(cluster) as name:
        yield name


@pytest.fixture(scope="module")
def service(
    cluster: Cluster, namespace: str, agent_secret: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Service]:
    settings = {**SIZES, "reconcile_interval": 0.5, "image_pull_policy": "Never", "missing_after": 5}
    place = tmp_path_factory.mktemp("life")
    with serving(cluster, namespace, agent_secret, place, settings=settings) as service:
        yield service


@pytest.fixture
async def client(service: Service) -> AsyncIterator[AsyncSandboxClient]:
    async with service.client(timeout=DEADLINE) as client:
        yield client


async def eventually(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(DEADLINE):
        while not await holds():
            await asyncio.sleep(0.1)


async def waited(service: Service, sandbox_id: str) -> dict[str, Any]:
    """The record that ends a wait."""
    headers = {"X-API-Key": KEY}
    url = f"{service.url}/sandboxes/{sandbox_id}/wait?timeout={DEADLINE}"
    async with aiohttp.ClientSession(headers=headers) as session, session.get(url) as reply:
        assert reply.status == 200, await reply.text()
        record: dict[str, Any] = await reply.json()
        return record


async def unknown(client: AsyncSandboxClient, sandbox_id: str) -> bool:
    try:
        await client.get_sandbox(sandbox_id)
    except SandboxNotFound:
        return True
    return False


async def everything_says(sandbox: AsyncSandbox, reason: str) -> None:
    """Every route that needs the sandbox answers that it failed, and why."""
    calls: list[Callable[[], Awaitable[Any]]] = [
        lambda: sandbox.exec("true", cwd="/"),
        lambda: sandbox.heartbeat(),
        lambda: sandbox.list_files("/"),
        lambda: sandbox.download_content("/etc/passwd"),
        lambda: sandbox.upload_content(b"x", "/tmp/x"),
        lambda: sandbox.apply_patch("--- a\n"),
        lambda: sandbox.get_job(f"{sandbox.sandbox_id}.123456789abc"),
    ]
    for call in calls:
        with pytest.raises(SandboxFailed) as caught:
            await call()
        assert caught.value.reason == reason


async def test_a_pod_is_made_used_and_gone(
    cluster: Cluster, namespace: str, client: AsyncSandboxClient
) -> None:
    sandbox = await client.create_sandbox(
        cluster.images.full, labels={"campaign": "nightly"}, block_network=False, sandbox_id="life", **SMALL
    )
    assert (await sandbox.exec(["sh", "-c", "cat; exit 3"], stdin="in", cwd="/tmp")).stdout == "in"
    await sandbox.upload_content(b"\xff\x00", "/tmp/deep/er/file")
    assert await sandbox.download_content("/tmp/deep/er/file") == b"\xff\x00"
    (info,) = await client.list_sandboxes(labels={"campaign": "nightly"})
    assert (info.sandbox_id, info.pod_name, info.namespace) == ("life", "sandbox-life", namespace)
    assert await client.list_sandboxes(labels={"campaign": "daily"}) == []
    (policy,) = cluster.get("networkpolicies", namespace)
    assert policy["spec"]["podSelector"]["matchLabels"] == {"orchard/agent": "life"}
    (pod,) = cluster.get("pods", namespace)
    assert pod["spec"]["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault"
    assert "serviceAccountToken" not in str(pod["spec"]["volumes"])
    await sandbox.delete()
    assert cluster.sandboxes(namespace) == []
    assert await unknown(client, "life")
    await sandbox.delete()  # again: nothing
    await eventually(lambda: asyncio.to_thread(lambda: cluster.get("networkpolicies", namespace) == []))


async def test_an_image_that_is_missing_ends_the_wait_and_for_good(
    cluster: Cluster, namespace: str, service: Service, client: AsyncSandboxClient
) -> None:
    sandbox = await client.create_sandbox(
        "docker.io/local/none:1", wait_ready=False, sandbox_id="none", cpu="1", memory="64Mi", timeout=3600
    )
    record = await waited(service, "none")  # its own deadline is far sooner than an hour
    assert (record["status"], record["ready"], record["reason"]) == ("failed", False, "image_missing")
    (pod,) = cluster.get("pods", namespace)
    assert "image_missing" in pod["metadata"]["annotations"]["orchard/failed"]
    await everything_says(sandbox, "image_missing")
    await sandbox.delete()


async def test_one_whose_agent_died_stays_failed_until_it_is_deleted(
    cluster: Cluster, client: AsyncSandboxClient
) -> None:
    sandbox = await client.create_sandbox(cluster.images.bare, sandbox_id="dying", **SMALL)
    running = asyncio.create_task(sandbox.exec("sleep 100", cwd="/"))
    await eventually(lambda: _sees(sandbox, "sleep 100"))
    with pytest.raises(SandboxFailed):
        await sandbox.exec("kill 1; sleep 100", cwd="/")
    with pytest.raises(SandboxFailed) as caught:
        await running
    assert caught.value.reason == "died"
    await everything_says(sandbox, "died")
    info = await sandbox.status()
    assert (info.status, info.ready, info.reason) == (SandboxStatus.FAILED, False, "died")
    await sandbox.delete()
    assert await unknown(client, "dying")


async def test_a_command_that_takes_too_much_memory_is_told_so(
    cluster: Cluster, client: AsyncSandboxClient
) -> None:
    sandbox = await client.create_sandbox(cluster.images.full, **SMALL)
    result = await sandbox.exec(["python3", "-c", "x = bytearray(1 << 30)"], cwd="/")
    assert (result.exit_code, result.oom_killed, result.error) == (-9, True, "out of memory")
    assert (await sandbox.exec("echo alive", cwd="/")).stdout == "alive\n"
    await sandbox.delete()


async def test_what_finds_no_node_says_so_and_fails_in_time(
    cluster: Cluster, service: Service, client: AsyncSandboxClient
) -> None:
    sandbox = await client.create_sandbox(
        cluster.images.bare, wait_ready=False, timeout=3, cpu="100000", memory="64Mi"
    )
    await eventually(lambda: _has(sandbox, SandboxStatus.UNSCHEDULABLE))
    record = await waited(service, sandbox.sandbox_id)
    assert (record["status"], record["reason"]) == ("failed", "start_timeout")
    assert "nodes" in record["status_message"], "what it waited for"
    await sandbox.delete()


async def test_one_that_nobody_uses_goes_and_one_in_use_stays(
    cluster: Cluster, namespace: str, client: AsyncSandboxClient
) -> None:
    left, used = await asyncio.gather(
        *(client.create_sandbox(cluster.images.bare, ttl_seconds=2, **SMALL) for _ in range(2))
    )
    working = asyncio.create_task(used.exec("sleep 6", cwd="/"))
    names = {sandbox.sandbox_id: f"sandbox-{sandbox.sandbox_id}" for sandbox in (left, used)}

    async def gone(sandbox: AsyncSandbox) -> bool:
        """Asked of the cluster: a question to the service would be a sign of life."""
        there = await asyncio.to_thread(cluster.sandboxes, namespace)
        return names[sandbox.sandbox_id] not in there

    await eventually(lambda: gone(left))
    assert (await working).exit_code == 0
    await eventually(lambda: gone(used))


async def test_a_pod_that_somebody_else_deletes_ends_what_runs_in_it(
    cluster: Cluster, namespace: str, client: AsyncSandboxClient
) -> None:
    sandbox = await client.create_sandbox(cluster.images.bare, sandbox_id="taken", **SMALL)
    running = asyncio.create_task(sandbox.exec("sleep 100", cwd="/"))
    await eventually(lambda: _sees(sandbox, "sleep 100"))
    cluster.kubectl("delete", "pod", "sandbox-taken", "-n", namespace, "--grace-period=0", "--force")
    with pytest.raises((SandboxNotFound, SandboxFailed)):
        await running
    assert await unknown(client, "taken")


async def test_resources_are_the_nodes_and_the_pods(cluster: Cluster, service: Service) -> None:
    async with service.client() as client:
        sandbox = await client.create_sandbox(cluster.images.bare, wait_ready=False, **SMALL)
        document = await client.resources()
        (pod,) = document.sandbox_pods
        assert (pod.name, pod.cpu_request) == (f"sandbox-{sandbox.sandbox_id}", 0.01)
        assert document.nodes
        assert document.total_allocatable.cpu > 0
        await sandbox.delete()


async def _sees(sandbox: AsyncSandbox, command: str) -> bool:
    """Whether a process of the sandbox has this command line."""
    return command in (await sandbox.exec("ps | grep -v grep", cwd="/")).stdout


async def _has(sandbox: AsyncSandbox, status: SandboxStatus) -> bool:
    return (await sandbox.status()).status is status

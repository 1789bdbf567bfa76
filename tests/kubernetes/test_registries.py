"""What a real kubelet and container runtime make of a registry that fails, and what we make of that."""

import asyncio
import hashlib
import io
import json
import os
import shutil
import tarfile
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from orchard.injector.client import AsyncSandboxClient
from orchard.injector.errors import SandboxRefused, SandboxUnavailable
from orchard.injector.kubernetes.failing_registries import PLACES
from orchard.schemas.outcomes import AbortCause
from orchard.workers.episode.sandboxes import SandboxFactory, SandboxSettings, cause_of
from tests.injector import registry as registries
from tests.injector.registry import Registry
from tests.kubernetes.conftest import Cluster, Service, new_namespace, serving

SETTINGS = {
    "cpu_request_share": 0.02,
    "memory_request_share": 0.05,
    "ephemeral_storage_request": "1Mi",
    "missing_after": 30,
}
AWAY = 25.0
"""Seconds that a registry fails."""
PROBES = 2
"""Sandboxes that ask again and of which none of those before has been ended yet."""
CROWD = 10
ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine]


@pytest.fixture
def registry() -> Iterator[Registry]:
    """One of this machine, which container runtimes ask without TLS."""
    with Registry().serving() as running:
        running.login = ""
        yield running


@pytest.fixture(scope="module")
def service(
    cluster: Cluster, agent_secret: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Service]:
    place = tmp_path_factory.mktemp("registries")
    with (
        new_namespace(cluster) as namespace,
        serving(cluster, namespace, agent_secret, place, settings=SETTINGS) as service,
    ):
        yield service


@pytest.fixture
async def client(service: Service) -> AsyncIterator[AsyncSandboxClient]:
    async with service.client(retry_seconds=5.0) as client:
        yield client


def push(registry: Registry, tag: str) -> None:
    """An image with busybox alone, of a layer of its own."""
    busybox = Path(str(shutil.which("busybox"))).read_bytes()
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for name, data in (("bin/sh", busybox), ("tag", tag.encode())):
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(data), 0o755
            tar.addfile(member, io.BytesIO(data))
    manifest = registry.push(tag, file.getvalue(), os="linux", architecture=ARCHITECTURE)
    manifest["config"]["mediaType"] = "application/vnd.oci.image.config.v1+json"
    manifest["layers"][0]["mediaType"] = "application/vnd.oci.image.layer.v1.tar+gzip"
    registry.put(tag, manifest)


def factory(client: AsyncSandboxClient, said: list[Any]) -> SandboxFactory:
    """Of a worker that may try once."""

    async def publish(event: msgspec.Struct) -> None:
        said.append(event)

    key = hashlib.sha256(os.urandom(8)).hexdigest()
    return SandboxFactory(client, SandboxSettings(creation_tries=1), publish, key=key, labels={})


async def test_an_image_that_is_away_for_25_seconds_aborts_nothing(
    client: AsyncSandboxClient, registry: Registry
) -> None:
    """Whether the registry has not got it yet, or says that it is asked too much; few ask it then."""
    tags = [f"busy-{number}" for number in range(CROWD)]
    for tag in tags:
        push(registry, tag)
        registry.faults[tag] = [registries.status(429)] * 10_000

    async def asking() -> int:
        return sum(":busy-" in one.image and one.status == "pending" for one in await client.list_sandboxes())

    async def back() -> None:
        await asyncio.sleep(AWAY)
        push(registry, "late")
        async with asyncio.timeout(60):
            while await asking() > PLACES + PROBES:
                await asyncio.sleep(0.2)
        registry.faults.clear()

    async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:
        group.create_task(back())

        async def opened(tag: str) -> None:
            image = f"{registry.address}/tools/x:{tag}"
            machine = await stack.enter_async_context(
                factory(client, []).open(image, purpose="test", cpu="500m", memory="64Mi", timeout=280)
            )
            assert (await machine.run("echo here", timeout=60, cwd="/")).output == "here\n"

        for tag in (*tags, "late"):
            group.create_task(opened(tag))


async def test_an_image_that_its_registry_does_not_know_is_missing(
    cluster: Cluster, client: AsyncSandboxClient, registry: Registry
) -> None:
    """After the second look; what waits for it says so meanwhile."""
    image = f"{registry.address}/tools/none:1"
    sandbox = await client.create_sandbox(image, wait_ready=False, cpu="500m", memory="64Mi", timeout=280)
    async with asyncio.timeout(60):
        while (info := await sandbox.status()).reason != "image_unavailable":
            await asyncio.sleep(0.2)
    assert (info.status, "not found" in info.status_message) == ("pending", True)
    async with await client.create_sandbox(
        cluster.images.bare, cpu="500m", memory="64Mi", timeout=60
    ) as other:
        assert (await other.exec("true", cwd="/")).exit_code == 0
    async with asyncio.timeout(200):
        while (info := await sandbox.status()).status != "failed":
            await asyncio.sleep(0.5)
    assert (info.reason, image in info.status_message) == ("image_missing", True)
    assert registry.asked("manifests", "1") >= 2, "it was asked again"
    await sandbox.delete()


async def test_a_quota_that_is_used_up_is_waited_for_and_a_limit_is_a_refusal(
    cluster: Cluster, client: AsyncSandboxClient
) -> None:
    """Both are a 403 of the API server."""
    sandbox = await client.create_sandbox(cluster.images.bare, cpu="500m", memory="64Mi", timeout=60)
    namespace = (await sandbox.status()).namespace
    limits = ("-n", namespace)
    cluster.kubectl("create", "quota", "few", "--hard=pods=1", *limits)
    with pytest.raises(SandboxUnavailable) as full:
        await client.create_sandbox(cluster.images.bare, cpu="500m", memory="64Mi", timeout=60)
    assert (full.value.reason, cause_of(full.value)) == ("quota_exceeded", AbortCause.SANDBOX_UNAVAILABLE)

    async def freed() -> None:
        await asyncio.sleep(8.0)
        await sandbox.delete()

    freeing = asyncio.create_task(freed())
    said: list[Any] = []
    async with factory(client, said).open(
        cluster.images.bare, purpose="test", cpu="500m", memory="64Mi", timeout=120
    ) as machine:
        assert (await machine.run("true", timeout=60, cwd="/")).returncode == 0
    await freeing
    assert {one.cause for one in said if hasattr(one, "cause")} <= {AbortCause.SANDBOX_UNAVAILABLE}
    cluster.kubectl("delete", "quota", "few", *limits)

    most = {"limits": [{"type": "Container", "max": {"memory": "1Gi"}}]}
    limit = {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "small"}, "spec": most}
    cluster.kubectl("apply", *limits, "-f", "-", given=json.dumps(limit))
    for _ in range(2):
        with pytest.raises(SandboxRefused, match="maximum memory usage") as refused:
            await client.create_sandbox(cluster.images.bare, cpu="500m", memory="2Gi", timeout=60)
    assert "said before" in str(refused.value)
    cluster.kubectl("delete", "limitrange", "small", *limits)

"""On a real node: a limit of sandboxes, images that are pulled ahead, and warm Pods that follow the queue."""

import asyncio
from collections.abc import Callable
from typing import Any

from orchard.injector.client import AsyncSandbox
from orchard.schemas.sandboxes import PreparedImages, SandboxStatus
from tests.kubernetes.conftest import Cluster, Manifest, Service

SIZES = {"cpu_request_share": 0.02, "memory_request_share": 0.1, "ephemeral_storage_request": "1Mi"}
LIMITS = {"cpu": "500m", "memory": "128Mi"}
SMALL: dict[str, Any] = {**LIMITS, "timeout": 60}
DEADLINE = 60.0

Start = Callable[..., Service]


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE):
        while not await asyncio.to_thread(holds):
            await asyncio.sleep(0.2)


async def has(sandbox: AsyncSandbox, status: SandboxStatus) -> None:
    async with asyncio.timeout(DEADLINE):
        while (info := await sandbox.status()).status is not status:
            assert info.status is not SandboxStatus.FAILED, info
            await asyncio.sleep(0.1)


def is_ready(pod: Manifest) -> bool:
    return any(one["type"] == "Ready" and one["status"] == "True" for one in pod["status"]["conditions"])


async def test_a_node_has_no_more_sandboxes_than_it_may_and_the_next_waits_for_its_slot(
    cluster: Cluster, namespace: str, orchestrator: Start
) -> None:
    service = orchestrator(**SIZES, per_node=2)
    async with service.client(timeout=DEADLINE) as client:
        two = [await client.create_sandbox(cluster.images.bare, **SMALL) for _ in range(2)]
        third = await client.create_sandbox(cluster.images.bare, wait_ready=False, **SMALL)
        await has(third, SandboxStatus.UNSCHEDULABLE)
        assert "anti-affinity" in (await third.status()).status_message
        slots = {
            pod["metadata"]["name"]: pod["metadata"]["labels"]["orchard/slot"]
            for pod in cluster.get("pods", namespace)
        }
        before, other = sorted(
            two, key=lambda one: slots[f"sandbox-{one.sandbox_id}"] != slots[f"sandbox-{third.sandbox_id}"]
        )
        await before.delete()
        await has(third, SandboxStatus.READY)
        assert (await other.exec("echo fine", cwd="/")).stdout == "fine\n"


async def test_warm_pods_come_with_demand_give_way_and_go_without_it(
    cluster: Cluster, namespace: str, orchestrator: Start
) -> None:
    pools = {"*": {"count": 0, "most": 2, **LIMITS}}
    service = orchestrator(**SIZES, per_node=2, reconcile_interval=0.5, warm=pools)
    image = cluster.images.bare

    def warm() -> list[Manifest]:
        return [pod for pod in cluster.get("pods", namespace) if "orchard/warm" in pod["metadata"]["labels"]]

    async with service.client(timeout=DEADLINE) as client:
        await client.tell_demand({image: 9})
        await until(lambda: len([pod for pod in warm() if is_ready(pod)]) == 2)
        other = await client.create_sandbox(image, cpu="400m", memory="100Mi", timeout=60)
        left = {pod["metadata"]["name"] for pod in warm() if is_ready(pod)}
        assert len(left) == 1, "it fits no pool, and one warm Pod gave way"
        claimed = await client.create_sandbox(image, **SMALL)
        assert {(await claimed.status()).pod_name} == left
        await client.tell_demand({})
        await claimed.delete()
        await other.delete()
        await until(lambda: warm() == [])


async def test_images_are_pulled_ahead_and_a_missing_one_is_named(
    cluster: Cluster, namespace: str, orchestrator: Start
) -> None:
    service = orchestrator(**SIZES, image_pull_policy="Never")
    images = [cluster.images.bare, "docker.io/local/none:1", cluster.images.full]
    async with service.client(timeout=DEADLINE) as client, asyncio.timeout(DEADLINE):
        while not (told := await client.prepare_images(images)).done:
            await asyncio.sleep(0.2)
    assert isinstance(told, PreparedImages)
    assert (told.nodes, told.skipped) == (1, 0)
    found = {image.image: (image.pulled, image.reason) for image in told.images}
    assert found == {images[0]: (1, ""), images[1]: (0, "image_missing"), images[2]: (1, "")}
    await until(lambda: cluster.get("pods", namespace) == [])


async def test_what_the_queue_needs_is_pulled_ahead_without_a_command(
    cluster: Cluster, namespace: str, orchestrator: Start
) -> None:
    service = orchestrator(**SIZES, image_pull_policy="Never", reconcile_interval=0.5, prepull_queue=True)
    images = [cluster.images.bare, "docker.io/local/none:1"]
    seen: list[Manifest] = []

    def began() -> bool:
        seen.extend(cluster.get("pods", namespace))
        return bool(seen)

    async with service.client(timeout=DEADLINE) as client:
        await client.tell_demand({images[0]: 9, images[1]: 1})
        await until(began)
        assert [box["image"] for box in seen[0]["spec"]["containers"]] == images
        await until(lambda: cluster.get("pods", namespace) == [])

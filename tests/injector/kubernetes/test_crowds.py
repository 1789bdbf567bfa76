"""Thousands of creations at once: what is there already goes first, and nobody reads more than needed."""

import asyncio
import time
from contextlib import suppress

import pytest
from aiohttp.test_utils import TestServer

from orchard.injector.kubernetes import key_exchange, pod_metadata, policies
from orchard.injector.kubernetes.api import ClusterApi, Gate
from orchard.injector.kubernetes.backend import KubernetesBackend
from orchard.injector.kubernetes.objects import Pod
from orchard.injector.kubernetes.settings import KubernetesSettings
from tests.injector.kubernetes.api_server import PODS, ApiServer
from tests.injector.kubernetes.conftest import born, pod, running
from tests.injector.kubernetes.test_key_exchange import SECRET, Side, agent

__all__ = ["agent"]

AT_ONCE = 4
"""Writes of the line that `api_of` makes."""


async def begun(server: ApiServer, requests: int) -> None:
    """Once the server has so many."""
    async with asyncio.timeout(20):
        while len(server.requests) < requests:
            await asyncio.sleep(0)


async def test_what_is_there_goes_before_what_is_new(
    api: ClusterApi, server: ApiServer, settings: KubernetesSettings
) -> None:
    """Behind a crowd, leases would run out, agents wait for their keys, and sandboxes for their end."""
    here = server.pods["sandbox-a"] = pod("sandbox-a", birth=born(block_network=False), **running())
    server.writing.clear()
    body = {"metadata": {"labels": {}, "annotations": {}}, "spec": {"containers": []}}
    crowd = [
        asyncio.create_task(api.create(Pod, PODS, {**body, "metadata": {"name": f"new-{number}"}}))
        for number in range(100)
    ]
    await begun(server, AT_ONCE)
    urgent = [
        asyncio.create_task(api.patch(Pod, f"{PODS}/sandbox-a", {"metadata": {"annotations": {"a": "b"}}})),
        asyncio.create_task(policies.ensure(api, here, settings)),
        asyncio.create_task(api.delete(f"{PODS}/gone", {})),
    ]
    await asyncio.sleep(0)
    server.writing.set()
    await asyncio.gather(*crowd)
    with suppress(Exception):  # the server knows nothing but Pods
        await asyncio.gather(*urgent)

    policy = f"POST {policies.path('sandboxes')}"
    first = server.requests[: len(crowd) // 2]  # those under way together may arrive in any order
    assert {f"PATCH {PODS}/sandbox-a", policy, f"DELETE {PODS}/gone"} <= set(first)


async def test_who_gives_up_waiting_lets_others_through() -> None:
    gate = Gate(1)

    async def through(urgent: bool) -> None:
        async with gate.through(urgent):
            await asyncio.sleep(0)

    async with gate.through(urgent=False):
        waiting = [asyncio.create_task(through(urgent)) for urgent in (False, True, False)]
        await asyncio.sleep(0)
        waiting[1].cancel()
    await asyncio.sleep(0)
    waiting[0].cancel()  # whose turn it was
    await asyncio.wait(waiting)
    async with asyncio.timeout(5):
        await through(urgent=False)


async def test_a_mark_is_made_when_it_can_be_written(
    api: ClusterApi, server: ApiServer, agent: TestServer
) -> None:
    """Made earlier, it is too old when its turn comes: nothing is sent after it, and all begins anew."""
    for number in range(50):
        name = f"sandbox-{number}"
        birth = born(at=time.time(), timeout=60)
        server.pods[name] = pod(name, birth=birth, version=5, **running(podIP="127.0.0.1"))
    server.version = 5
    server.writing.clear()
    side = Side(api, agent.port or 0, "one", concurrent_writes=AT_ONCE)
    settling = asyncio.create_task(side.settles())
    await begun(server, 1 + AT_ONCE)
    for _ in range(100):  # whoever makes a mark now, makes it too early
        await asyncio.sleep(0)
    released = time.time()
    server.writing.set()
    await settling

    made = [patch["metadata"]["annotations"].get(pod_metadata.INTRODUCING) for patch in server.patches]
    times = [float(mark.partition(" ")[0]) for mark in made if mark is not None]
    assert len(times) == 50, "one for each"
    assert sum(at < released - 0.001 for at in times) <= AT_ONCE
    await side.close()


async def test_to_be_healthy_nobody_reads_all_pods(
    api: ClusterApi, server: ApiServer, settings: KubernetesSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kubelets ask each replica every few seconds; with 10,000 sandboxes a list of them has 60 MB."""

    async def connected(*_: object) -> ClusterApi:
        return api

    monkeypatch.setattr(ClusterApi, "connect", connected)
    for number in range(200):
        server.pods[f"sandbox-{number}"] = pod(f"sandbox-{number}")
    backend = KubernetesBackend(settings, SECRET, "one")
    await backend.open()
    try:
        await backend.health()
        before = server.listed
        assert (await backend.health()).status == "healthy"
        assert server.listed - before <= 1
    finally:
        await backend.close()


async def test_others_wait_for_the_maker_as_long_as_answers_take(
    api: ClusterApi, server: ApiServer, agent: TestServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each that does not costs two requests for each sandbox, and makes the others slower."""
    monkeypatch.setattr(key_exchange, "DEFERENCE", (0.0, 0.0))
    name = "sandbox-a"
    server.pods[name] = pod(
        name, birth=born(at=time.time(), timeout=60), version=5, **running(podIP="127.0.0.1")
    )
    server.version = 5
    server.writing.clear()
    slow = asyncio.create_task(api.delete(f"{PODS}/gone", {}))  # is not answered yet
    await begun(server, 1)
    other, maker = (Side(api, agent.port or 0, who) for who in ("other", "one"))
    other.cache.start()
    await other.cache.synced(20)
    other.introductions.hurry(server.pods[name])
    for _ in range(100):
        await asyncio.sleep(0)
    assert len(server.requests) == 2, "the list, and no mark"
    await other.close()

    settling = asyncio.create_task(maker.settles())
    await begun(server, 4)
    server.writing.set()
    await asyncio.gather(slow, settling)
    made = [patch["metadata"]["annotations"] for patch in server.patches]
    assert [next(iter(marks_)) for marks_ in made] == [pod_metadata.INTRODUCING, pod_metadata.INTRODUCED]
    assert made[0][pod_metadata.INTRODUCING].endswith(" one")
    await maker.close()

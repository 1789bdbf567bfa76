"""A sandbox's last use is known without comparing the clocks of two machines, and across breaks."""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from aiohttp import web

from orchard.injector.kubernetes import pod_metadata
from orchard.injector.kubernetes.activity import Activity, IdleTimes
from orchard.injector.kubernetes.api import ClusterApi
from orchard.injector.kubernetes.cache import PodCache
from orchard.injector.kubernetes.leadership import Leadership
from orchard.injector.kubernetes.maintenance import Maintenance
from orchard.injector.kubernetes.objects import Pod
from orchard.injector.kubernetes.settings import KubernetesSettings
from tests.injector.kubernetes.api_server import PODS, ApiServer, api_of, event, refusal
from tests.injector.kubernetes.conftest import born, pod, running

DEADLINE = 10.0
DELETED = f"DELETE {PODS}/sandbox-a"


def used(at: float, *, ttl: float = 60.0, version: int = 5, name: str = "sandbox-a") -> Pod:
    """A ready sandbox with this time of last use."""
    annotations = {
        pod_metadata.TOUCHED: pod_metadata.stamp(at),
        pod_metadata.INTRODUCED: pod_metadata.stamp(at),
    }
    birth = born(time.time(), ttl_seconds=ttl)
    return pod(name, birth=birth, annotations=annotations, version=version, **running())


@pytest.fixture
async def cache(api: ClusterApi) -> AsyncIterator[PodCache]:
    cache = PodCache(api, "sandboxes")
    yield cache
    await cache.close()


async def synced(cache: PodCache) -> PodCache:
    cache.start()
    await cache.synced(DEADLINE)
    return cache


async def eventually(cache: PodCache, sandbox_id: str, holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE):
        while not holds():
            await cache.changed(sandbox_id, None)


class TestIdleTimes:
    def test_it_counts_since_a_value_was_first_seen(self) -> None:
        idle = IdleTimes()
        assert idle.at(100, [used(1)], led_since=7) == {"uid-of-sandbox-a": 0}
        assert idle.at(130, [used(1)], led_since=7) == {"uid-of-sandbox-a": 30}
        assert idle.at(140, [used(2)], led_since=7) == {"uid-of-sandbox-a": 0}
        assert idle.at(150, [used(2), used(9, name="sandbox-b")], led_since=7) == {
            "uid-of-sandbox-a": 10,
            "uid-of-sandbox-b": 0,
        }

    def test_an_older_time_is_a_use_as_well(self) -> None:
        idle = IdleTimes()
        idle.at(100, [used(1000)], led_since=7)
        assert idle.at(130, [used(5)], led_since=7) == {"uid-of-sandbox-a": 0}

    def test_what_was_seen_before_this_leadership_does_not_count(self) -> None:
        idle = IdleTimes()
        idle.at(100, [used(1)], led_since=7)
        assert idle.at(900, [used(1)], led_since=890) == {"uid-of-sandbox-a": 0}
        assert idle.at(910, [used(1)], led_since=890) == {"uid-of-sandbox-a": 10}

    def test_a_pod_of_the_same_name_begins_anew(self) -> None:
        idle = IdleTimes()
        idle.at(100, [used(1)], led_since=7)
        assert idle.at(130, [], led_since=7) == {}
        assert idle.at(140, [used(1)], led_since=7) == {"uid-of-sandbox-a": 0}


class TestUse:
    async def test_another_machines_clock_holds_up_no_sign_of_life(
        self, api: ClusterApi, server: ApiServer, cache: PodCache
    ) -> None:
        server.pods["sandbox-a"] = used(time.time() + 3600)
        server.version = 10
        activity = Activity(api, cache)
        await synced(cache)
        found = cache.sandbox("a")
        assert found is not None
        with activity.request(found):
            await eventually(cache, "a", lambda: cache.sandbox("a") is not found)
        (patch,) = server.patches
        assert float(patch["metadata"]["annotations"][pod_metadata.TOUCHED]) < time.time() + 1
        now = cache.sandbox("a")
        assert now is not None
        with activity.request(now):
            pass
        await activity.close()
        assert len(server.patches) == 1, "once a quarter of its time to live"

    async def test_what_another_orchestrator_wrote_is_not_written_again(
        self, api: ClusterApi, server: ApiServer, cache: PodCache
    ) -> None:
        server.pods["sandbox-a"] = used(1.0)
        server.version = 10
        activity = Activity(api, cache)
        await synced(cache)
        server.lines.put_nowait(event("MODIFIED", used(2.0, version=11)))
        server.lines.put_nowait(event("ADDED", used(3.0, version=12, name="sandbox-b")))
        await eventually(cache, "b", lambda: cache.sandbox("b") is not None)
        for name in "ab":
            found = cache.sandbox(name)
            assert found is not None
            with activity.request(found):
                pass
        await activity.close()
        assert server.patches == []


class TestFollowing:
    async def test_the_clock_stands_while_the_watch_is_broken(
        self, server: ApiServer, cache: PodCache
    ) -> None:
        server.pods["sandbox-a"] = used(1.0)
        server.version = 10
        await synced(cache)
        server.lines.put_nowait(event("MODIFIED", used(2.0, version=11)))
        await eventually(cache, "a", lambda: cache.sandbox("a").version == 11)  # type: ignore[union-attr]
        before = cache.followed
        server.watchable.clear()
        server.lines.put_nowait(None)
        await server.watch_waits.wait()
        stopped = cache.followed
        assert cache.followed == stopped >= before
        server.watchable.set()
        server.lines.put_nowait(event("MODIFIED", used(3.0, version=12)))
        await eventually(cache, "a", lambda: cache.sandbox("a").version == 12)  # type: ignore[union-attr]
        assert cache.followed > stopped


class LeaseServer(ApiServer):
    """Has one lease."""

    def __init__(self) -> None:
        super().__init__()
        self.lease: dict[str, Any] = {}

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if request.method in ("POST", "PUT"):
            self.version += 1
            self.lease = await request.json()
            self.lease["metadata"]["resourceVersion"] = str(self.version)
        return web.json_response(self.lease) if self.lease else refusal(404)


async def test_leadership_begins_anew_after_it_was_not_sure() -> None:
    async with api_of(LeaseServer()) as api:
        leadership = Leadership(api, "sandboxes", "me", 15.0)
        await leadership._step()
        first = leadership.since
        await leadership._step()
        assert (leadership.leading, leadership.since) == (True, first)
        leadership._until = 0.0  # no renewal for too long
        await leadership._step()
        assert leadership.leading and leadership.since > first


class TestLeader:
    """Rounds of the leader's maintenance."""

    @pytest.fixture
    def leader(self, api: ClusterApi, cache: PodCache, settings: KubernetesSettings) -> Maintenance:
        leadership = Leadership(api, "sandboxes", "me", 15.0)
        leadership.since, leadership._until = 1.0, math.inf
        made = Maintenance(api, cache, leadership, settings, "print")
        made._swept = math.inf  # no other objects here
        return made

    async def test_a_clock_ahead_of_the_others_ends_no_sandbox(
        self, server: ApiServer, cache: PodCache, leader: Maintenance, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        server.pods["sandbox-a"] = used(time.time())
        await synced(cache)
        ahead = time.time() + 3600
        monkeypatch.setattr(time, "time", lambda: ahead)
        await leader._round()
        assert DELETED not in server.requests

    async def test_a_time_that_nobody_could_write_ends_no_sandbox(
        self, server: ApiServer, cache: PodCache, leader: Maintenance
    ) -> None:
        server.pods["sandbox-a"] = used(time.time() - 3600)
        await synced(cache)
        await leader._round()
        assert DELETED not in server.requests

    async def test_one_that_nobody_uses_is_deleted(
        self, server: ApiServer, cache: PodCache, leader: Maintenance
    ) -> None:
        server.pods["sandbox-a"] = used(time.time(), ttl=0.001)
        server.version = 10
        await synced(cache)
        server.lines.put_nowait(event("MODIFIED", used(time.time(), ttl=0.001, version=11)))
        await eventually(cache, "a", lambda: cache.sandbox("a").version == 11)  # type: ignore[union-attr]
        while DELETED not in server.requests:
            await leader._round()

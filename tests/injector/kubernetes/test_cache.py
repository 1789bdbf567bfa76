"""The cache of Pods follows its API server through every kind of break, and wakes whoever waits."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from orchard.injector.kubernetes import cache as cache_module
from orchard.injector.kubernetes.api import ClusterApi
from orchard.injector.kubernetes.cache import PodCache
from tests.injector.kubernetes.api_server import ApiServer, bookmark, error, event
from tests.injector.kubernetes.conftest import born, pod

DEADLINE = 10.0


@pytest.fixture
async def cache(api: ClusterApi, server: ApiServer) -> AsyncIterator[PodCache]:
    """Synced, with the Pod of sandbox `a` at version 5."""
    server.pods["sandbox-a"] = pod("sandbox-a", birth=born(), version=5)
    server.version = 10
    cache = PodCache(api, "sandboxes")
    cache.start()
    await cache.synced(DEADLINE)
    yield cache
    await cache.close()


async def eventually(cache: PodCache, sandbox_id: str, holds: Callable[[], bool]) -> None:
    """Woken by changes of one sandbox only: a wake-up that is lost is a test that fails."""
    async with asyncio.timeout(DEADLINE):
        while not holds():
            await cache.changed(sandbox_id, None)


async def test_events_are_followed(cache: PodCache, server: ApiServer) -> None:
    server.lines.put_nowait(event("ADDED", pod("sandbox-b", birth=born(), version=11)))
    await eventually(cache, "b", lambda: cache.sandbox("b") is not None)
    server.lines.put_nowait(event("MODIFIED", pod("sandbox-b", birth=born(), version=12, phase="Running")))
    await eventually(cache, "b", lambda: cache.named("sandbox-b").status.phase == "Running")  # type: ignore[union-attr]
    server.lines.put_nowait(event("DELETED", pod("sandbox-b", birth=born(), version=13)))
    await eventually(cache, "b", lambda: cache.sandbox("b") is None)
    assert [pod.name for pod in cache] == ["sandbox-a"]


async def test_after_a_break_it_goes_on_where_it_was(cache: PodCache, server: ApiServer) -> None:
    whole = event("ADDED", pod("sandbox-c", birth=born(), version=12))
    server.lines.put_nowait(event("ADDED", pod("sandbox-b", birth=born(), version=11)))
    server.lines.put_nowait(whole[:50])
    server.lines.put_nowait(None)
    server.lines.put_nowait(whole)
    await eventually(cache, "c", lambda: cache.sandbox("c") is not None)
    assert server.watched_from == ["10", "11"]
    assert server.lists == 1


async def test_bookmarks_spare_what_is_old(cache: PodCache, server: ApiServer) -> None:
    server.lines.put_nowait(bookmark(500))
    server.lines.put_nowait(None)
    server.lines.put_nowait(event("ADDED", pod("sandbox-b", birth=born(), version=501)))
    await eventually(cache, "b", lambda: cache.sandbox("b") is not None)
    assert server.watched_from == ["10", "500"]


async def test_what_went_while_the_server_forgot_wakes_its_waiters(
    cache: PodCache, server: ApiServer
) -> None:
    server.pods = {"sandbox-b": pod("sandbox-b", birth=born(), version=700)}
    server.version = 800
    gone = asyncio.create_task(eventually(cache, "a", lambda: cache.sandbox("a") is None))
    came = asyncio.create_task(eventually(cache, "b", lambda: cache.sandbox("b") is not None))
    server.lines.put_nowait(error(410, "Expired"))
    await asyncio.gather(gone, came)
    server.lines.put_nowait(event("ADDED", pod("sandbox-c", birth=born(), version=801)))
    await eventually(cache, "c", lambda: cache.sandbox("c") is not None)
    assert (server.lists, server.watched_from) == (2, ["10", "800"])


async def test_a_line_that_says_nothing_is_given_up(
    api: ClusterApi, server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_module, "WATCH_SILENCE", 0.2)
    cache = PodCache(api, "sandboxes")
    cache.start()
    await cache.synced(DEADLINE)
    async with asyncio.timeout(DEADLINE):
        while len(server.watched_from) < 2:
            await asyncio.sleep(0.01)
    await cache.close()
    assert server.lists == 1


async def test_what_we_wrote_is_known_before_the_watch_tells(cache: PodCache, server: ApiServer) -> None:
    cache.learn(pod("sandbox-b", birth=born(), version=11))
    assert cache.sandbox("b") is not None
    server.version = 10  # a list that was made before
    server.lines.put_nowait(error(410, "Expired"))
    server.lines.put_nowait(event("MODIFIED", pod("sandbox-a", birth=born(), version=20, phase="Running")))
    await eventually(cache, "a", lambda: cache.named("sandbox-a").status.phase == "Running")  # type: ignore[union-attr]
    assert cache.sandbox("b") is not None


async def test_an_answer_that_the_watch_has_overtaken_brings_nothing_back(
    cache: PodCache, server: ApiServer
) -> None:
    made = pod("sandbox-b", birth=born(), version=11)
    server.lines.put_nowait(event("ADDED", made))
    server.lines.put_nowait(event("DELETED", pod("sandbox-b", birth=born(), version=12)))
    server.lines.put_nowait(event("MODIFIED", pod("sandbox-a", birth=born(), version=13, phase="Running")))
    await eventually(cache, "a", lambda: cache.named("sandbox-a").status.phase == "Running")  # type: ignore[union-attr]
    cache.learn(made)
    assert cache.sandbox("b") is None


async def test_a_claimed_pod_is_found_by_its_sandbox(cache: PodCache, server: ApiServer) -> None:
    server.lines.put_nowait(event("ADDED", pod("warm-1", version=11)))
    claimed = pod("warm-1", version=12, labels={"sandbox-id": "mine"})
    server.lines.put_nowait(event("MODIFIED", claimed))
    await eventually(cache, "mine", lambda: cache.sandbox("mine") is not None)
    found = cache.sandbox("mine")
    assert found is not None and found.name == "warm-1"


async def test_an_id_that_is_none_is_not_asked_for(cache: PodCache, server: ApiServer) -> None:
    server.requests.clear()
    assert await cache.look_up("../../secrets") is None
    assert server.requests == []


async def test_who_asks_for_a_pod_gets_what_the_watch_has_told_meanwhile(
    cache: PodCache, server: ApiServer
) -> None:
    """A caller that finds an older state waits for a change, which has come already."""
    server.pods["sandbox-b"] = pod("sandbox-b", birth=born(), version=11)
    server.lines.put_nowait(event("ADDED", server.pods["sandbox-b"]))
    server.lines.put_nowait(event("MODIFIED", pod("sandbox-b", birth=born(), version=12, phase="Running")))
    await eventually(cache, "b", lambda: (now := cache.sandbox("b")) is not None and now.version == 12)

    for found in (await cache.look_up("b"), await cache.refresh("sandbox-b")):
        assert found is not None and found.status.phase == "Running"

    server.lines.put_nowait(event("DELETED", pod("sandbox-b", birth=born(), version=13)))
    await eventually(cache, "b", lambda: cache.sandbox("b") is None)
    assert await cache.refresh("sandbox-b") is None

"""Records on its Pod when a sandbox was last used, and tells for how long that has not changed.

For a sandbox with `ttl_seconds` the time is written at most every quarter of that, so it may be a quarter too
old, which `DUE` allows for. Clocks of different machines are not compared: a written time is a value that
changes with every use, and each process counts by its own clock since when it has seen it (decision 153).
"""

import asyncio
import logging
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import aiohttp

from orchard.injector.errors import SandboxError
from orchard.injector.kubernetes import pod_metadata
from orchard.injector.kubernetes.api import ClusterApi
from orchard.injector.kubernetes.background_task import BackgroundTask
from orchard.injector.kubernetes.cache import PodCache
from orchard.injector.kubernetes.objects import Pod

SHARE = 0.25
"""Fraction of the time to live by which the written time may be late."""
DUE = 1 + SHARE
"""Multiple of the time to live after the written time, when a sandbox has expired."""
TICK = 1.0

log = logging.getLogger(__name__)


class Activity(BackgroundTask):
    """Tracks the use of one orchestrator's sandboxes."""

    def __init__(self, api: ClusterApi, cache: PodCache) -> None:
        self._api = api
        self._cache = cache
        self._under_way: dict[str, tuple[Pod, int]] = {}
        self._lines: list[tuple[Pod, aiohttp.ClientWebSocketResponse]] = []
        self._changed_at: dict[str, float] = {}
        """When the written time last changed, by the Pod's uid and the event loop's clock; missing if that is
        not known, as for Pods of before."""
        self._writing: dict[str, asyncio.Task[None]] = {}
        cache.listen(self._changed)

    async def close(self) -> None:
        """Stop; unfinished writes get a moment."""
        await super().close()
        writing = list(self._writing.values())
        if writing:
            _, late = await asyncio.wait(writing, timeout=TICK)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    @contextmanager
    def request(self, pod: Pod) -> Iterator[None]:
        """Track a request: its beginning, its end and the time between count as use. A context manager."""
        if pod_metadata.creation_record(pod).request.ttl_seconds is None:
            yield
            return
        _, others = self._under_way.get(pod.uid, (pod, 0))
        self._under_way[pod.uid] = (pod, others + 1)
        self._touch(pod)
        try:
            yield
        finally:
            _, together = self._under_way[pod.uid]
            if together > 1:
                self._under_way[pod.uid] = (pod, together - 1)
            else:
                del self._under_way[pod.uid]
            self._touch(pod)

    def hold(self, pod: Pod, line: aiohttp.ClientWebSocketResponse) -> None:
        """Count an open WebSocket as use."""
        self._lines.append((pod, line))

    async def _go(self) -> None:
        while True:
            await asyncio.sleep(TICK)
            self._lines = [(pod, line) for pod, line in self._lines if not line.closed]
            for pod in [*(pod for pod, _ in self._under_way.values()), *(pod for pod, _ in self._lines)]:
                self._touch(pod)

    def _touch(self, pod: Pod) -> None:
        ttl = pod_metadata.creation_record(pod).request.ttl_seconds
        if ttl is None or pod.uid in self._writing:
            return
        last = self._changed_at.get(pod.uid)
        if last is not None and asyncio.get_running_loop().time() - last < ttl * SHARE:
            return
        task = asyncio.get_running_loop().create_task(self._write(pod))
        self._writing[pod.uid] = task
        task.add_done_callback(lambda _: self._writing.pop(pod.uid))

    async def _write(self, pod: Pod) -> None:
        begun = asyncio.get_running_loop().time()
        stamp = pod_metadata.stamp(time.time())
        body = {"metadata": {"uid": pod.uid, "annotations": {pod_metadata.TOUCHED: stamp}}}
        try:
            self._cache.learn(await self._api.patch(Pod, f"{self._cache.path}/{pod.name}", body))
            self._changed_at[pod.uid] = begun
        except SandboxError as error:
            log.warning("a sign of life of %s could not be written: %s", pod.name, error.detail)

    def _changed(self, was: Pod | None, now: Pod | None) -> None:
        if was is not None and (now is None or now.uid != was.uid):
            self._changed_at.pop(was.uid, None)
            was = None
        if now is None or (was is not None and _touched(was) == _touched(now)):
            return
        if self._cache.is_synced:
            self._changed_at[now.uid] = asyncio.get_running_loop().time()
        else:  # a list says nothing of when it changed
            self._changed_at.pop(now.uid, None)


class IdleTimes:
    """For how long the leader has seen each Pod's written time unchanged."""

    def __init__(self) -> None:
        self._led_since = -1.0
        self._seen: dict[str, tuple[str | None, float]] = {}

    def at(self, clock: float, pods: Iterable[Pod], led_since: float) -> dict[str, float]:
        """Return the seconds by the Pod's uid.

        `clock` runs while the Pods are followed (`PodCache.followed`). What was seen before this leadership
        does not count: perhaps no orchestrator could write then.
        """
        known = self._seen if led_since == self._led_since else {}
        self._led_since = led_since
        self._seen = {}
        for pod in pods:
            value, since = known.get(pod.uid, (None, clock))
            self._seen[pod.uid] = (_touched(pod), since if value == _touched(pod) else clock)
        return {uid: clock - since for uid, (_, since) in self._seen.items()}


def _touched(pod: Pod) -> str | None:
    return pod.annotations.get(pod_metadata.TOUCHED)

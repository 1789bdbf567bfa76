"""Gives each new Pod's agent its key, before any command can run there.

The protocol is safe against orchestrators that die or stall at any point, and against a task that replaces
its agent:

1. A mark on the Pod, written only if nothing else was written since it was read, says that this orchestrator
   is about to send the key. Two orchestrators cannot both write it.
2. The key is sent. Another orchestrator may do both after TAKEOVER seconds; it is the same key.
3. A second mark says that the agent has it, written only if the first is unchanged. Only then may commands
   run.

So whoever sends a key knows that no command has run. An agent without a key in a Pod with the second mark is
an impostor: nobody sends it a key, and the sandbox fails.
"""

import asyncio
import logging
import random
import time
from typing import Any

from orchard.injector.agent_connection import AGENT_REPLACED
from orchard.injector.errors import SandboxError, SandboxFailed, SandboxUnavailable
from orchard.injector.kubernetes import pod_metadata, policies
from orchard.injector.kubernetes.agents import Agents
from orchard.injector.kubernetes.api import ClusterApi, passing_over
from orchard.injector.kubernetes.cache import PodCache
from orchard.injector.kubernetes.objects import Pod
from orchard.injector.kubernetes.settings import KubernetesSettings
from orchard.injector.kubernetes.status import judge

TAKEOVER = 20.0
"""Seconds after which another orchestrator may replace the first mark."""
SENDING = 8.0
"""Seconds after its mark within which an orchestrator sends the key: far below TAKEOVER."""
DEFERENCE = (0.5, 1.5)
"""Range of seconds that an orchestrator waits for the one that made the Pod, in addition to the next."""
ANSWERS = 4
"""Response times of the API server that it waits in addition: writing a mark takes that long under load,
and all other orchestrators would try, each with two more requests."""
PAUSE = 0.2

log = logging.getLogger(__name__)


class KeyExchange:
    """Watches the cache, and introduces agents that have started."""

    def __init__(
        self,
        api: ClusterApi,
        cache: PodCache,
        agents: Agents,
        settings: KubernetesSettings,
        identity: str,
    ) -> None:
        self._api = api
        self._cache = cache
        self._agents = agents
        self._settings = settings
        self._identity = identity
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._marking = asyncio.Semaphore(settings.concurrent_writes)
        """Bounds concurrent marks, so that the time in a mark is close to when it is written."""
        cache.listen(self._changed)

    async def close(self) -> None:
        """Stop; another orchestrator takes over."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def hurry(self, pod: Pod) -> None:
        """Introduce the Pod at once, because a client waits for it here."""
        self._consider(pod, 0.0)

    def _changed(self, _was: Pod | None, now: Pod | None) -> None:
        if now is not None:
            self._consider(now, 0.0 if self._ours(now) else random.uniform(*DEFERENCE))

    def _ours(self, pod: Pod) -> bool:
        return pod_metadata.claimed(pod) and pod_metadata.creation_record(pod).attempt.startswith(
            self._identity
        )

    def _consider(self, pod: Pod, delay: float) -> None:
        if pod.uid in self._tasks or not judge(pod, self._settings, time.time()).startable:
            return
        self._tasks[pod.uid] = asyncio.get_running_loop().create_task(self._logged(pod, delay))

    async def _logged(self, pod: Pod, delay: float) -> None:
        try:
            await asyncio.sleep(delay)
            if not self._ours(pod):
                await self._defer()
            await self._introduce(pod.name, pod.uid)
        except Exception:
            log.exception("Pod %s cannot be introduced", pod.name)
            await asyncio.sleep(PAUSE)
        finally:
            del self._tasks[pod.uid]
        now = self._cache.named(pod.name)
        if now is not None:
            self._consider(now, PAUSE)

    async def _defer(self) -> None:
        """Leave the Pod's maker the time that its mark takes, by the server's current response time."""
        loop = asyncio.get_running_loop()
        begun = loop.time()
        while (left := begun + ANSWERS * self._api.pace - loop.time()) > 0:
            await asyncio.sleep(left)

    async def _introduce(self, name: str, uid: str) -> None:
        pod = self._startable(name, uid)
        if pod is None:
            return
        wait = self._others_turn(pod)
        if wait > 0:
            await asyncio.sleep(wait)
            return
        try:
            async with self._marking:
                now = self._startable(name, uid)
                if now is None or self._others_turn(now) > 0:
                    return  # while we waited
                pod = now
                mark = f"{pod_metadata.stamp(time.time())} {self._identity}"
                marked = asyncio.get_running_loop().time()
                if not await self._write(pod, {pod_metadata.INTRODUCING: mark}):
                    return
            if pod_metadata.claimed(pod):
                await policies.ensure(self._api, pod, self._settings)
            if not await self._send(pod, marked + SENDING):
                return
            await self._confirm(name, uid, mark)
        except SandboxFailed as error:
            if error.reason != AGENT_REPLACED:
                raise
            current = await self._cache.refresh(name)
            if current is not None and (current.uid, current.address) == (uid, pod.address):
                await self._agents.fail(
                    current, pod_metadata.FailureRecord(reason=error.reason, message=error.detail)
                )
        except SandboxError as error:
            log.warning("Pod %s cannot be introduced yet: %s", name, error.detail)

    def _startable(self, name: str, uid: str) -> Pod | None:
        """Return the Pod if its agent responds and has no key."""
        pod = self._cache.named(name)
        if pod is None or pod.uid != uid or not judge(pod, self._settings, time.time()).startable:
            return None
        return pod

    def _others_turn(self, pod: Pod) -> float:
        """Seconds until this orchestrator may send the key; the mark has a time and its author."""
        made, _, who = pod.annotations.get(pod_metadata.INTRODUCING, "0 ").partition(" ")
        return 0.0 if who == self._identity else float(made) + TAKEOVER - time.time()

    async def _send(self, pod: Pod, deadline: float) -> bool:
        """Send the key until `deadline` (the event loop's time); returns whether the agent has it."""
        loop = asyncio.get_running_loop()
        while loop.time() < deadline:
            try:
                async with asyncio.timeout_at(deadline):
                    await self._agents.line(pod).introduce()
                return True
            except (SandboxUnavailable, TimeoutError) as error:
                log.info("the agent of Pod %s does not answer yet: %s", pod.name, error)
                await asyncio.sleep(PAUSE)
        return False

    async def _confirm(self, name: str, uid: str, mark: str) -> None:
        while True:
            pod = await self._cache.refresh(name)
            if pod is None or pod.uid != uid or pod.annotations.get(pod_metadata.INTRODUCING) != mark:
                return
            if await self._write(
                pod,
                {pod_metadata.INTRODUCED: f"{pod_metadata.stamp(time.time())} {self._agents.fingerprint}"},
            ):
                return

    async def _write(self, pod: Pod, annotations: dict[str, str]) -> bool:
        """Write annotations if the Pod has not changed; returns whether they were written."""
        metadata: dict[str, Any] = {
            "uid": pod.uid,
            "resourceVersion": pod.metadata.resource_version,
            "annotations": annotations,
        }
        with passing_over(404, 409):
            body = {"metadata": metadata}
            self._cache.learn(await self._api.patch(Pod, f"{self._cache.path}/{pod.name}", body))
            return True
        await self._cache.refresh(pod.name)
        return False

"""A cache of all sandbox Pods, kept current by one LIST and one WATCH, which wakes waiters.

It holds nothing but the cluster's state: after a break the watch resumes, and when the server has dropped
that version (410) everything is listed again; whatever changed or went meanwhile wakes its waiters too.
"""

import asyncio
import logging
import random
import re
from collections.abc import Callable, Iterator

import msgspec

from orchard.injector.errors import SandboxError, SandboxUnavailable
from orchard.injector.kubernetes import pod_metadata
from orchard.injector.kubernetes.api import PATIENCE, ClusterApi, passing_over, selector
from orchard.injector.kubernetes.background_task import BackgroundTask
from orchard.injector.kubernetes.objects import ApiStatus, Named, Pod, PodList, WatchEvent
from orchard.injector.kubernetes.refusals import ApiRefused
from orchard.schemas.sandboxes import SANDBOX_ID

PAGE = 500
WATCH_SECONDS = 60
"""Seconds after which the server ends a watch, which is then begun again."""
WATCH_SILENCE = 75.0
"""Seconds of silence after which a connection is dead: the watch would at least have been ended."""
BACKOFF = (0.1, 10.0)
"""Seconds before another attempt, at first and at most."""
STEADY = 1.0
"""Seconds after which a watch counts as working, so that the next one begins without back-off."""
PROMPTLY = 1
"""Seconds that a failed Pod may still run: the least that Kubernetes accepts."""
GONE = 410
"""Status of a watch whose version the server no longer has."""

Listener = Callable[[Pod | None, Pod | None], None]
"""Called with a Pod's old and new state; None: it does not exist."""

log = logging.getLogger(__name__)


class PodCache(BackgroundTask):
    """The Pods of one namespace that carry the label `app=sandbox`."""

    def __init__(self, api: ClusterApi, namespace: str) -> None:
        self.path = f"/api/v1/namespaces/{namespace}/pods"
        self._api = api
        self._pods: dict[str, Pod] = {}
        self._sandboxes: dict[str, set[str]] = {}
        """Names of Pods by sandbox id: more than one only for a moment."""
        self._waiters: dict[str, set[asyncio.Future[None]]] = {}
        self._listeners: list[Listener] = []
        self._version = 0
        self._lost = True
        """Whether a list is needed before the next watch."""
        self._synced = asyncio.Event()
        self._followed = 0.0
        self._watch_began: float | None = None

    def listen(self, listener: Listener) -> None:
        self._listeners.append(listener)

    async def synced(self, timeout: float) -> None:
        """Return once all Pods are known. Raises SandboxUnavailable after `timeout` seconds."""
        try:
            async with asyncio.timeout(timeout):
                await self._synced.wait()
        except TimeoutError as error:
            raise SandboxUnavailable(
                "the cluster's API server has not said yet which sandboxes there are",
                reason="api_unavailable",
            ) from error

    @property
    def is_synced(self) -> bool:
        """Whether all Pods are known, as they were a moment ago."""
        return self._synced.is_set() and not self._lost

    @property
    def followed(self) -> float:
        """Seconds for which changes were received: a clock that stands still while the watch is broken."""
        if self._watch_began is None:
            return self._followed
        return self._followed + asyncio.get_running_loop().time() - self._watch_began

    def __iter__(self) -> Iterator[Pod]:
        return iter(list(self._pods.values()))

    def named(self, name: str) -> Pod | None:
        return self._pods.get(name)

    def sandbox(self, sandbox_id: str) -> Pod | None:
        names = self._sandboxes.get(sandbox_id)
        if not names:
            return None
        # Two when one was deleted and its successor came first: the later one counts.
        return max((self._pods[name] for name in names), key=lambda pod: pod.created_at)

    async def changed(self, sandbox_id: str, timeout: float | None) -> None:
        """Return when anything about the sandbox has changed, or after `timeout` seconds.

        No change since the caller last looked is missed, because nothing is awaited in between.
        """
        waiter = asyncio.get_running_loop().create_future()
        waiters = self._waiters.setdefault(sandbox_id, set())
        waiters.add(waiter)
        try:
            async with asyncio.timeout(timeout):
                await waiter
        except TimeoutError:
            pass
        finally:
            waiters.discard(waiter)
            if not waiters and self._waiters.get(sandbox_id) is waiters:
                del self._waiters[sandbox_id]

    async def gone(self, name: str, uid: str, sandbox_id: str, timeout: float) -> bool:
        """Wait up to `timeout` seconds for the Pod to go; returns whether it has."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while (pod := self._pods.get(name)) is not None and pod.uid == uid:
            left = deadline - loop.time()
            if left <= 0:
                return False
            await self.changed(sandbox_id, left)
        return True

    async def refresh(self, name: str, patience: float = PATIENCE) -> Pod | None:
        """Fetch one Pod, because the watch may be behind. None: there is none.

        Raises SandboxUnavailable after `patience` seconds without a response.
        """
        with passing_over(404):
            return self.learn(await self._api.get(Pod, f"{self.path}/{name}", patience=patience))
        return None

    async def look_up(self, sandbox_id: str) -> Pod | None:
        """Fetch the Pod of a sandbox, whichever replica made it."""
        if re.fullmatch(SANDBOX_ID, sandbox_id) is None:
            return None
        pod = await self.refresh(pod_metadata.pod_name(sandbox_id))
        if pod is not None and pod_metadata.sandbox_id(pod) == sandbox_id:
            return pod
        params = {"labelSelector": selector({**pod_metadata.APP, pod_metadata.SANDBOX: sandbox_id})}
        found = await self._api.get(PodList, self.path, params)
        known = [now for pod in found.items if (now := self.learn(pod)) is not None]
        return max(known, key=lambda pod: pod.created_at, default=None)

    async def delete(self, pod: Pod) -> None:
        """Delete a Pod without grace; it may be gone already."""
        body = {"gracePeriodSeconds": 0, "preconditions": {"uid": pod.uid}}
        with passing_over(409):  # another Pod has its name by now
            await self._api.delete(f"{self.path}/{pod.name}", body)

    async def mark_failed(self, pod: Pod, failure: pod_metadata.FailureRecord) -> None:
        """Mark a sandbox as failed on its Pod, so that it stays failed whatever becomes of the Pod.

        What runs in the Pod ends; the Pod stays, so that it can be queried. The first mark wins.
        """
        if pod_metadata.failure(pod) is not None:
            return
        body = {
            "metadata": {"uid": pod.uid, "annotations": {pod_metadata.FAILED: pod_metadata.encoded(failure)}},
            "spec": {"activeDeadlineSeconds": PROMPTLY},
        }
        with passing_over(404, 409):  # gone, or another Pod of the same name
            self.learn(await self._api.patch(Pod, f"{self.path}/{pod.name}", body))

    def learn(self, pod: Pod) -> Pod | None:
        """Add a Pod from a response, unless the watch was faster.

        Returns the newest that is known of its name, or None if it is gone: who waits for a change of the
        response itself might wait for one that has come.
        """
        known = self._pods.get(pod.name)
        if pod.version > self._version and (known is None or pod.version > known.version):
            self._set(pod)
        return self._pods.get(pod.name)

    async def _go(self) -> None:
        loop = asyncio.get_running_loop()
        pause = BACKOFF[0]
        while True:
            begun = loop.time()
            try:
                if self._lost:
                    await self._list()
                await self._watch()
            except SandboxError as error:
                self._lost = self._lost or (isinstance(error, ApiRefused) and error.code == GONE)
                log.warning("following the Pods was interrupted: %s", error.detail)
            except Exception:  # whatever it is, sandboxes must not be blind for the rest of their lives
                self._lost = True
                log.exception("following the Pods was interrupted")
            pause = BACKOFF[0] if loop.time() - begun > STEADY else min(pause * 2, BACKOFF[1])
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))

    async def _list(self) -> None:
        found: dict[str, Pod] = {}
        params = {"labelSelector": selector(pod_metadata.APP), "limit": str(PAGE)}
        while True:
            page = await self._api.get(PodList, self.path, params)
            found.update((pod.name, pod) for pod in page.items)
            if not page.metadata.next:
                break
            params["continue"] = page.metadata.next
        self._version = int(page.metadata.resource_version)
        for pod in list(self._pods.values()):
            # What we learned after the list was made is not in it.
            if pod.name not in found and pod.version <= self._version:
                self._drop(pod.name)
        for pod in found.values():
            known = self._pods.get(pod.name)
            if known is None or pod.version > known.version:
                self._set(pod)
        self._lost = False
        self._synced.set()

    async def _watch(self) -> None:
        params = {
            "labelSelector": selector(pod_metadata.APP),
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": str(self._version),
            "timeoutSeconds": str(WATCH_SECONDS),
        }
        async with self._api.watch(self.path, params, WATCH_SILENCE) as lines:
            self._watch_began = asyncio.get_running_loop().time()
            try:
                async for line in lines:
                    self._heed(msgspec.json.decode(line, type=WatchEvent))
            finally:
                self._followed, self._watch_began = self.followed, None

    def _heed(self, event: WatchEvent) -> None:
        if event.type == "ERROR":
            refusal = msgspec.json.decode(event.object, type=ApiStatus)
            raise ApiRefused(refusal.code, refusal)
        if event.type == "BOOKMARK":
            seen = msgspec.json.decode(event.object, type=Named)
            self._version = max(self._version, int(seen.metadata.resource_version))
            return
        pod = msgspec.json.decode(event.object, type=Pod)
        self._version = max(self._version, pod.version)
        known = self._pods.get(pod.name)
        if event.type == "DELETED":
            if known is not None and known.uid == pod.uid:
                self._drop(pod.name)
        elif known is None or pod.version > known.version:
            self._set(pod)

    def _set(self, pod: Pod) -> None:
        known = self._pods.get(pod.name)
        if known is not None and pod_metadata.sandbox_id(known) != pod_metadata.sandbox_id(pod):
            self._forget(known)
        self._pods[pod.name] = pod
        sandbox_id = pod_metadata.sandbox_id(pod)
        if sandbox_id is not None:
            self._sandboxes.setdefault(sandbox_id, set()).add(pod.name)
        self._tell(known, pod)

    def _drop(self, name: str) -> None:
        pod = self._pods.pop(name)
        self._forget(pod)
        self._tell(pod, None)

    def _forget(self, pod: Pod) -> None:
        sandbox_id = pod_metadata.sandbox_id(pod)
        names = self._sandboxes.get(sandbox_id or "", set())
        names.discard(pod.name)
        if not names:
            self._sandboxes.pop(sandbox_id or "", None)

    def _tell(self, was: Pod | None, now: Pod | None) -> None:
        for pod in (was, now):
            sandbox_id = None if pod is None else pod_metadata.sandbox_id(pod)
            for waiter in self._waiters.get(sandbox_id or "", ()):
                if not waiter.done():
                    waiter.set_result(None)
        for listener in self._listeners:
            listener(was, now)

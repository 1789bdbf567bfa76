"""The leader's maintenance: expired sandboxes, failures, warm pools, orphaned objects."""

import asyncio
import logging
import time
from contextlib import suppress

from orchard.injector.errors import SandboxError
from orchard.injector.kubernetes import pod_metadata, policies, prepull, reconcile, warm
from orchard.injector.kubernetes.activity import IdleTimes
from orchard.injector.kubernetes.api import ClusterApi, passing_over, selector
from orchard.injector.kubernetes.background_task import BackgroundTask
from orchard.injector.kubernetes.cache import PodCache
from orchard.injector.kubernetes.creation import PodAdmission
from orchard.injector.kubernetes.demand import Demand
from orchard.injector.kubernetes.leadership import Leadership, leases
from orchard.injector.kubernetes.objects import LeaseList, Metadata, NamedList, Pod, PodList
from orchard.injector.kubernetes.reservations import RESERVED
from orchard.injector.kubernetes.settings import KubernetesSettings
from orchard.injector.kubernetes.slots import Slots
from orchard.schemas.sandboxes import CreateSandbox

SWEEP = 60.0
PAUSE = 0.05
SCHEDULING = 15.0
"""Seconds that the scheduler has to see the room that a warm Pod left, before another gives way."""

log = logging.getLogger(__name__)


class Maintenance(BackgroundTask):
    """Runs maintenance rounds while this orchestrator leads."""

    def __init__(
        self,
        api: ClusterApi,
        cache: PodCache,
        leadership: Leadership,
        settings: KubernetesSettings,
        fingerprint: str,
    ) -> None:
        self._api = api
        self._cache = cache
        self._leadership = leadership
        self._settings = settings
        self._fingerprint = fingerprint
        self._demand = Demand(api, settings.namespace)
        self._ahead = prepull.QueuePrepull(prepull.Prepull(api, settings), settings)
        self._slots = Slots(cache, settings.per_node)
        self._admission = PodAdmission(api, cache.path)
        self._idle = IdleTimes()
        self._asked = asyncio.Event()
        self._swept = 0.0
        self._room: dict[str, float] = {}
        """Times at which a warm Pod gave way to a sandbox, by the sandbox Pod's uid."""
        cache.listen(self._changed)

    def _changed(self, was: Pod | None, now: Pod | None) -> None:
        """Trigger a round when a warm Pod was claimed or has gone; all else can wait for the next one."""
        if (
            was is not None
            and pod_metadata.WARM in was.labels
            and (now is None or pod_metadata.WARM not in now.labels)
        ):
            self._asked.set()

    async def _go(self) -> None:
        while True:
            pause = self._settings.reconcile_interval
            if self._leadership.leading:  # who does not has nothing to look through all Pods for
                pause = reconcile.next_due(self._cache, self._settings, time.time())
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._asked.wait()
            await asyncio.sleep(PAUSE)
            self._asked.clear()
            if not (self._leadership.leading and self._cache.is_synced):
                continue
            try:
                await self._round()
            except Exception:  # one bad object must not end the care for all others
                log.exception("a round was not finished")

    async def _round(self) -> None:
        now = asyncio.get_running_loop().time()
        self._room = {uid: since for uid, since in self._room.items() if now - since < SCHEDULING}
        ahead, follows = self._settings.prepull_queue, any(pool.most for pool in self._settings.warm.values())
        demand = await self._demand.images() if ahead or follows else {}
        idle = self._idle.at(self._cache.followed, self._cache, self._leadership.since)
        due = reconcile.actions(
            self._cache, self._settings, self._fingerprint, time.time(), demand, self._room.keys(), idle
        )
        for result in await asyncio.gather(*(self._do(action) for action in due), return_exceptions=True):
            if isinstance(result, SandboxError):
                log.warning("not done in this round: %s", result.detail)
            elif isinstance(result, BaseException):
                log.error("not done in this round", exc_info=result)
        if ahead:
            try:
                await self._ahead.step(demand, now)
            except SandboxError as error:
                log.warning("no image is pulled ahead in this round: %s", error.detail)
        loop = asyncio.get_running_loop()
        if loop.time() - self._swept > SWEEP:
            self._swept = loop.time()
            await self._sweep()

    async def _do(self, action: reconcile.Action) -> None:
        if not self._leadership.leading:
            return
        match action:
            case reconcile.Delete(pod, why, room_for):
                log.info("deleting Pod %s: %s", pod.name, why)
                if room_for:
                    self._room[room_for] = asyncio.get_running_loop().time()
                await self._delete(f"{self._cache.path}/{pod.name}", pod.metadata)
            case reconcile.Fail(pod, failure):
                log.info("Pod %s has failed: %s: %s", pod.name, failure.reason, failure.message)
                await self._cache.mark_failed(pod, failure)
            case reconcile.Note(pod, attempt):
                body = {
                    "metadata": {
                        "uid": pod.uid,
                        "annotations": {pod_metadata.PULL_ATTEMPT: pod_metadata.encoded(attempt)},
                    }
                }
                with passing_over(404, 409):  # gone, or another Pod of the same name
                    self._cache.learn(await self._api.patch(Pod, f"{self._cache.path}/{pod.name}", body))
            case reconcile.MakeWarm(image, pool, count):
                log.info("starting %d warm Pods of %s", count, image)
                request = CreateSandbox(image=image, cpu=pool.cpu, memory=pool.memory)
                for _ in range(count):
                    body = warm.manifest(image, pool, self._settings, self._fingerprint)
                    with self._slots.assigned(body):
                        self._cache.learn(await self._admission.create(request, body))

    async def _sweep(self) -> None:
        namespace, now = self._settings.namespace, time.time()
        ours = {"labelSelector": selector({**pod_metadata.APP, **pod_metadata.MANAGED_BY})}
        made = await self._api.get(NamedList, policies.path(namespace), ours)
        for policy in reconcile.orphaned_policies(made.items, self._cache, now):
            await self._delete(f"{policies.path(namespace)}/{policy.metadata.name}", policy.metadata)
        pulling = {"labelSelector": selector(prepull.APP)}
        found = await self._api.get(PodList, self._cache.path, pulling)
        for pod in prepull.abandoned(found.items, self._settings, now):
            await self._delete(f"{self._cache.path}/{pod.name}", pod.metadata)
        reserved = await self._api.get(LeaseList, leases(namespace), {"labelSelector": selector(RESERVED)})
        known = {
            pod.labels[pod_metadata.SANDBOX] for pod in self._cache if pod_metadata.SANDBOX in pod.labels
        }
        for lease in reconcile.orphaned_reservations(reserved.items, known, now):
            await self._delete(f"{leases(namespace)}/{lease.metadata.name}", lease.metadata)

    async def _delete(self, path: str, seen: Metadata) -> None:
        """Delete an object only if it has not changed since it was read."""
        preconditions = {"uid": seen.uid, "resourceVersion": seen.resource_version}
        with passing_over(409):
            await self._api.delete(path, {"gracePeriodSeconds": 0, "preconditions": preconditions})

"""Creates each sandbox's Pod once, however often and wherever it is requested.

The name of a Pod is derived from its sandbox's id, so the API server itself refuses a second one. A request
without an id but with an idempotency key gets an id derived from the key: repeated at another orchestrator,
it finds the same Pod. Where there are warm pools, ids are reserved first, and a warm Pod is claimed if one
fits.
"""

import asyncio
import random
import time
import uuid
from collections.abc import Callable
from functools import partial

import msgspec

from orchard.injector.errors import SandboxConflict, SandboxRefused, SandboxRequestInvalid, SandboxUnavailable
from orchard.injector.kubernetes import pod_extras, pod_metadata, pods, warm
from orchard.injector.kubernetes.api import ClusterApi, passing_over
from orchard.injector.kubernetes.cache import PodCache
from orchard.injector.kubernetes.failing_registries import RegistryLimiter
from orchard.injector.kubernetes.objects import Manifest, Pod
from orchard.injector.kubernetes.reservations import Reservations
from orchard.injector.kubernetes.settings import KubernetesSettings
from orchard.injector.kubernetes.slots import Slots
from orchard.schemas.sandboxes import CreateSandbox

IDS = 16
"""Ids that are tried for a request without one."""
LEAVING = 30.0
"""Seconds to wait for a Pod of the same name that is being deleted."""
PAUSE = 0.2
"""Seconds before a creation is retried that conflicted with a Pod which is gone."""
REMEMBERED = 60.0
"""Seconds before a rejected request is sent again."""


class _KeyReused(SandboxConflict):
    pass


class Creation:
    def __init__(
        self,
        api: ClusterApi,
        cache: PodCache,
        settings: KubernetesSettings,
        identity: str,
        fingerprint: str,
    ) -> None:
        self._api = api
        self._cache = cache
        self._settings = settings
        self._identity = identity
        self._fingerprint = fingerprint
        self._slots = Slots(cache, settings.per_node)
        self._reservations = Reservations(api, cache, settings.namespace) if settings.warm else None
        self._brake = RegistryLimiter(cache, time.time)
        self._admission = PodAdmission(api, cache.path)
        self._under_way = 0

    async def create(self, request: CreateSandbox, key: str | None) -> Pod:
        """Return a new Pod, or the one that the same `key` made.

        Raises SandboxConflict when the id is taken, SandboxRefused when a policy rejects it, and
        SandboxUnavailable, also while the registry of its image fails.
        """
        self._under_way += 1
        try:
            # Only a herd is spread: one that comes alone is let through at once.
            share = min(1.0, (self._under_way - 1) / self._settings.concurrent_writes)
            await asyncio.sleep(random.uniform(0.0, self._settings.create_jitter * share))
            if request.sandbox_id is not None:
                return await self._named(request.sandbox_id, request, key)
            for attempt in range(IDS):
                sandbox_id = (
                    uuid.uuid4().hex[:8] if key is None else pod_metadata.sandbox_id_for(key, attempt)
                )
                try:
                    return await self._named(sandbox_id, request, key)
                except _KeyReused:
                    raise
                except SandboxConflict:
                    continue  # somebody else's, by chance
            raise SandboxUnavailable("no free sandbox id was found: try again")
        finally:
            self._under_way -= 1

    async def _named(self, sandbox_id: str, request: CreateSandbox, key: str | None) -> Pod:
        there = self._cache.named(pod_metadata.pod_name(sandbox_id))
        ready = warm.fitting(self._cache, self._settings, request, self._fingerprint, time.time())
        if there is None and next(ready, None) is None:
            layers = (self._settings.layers.get(name, request.image) for name in request.layers)
            for image in (request.image, self._settings.agent_image, *layers):
                self._brake.check(image)
        born = pod_metadata.CreationRecord(
            request=request,
            key=pod_metadata.key_digest(key),
            attempt=f"{self._identity}/{uuid.uuid4().hex}",
            at=time.time(),
            reserved=self._reservations is not None,
        )
        if self._reservations is not None:
            present = await self._reservations.take(sandbox_id, born.attempt)
            if present is not None:
                return _same(present, born, sandbox_id)
        try:
            claimed = await warm.claim(
                self._api, self._cache, self._settings, sandbox_id, born, self._fingerprint
            )
            return claimed or await self._new(sandbox_id, born)
        except (SandboxConflict, SandboxRequestInvalid):
            if self._reservations is not None:
                await self._reservations.give_up(sandbox_id)
            raise

    async def _new(self, sandbox_id: str, born: pod_metadata.CreationRecord) -> Pod:
        request = born.request
        body = pods.manifest(
            pod_metadata.pod_name(sandbox_id),
            sandbox_id,
            request.image,
            request.cpu,
            request.memory,
            self._settings,
            pod_metadata.claim_metadata(sandbox_id, born),
            request.env,
        )
        await pod_extras.add(body, request, self._settings)
        deadline = asyncio.get_running_loop().time() + LEAVING
        while True:
            with passing_over(409), self._slots.assigned(body):
                pod = await self._admission.create(request, body)
                self._cache.learn(pod)
                return pod
            present = await self._cache.refresh(pod_metadata.pod_name(sandbox_id))
            if present is None:  # it has just gone
                if asyncio.get_running_loop().time() > deadline:
                    raise SandboxUnavailable(
                        f"the API server answers 409 for a sandbox {sandbox_id}, and has none",
                        reason="api_unavailable",
                    )
                await asyncio.sleep(PAUSE)
                continue
            if present.metadata.deletion_timestamp is None:
                return _same(present, born, sandbox_id)
            left = deadline - asyncio.get_running_loop().time()
            if not await self._cache.gone(present.name, present.uid, sandbox_id, left):
                raise SandboxConflict(
                    f"there is a sandbox {sandbox_id} already, which is being deleted", reason="exists"
                )


def _same(present: Pod, born: pod_metadata.CreationRecord, sandbox_id: str) -> Pod:
    """Return the existing Pod if it is from this attempt or this key. Raises SandboxConflict."""
    if pod_metadata.claimed(present):
        there = pod_metadata.creation_record(present)
        if there.attempt == born.attempt or (born.key and there.key == born.key):
            if there.request != born.request:
                raise _KeyReused(
                    "this Idempotency-Key was used for another sandbox: send a new one",
                    reason="key_reused",
                )
            return present
    raise SandboxConflict(
        f"there is a sandbox {sandbox_id} already: choose another sandbox_id", reason="exists"
    )


class PodAdmission:
    """Creates Pods, and caches rejections by the cluster's policies for a minute.

    The same request would be rejected again, and a fleet that asks for one image asks thousands of times.
    """

    def __init__(self, api: ClusterApi, path: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._api = api
        self._path = path
        self._clock = clock
        self._refused: dict[bytes, tuple[float, str]] = {}

    async def create(self, request: CreateSandbox, body: Manifest) -> Pod:
        """Create the Pod `body` for `request`. Raises what `ClusterApi.create` raises, and SandboxRefused
        from the cache."""
        key = _request_key(request)
        try:
            return await self._api.create(Pod, self._path, body, check=partial(self._check, key))
        except SandboxRefused as refused:
            now = self._clock()
            self._refused = {one: said for one, said in self._refused.items() if now - said[0] < REMEMBERED}
            self._refused.setdefault(key, (now, refused.detail))
            raise

    def _check(self, key: bytes) -> None:
        if key not in self._refused:
            return
        since, detail = self._refused[key]
        left = since + REMEMBERED - self._clock()
        if left > 0:
            raise SandboxRefused(f"{detail} (said before; the cluster is asked again in {left:.0f} s)")


def _request_key(request: CreateSandbox) -> bytes:
    """Key of a request: what remains equal when only names, annotations and labels of its Pod differ."""
    anybodys = msgspec.structs.replace(request, sandbox_id=None, labels={}, timeout=1.0, ttl_seconds=None)
    return msgspec.json.encode(anybodys, order="sorted")

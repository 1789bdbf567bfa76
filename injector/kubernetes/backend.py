"""The Backend of a cluster: every sandbox is a Pod, every answer comes from the cluster or from its agent.

Any number of orchestrators may serve the same cluster: none keeps state that another needs.
"""

import asyncio
import logging
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any

import msgspec

from orchard.injector.backend import SandboxAgent
from orchard.injector.errors import (
    SandboxNotFound,
    SandboxUnavailable,
    SandboxWaitTimeout,
)
from orchard.injector.kubernetes import pod_metadata, pods
from orchard.injector.kubernetes.activity import Activity
from orchard.injector.kubernetes.agents import Agents, PodAgent
from orchard.injector.kubernetes.api import ClusterApi, selector
from orchard.injector.kubernetes.cache import PodCache
from orchard.injector.kubernetes.creation import Creation
from orchard.injector.kubernetes.demand import Demand
from orchard.injector.kubernetes.images import ClusterImages
from orchard.injector.kubernetes.key_exchange import KeyExchange
from orchard.injector.kubernetes.leadership import Leadership
from orchard.injector.kubernetes.maintenance import Maintenance
from orchard.injector.kubernetes.objects import NodeList, Pod, PodList
from orchard.injector.kubernetes.prepull import Prepull
from orchard.injector.kubernetes.reservations import Reservations
from orchard.injector.kubernetes.resources import resources
from orchard.injector.kubernetes.settings import KubernetesSettings
from orchard.injector.kubernetes.status import judge
from orchard.schemas.sandboxes import CreateSandbox, Health, Resources, SandboxInfo

SYNC_TIMEOUT = 10.0
"""Seconds that a request waits after start until all sandboxes are known."""
GLANCE = 3.0
"""Patience in seconds for requests that the cache can answer as well."""

log = logging.getLogger(__name__)


class KubernetesBackend:
    """Sandboxes in one namespace of a cluster.

    Agents' keys are derived from `secret`, the same for all orchestrators; `identity` is this process's.
    """

    def __init__(self, settings: KubernetesSettings, secret: bytes, identity: str) -> None:
        self._settings = settings
        self._secret = secret
        self._identity = identity
        self._parts: _Parts | None = None
        self._resources = AsyncExitStack()

    async def open(self) -> None:
        """Begin to follow the cluster. Raises SandboxUnavailable when it cannot be reached."""
        settings = self._settings
        api = await ClusterApi.connect(settings.kubeconfig, settings.concurrent_writes)
        self._resources.push_async_callback(api.close)
        cache = PodCache(api, settings.namespace)
        activity = Activity(api, cache)
        self._resources.push_async_callback(activity.close)
        agents = Agents(api, cache, activity, settings, self._secret)
        self._resources.push_async_callback(agents.close)
        introductions = KeyExchange(api, cache, agents, settings, self._identity)
        self._resources.push_async_callback(introductions.close)
        leadership = Leadership(api, settings.namespace, self._identity, settings.lease)
        self._resources.push_async_callback(leadership.close)
        maintenance = Maintenance(api, cache, leadership, settings, agents.fingerprint)
        self._resources.push_async_callback(maintenance.close)
        self._resources.push_async_callback(cache.close)
        self._parts = _Parts(
            api=api,
            cache=cache,
            agents=agents,
            activity=activity,
            introductions=introductions,
            creation=Creation(api, cache, settings, self._identity, agents.fingerprint),
            reservations=Reservations(api, cache, settings.namespace),
            images=ClusterImages(settings, Demand(api, settings.namespace), Prepull(api, settings)),
        )
        cache.start()
        activity.start()
        leadership.start()
        maintenance.start()

    async def close(self) -> None:
        self._parts = None
        await self._resources.aclose()

    async def health(self) -> Health:
        parts = self._open
        # Without a version: for version 0 the server answers from its cache, and with all Pods.
        await parts.api.get(PodList, parts.cache.path, {"limit": "1"}, patience=GLANCE)
        await parts.cache.synced(GLANCE)
        return Health(status="healthy", copies=False)

    async def resources(self) -> Resources:
        """Report the schedulable nodes, and what sandboxes request of them."""
        parts = self._open
        nodes = await parts.api.get(NodeList, "/api/v1/nodes", {"resourceVersion": "0"})
        await parts.cache.synced(SYNC_TIMEOUT)
        return resources(nodes.items, parts.cache, self._settings)

    async def create(self, request: CreateSandbox, key: str | None) -> SandboxInfo:
        return self._info(await self._open.creation.create(request, key))

    async def get(self, sandbox_id: str) -> SandboxInfo:
        """Return the state at the API server; while that is unreachable, the last known one."""
        parts = self._open
        await parts.cache.synced(SYNC_TIMEOUT)
        pod = parts.cache.sandbox(sandbox_id)
        try:
            if pod is None:
                pod = await parts.cache.look_up(sandbox_id)
            else:
                pod = await parts.cache.refresh(pod.name, GLANCE)
        except SandboxUnavailable as error:
            if pod is None:
                raise
            log.warning("sandbox %s is reported as it was: %s", sandbox_id, error.detail)
        if pod is None or not pod_metadata.claimed(pod):
            raise SandboxNotFound(f"there is no sandbox {sandbox_id}")
        with parts.activity.request(pod):
            verdict = await parts.agents.settled(pod, judge(pod, self._settings, time.time()))
            return pods.info(pod, self._settings.namespace, verdict)

    async def wait(self, sandbox_id: str, timeout: float) -> SandboxInfo:
        parts = self._open
        deadline = asyncio.get_running_loop().time() + timeout
        await parts.cache.synced(SYNC_TIMEOUT)
        pod = parts.cache.sandbox(sandbox_id) or await parts.cache.look_up(sandbox_id)
        if pod is None or not pod_metadata.claimed(pod):
            raise SandboxNotFound(f"there is no sandbox {sandbox_id}")
        with parts.activity.request(pod):
            return await self._awaited(pod, sandbox_id, deadline, timeout)

    async def _awaited(
        self, pod: Pod | None, sandbox_id: str, deadline: float, timeout: float
    ) -> SandboxInfo:
        parts = self._open
        while pod is not None:
            verdict = await parts.agents.settled(pod, judge(pod, self._settings, time.time()))
            if verdict.failed or verdict.ready:
                return pods.info(pod, self._settings.namespace, verdict)
            if verdict.startable:
                parts.introductions.hurry(pod)
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0:
                raise SandboxWaitTimeout(f"sandbox {sandbox_id} was not ready within {timeout:g} s")
            if verdict.until is not None:
                left = min(left, max(0.0, verdict.until - time.time()))
            await parts.cache.changed(sandbox_id, left)
            pod = parts.cache.sandbox(sandbox_id)
        raise SandboxNotFound(f"there is no sandbox {sandbox_id} any more")

    async def list(self, labels: Mapping[str, str]) -> list[SandboxInfo]:
        """List all sandboxes from the cache; those with `labels` from the API server."""
        parts = self._open
        await parts.cache.synced(SYNC_TIMEOUT)
        found: Any = parts.cache
        if labels:
            chosen = {**pod_metadata.APP, **pod_metadata.user_labels(dict(labels))}
            params = {"labelSelector": selector(chosen)}
            found = (await parts.api.get(PodList, parts.cache.path, params)).items
        infos = [self._info(pod) for pod in found if pod_metadata.claimed(pod)]
        return [info for info in infos if labels.items() <= info.labels.items()]

    async def delete(self, sandbox_id: str) -> None:
        """Delete the Pod and wait. Raises SandboxUnavailable when it does not go."""
        parts = self._open
        await parts.cache.synced(SYNC_TIMEOUT)
        pod = parts.cache.sandbox(sandbox_id) or await parts.cache.look_up(sandbox_id)
        if pod is None or not pod_metadata.claimed(pod):
            return
        await parts.cache.delete(pod)
        if not await parts.cache.gone(pod.name, pod.uid, sandbox_id, self._settings.delete_timeout):
            raise SandboxUnavailable(
                f"the Pod of sandbox {sandbox_id} is not gone after {self._settings.delete_timeout:g} s",
                reason="delete_timeout",
            )
        if pod_metadata.creation_record(pod).reserved:
            await parts.reservations.give_up(sandbox_id)

    def agent(self, sandbox_id: str) -> SandboxAgent:
        return PodAgent(self._open.agents, sandbox_id)

    def images(self) -> SandboxAgent:
        return self._open.images

    @property
    def _open(self) -> "_Parts":
        if self._parts is None:
            raise SandboxUnavailable("the backend is not open")
        return self._parts

    def _info(self, pod: Pod) -> SandboxInfo:
        return pods.info(pod, self._settings.namespace, judge(pod, self._settings, time.time()))


class _Parts(msgspec.Struct, frozen=True, kw_only=True):
    api: ClusterApi
    cache: PodCache
    agents: Agents
    activity: Activity
    introductions: KeyExchange
    creation: Creation
    reservations: Reservations
    images: ClusterImages

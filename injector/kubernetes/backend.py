"""The Backend of a cluster: every sandbox is a Pod, every answer comes from the cluster or from its agent.

Any number of orchestrators may serve the same cluster: none remembers anything that another needs.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, TypeVar

import aiohttp
import msgspec

from orchard.injector.errors import (
    SandboxNotFound,
    SandboxUnavailable,
    SandboxUnsupported,
    SandboxWaitTimeout,
)
from orchard.injector.kubernetes import marks, pods
from orchard.injector.kubernetes.activity import Activity
from orchard.injector.kubernetes.agents import Agents, Work
from orchard.injector.kubernetes.api import ClusterApi, selector
from orchard.injector.kubernetes.cache import PodCache
from orchard.injector.kubernetes.caretaker import Caretaker
from orchard.injector.kubernetes.creation import Creation
from orchard.injector.kubernetes.key_exchange import KeyExchange
from orchard.injector.kubernetes.leadership import Leadership
from orchard.injector.kubernetes.objects import NodeList, Pod, PodList
from orchard.injector.kubernetes.reservations import Reservations
from orchard.injector.kubernetes.resources import resources
from orchard.injector.kubernetes.settings import KubernetesSettings
from orchard.injector.kubernetes.status import judge
from orchard.schemas.sandboxes import (
    ApplyPatch,
    CreateSandbox,
    ExecRequest,
    FileList,
    FileWritten,
    ForkSandbox,
    Health,
    Job,
    JobQueued,
    PatchResult,
    Resources,
    SandboxInfo,
    SnapshotReply,
)

SYNC_TIMEOUT = 10.0
"""Seconds that a request waits, after the start, until it is known which sandboxes there are."""
GLANCE = 3.0
"""Seconds that a question which can also be answered from what is known asks the API server."""

T = TypeVar("T")
J = TypeVar("J", Job, JobQueued, Job | JobQueued)
_encode = msgspec.json.encode

log = logging.getLogger(__name__)


class KubernetesBackend:
    """Sandboxes in one namespace of a cluster.

    `secret` is what agents' keys are made from, the same for all orchestrators; `identity` is this process's.
    """

    def __init__(self, settings: KubernetesSettings, secret: bytes, identity: str) -> None:
        self._settings = settings
        self._secret = secret
        self._identity = identity
        self._parts: _Parts | None = None
        self._resources = AsyncExitStack()

    async def open(self) -> None:
        """Begin to follow the cluster. Raises SandboxUnavailable when there is no way to one."""
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
        caretaker = Caretaker(api, cache, leadership, settings, agents.fingerprint)
        self._resources.push_async_callback(caretaker.close)
        self._resources.push_async_callback(cache.close)
        self._parts = _Parts(
            api=api,
            cache=cache,
            agents=agents,
            activity=activity,
            introductions=introductions,
            creation=Creation(api, cache, settings, self._identity, agents.fingerprint),
            reservations=Reservations(api, cache, settings.namespace),
        )
        cache.start()
        activity.start()
        leadership.start()
        caretaker.start()

    async def close(self) -> None:
        """Disconnect; sandboxes stay."""
        self._parts = None
        await self._resources.aclose()

    async def health(self) -> Health:
        """Whether the API server answers."""
        parts = self._open
        await parts.api.get(
            PodList, parts.cache.path, {"limit": "1", "resourceVersion": "0"}, patience=GLANCE
        )
        await parts.cache.synced(GLANCE)
        return Health(status="healthy")

    async def resources(self) -> Resources:
        """The nodes that sandboxes may be put on, and what sandboxes ask for there."""
        parts = self._open
        nodes = await parts.api.get(NodeList, "/api/v1/nodes", {"resourceVersion": "0"})
        await parts.cache.synced(SYNC_TIMEOUT)
        return resources(nodes.items, parts.cache, self._settings)

    async def create(self, request: CreateSandbox, key: str | None) -> SandboxInfo:
        """See Backend."""
        return self._info(await self._open.creation.create(request, key))

    async def fork(
        self,
        sandbox_id: str,
        request: ForkSandbox,  # noqa: ARG002
        key: str | None,  # noqa: ARG002
    ) -> list[SandboxInfo]:
        """A Pod's root cannot be copied: SandboxUnsupported names what can be."""
        await self.get(sandbox_id)
        raise _unsupported("a sandbox that is a Pod cannot be forked")

    async def snapshot(self, sandbox_id: str, image: str) -> SnapshotReply:  # noqa: ARG002
        """A Pod's root cannot be made an image: SandboxUnsupported names what can be done."""
        await self.get(sandbox_id)
        raise _unsupported("a sandbox that is a Pod cannot become an image")

    async def get(self, sandbox_id: str) -> SandboxInfo:
        """As the API server says now; while it cannot be reached, as it last said."""
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
        if pod is None or not marks.claimed(pod):
            raise SandboxNotFound(f"there is no sandbox {sandbox_id}")
        with parts.activity.request(pod):
            verdict = await parts.agents.settled(pod, judge(pod, self._settings, time.time()))
            return pods.info(pod, self._settings.namespace, verdict)

    async def wait(self, sandbox_id: str, timeout: float) -> SandboxInfo:
        """See Backend."""
        parts = self._open
        deadline = asyncio.get_running_loop().time() + timeout
        await parts.cache.synced(SYNC_TIMEOUT)
        pod = parts.cache.sandbox(sandbox_id) or await parts.cache.look_up(sandbox_id)
        if pod is None or not marks.claimed(pod):
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
        """All sandboxes as the watch last said; those with `labels` as the API server says now."""
        parts = self._open
        await parts.cache.synced(SYNC_TIMEOUT)
        found: Any = parts.cache
        if labels:
            chosen = {**marks.APP, **marks.user_labels(dict(labels))}
            params = {"labelSelector": selector(chosen)}
            found = (await parts.api.get(PodList, parts.cache.path, params)).items
        infos = [self._info(pod) for pod in found if marks.claimed(pod)]
        return [info for info in infos if labels.items() <= info.labels.items()]

    async def delete(self, sandbox_id: str) -> None:
        """See Backend. Raises SandboxUnavailable when the Pod does not go."""
        parts = self._open
        await parts.cache.synced(SYNC_TIMEOUT)
        pod = parts.cache.sandbox(sandbox_id) or await parts.cache.look_up(sandbox_id)
        if pod is None or not marks.claimed(pod):
            return
        await parts.cache.delete(pod)
        if not await parts.cache.gone(pod.name, pod.uid, sandbox_id, self._settings.delete_timeout):
            raise SandboxUnavailable(
                f"the Pod of sandbox {sandbox_id} is not gone after {self._settings.delete_timeout:g} s",
                reason="delete_timeout",
            )
        if marks.birth(pod).reserved:
            await parts.reservations.give_up(sandbox_id)

    async def heartbeat(self, sandbox_id: str) -> None:
        """See Backend; the agent is asked, too."""
        await self._open.agents.check(sandbox_id)

    async def exec(self, sandbox_id: str, request: ExecRequest, key: str | None) -> Job | JobQueued:
        """See Backend."""
        kind: type[Job | JobQueued] = Job if request.wait else JobQueued
        job = await self._ask(
            sandbox_id,
            lambda line, agent: line.call(
                kind, "POST", f"/sandboxes/{agent}/exec", body=_encode(request), key=key
            ),
        )
        return _as_of(job, sandbox_id)

    async def terminal(self, sandbox_id: str) -> aiohttp.ClientWebSocketResponse:
        """See Backend."""
        parts = self._open
        line, pod = await parts.agents.ask(
            sandbox_id, lambda line, agent: line.line(f"/sandboxes/{agent}/exec/pty")
        )
        parts.activity.hold(pod, line)
        return line

    async def job(self, job_id: str) -> Job:
        """See Backend."""
        return await self._job(job_id, "GET", "")

    async def wait_job(self, job_id: str, timeout: float) -> Job:
        """See Backend."""
        return await self._job(job_id, "GET", "/wait", {"timeout": str(timeout)})

    async def cancel_job(self, job_id: str) -> Job:
        """See Backend."""
        return await self._job(job_id, "DELETE", "")

    async def apply_patch(self, sandbox_id: str, request: ApplyPatch, key: str | None) -> PatchResult:
        """See Backend."""
        return await self._ask(
            sandbox_id,
            lambda line, agent: line.call(
                PatchResult, "POST", f"/sandboxes/{agent}/apply_patch", body=_encode(request), key=key
            ),
        )

    async def write_file(
        self, sandbox_id: str, path: str, content: AsyncIterator[bytes] | bytes
    ) -> FileWritten:
        """See Backend."""
        return await self._put(sandbox_id, "files", path, content)

    async def write_archive(
        self, sandbox_id: str, path: str, content: AsyncIterator[bytes] | bytes
    ) -> FileWritten:
        """See Backend."""
        return await self._put(sandbox_id, "archive", path, content)

    @asynccontextmanager
    async def read_file(
        self, sandbox_id: str, path: str, limit: int | None = None
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """See Backend."""
        params = {"path": path} if limit is None else {"path": path, "limit": str(limit)}
        async with self._stream(sandbox_id, "files", params) as pieces:
            yield pieces

    @asynccontextmanager
    async def read_archive(self, sandbox_id: str, path: str) -> AsyncIterator[AsyncIterator[bytes]]:
        """See Backend."""
        async with self._stream(sandbox_id, "archive", {"path": path}) as pieces:
            yield pieces

    async def list_files(self, sandbox_id: str, path: str) -> FileList:
        """See Backend."""
        return await self._ask(
            sandbox_id,
            lambda line, agent: line.call(
                FileList, "GET", f"/sandboxes/{agent}/files/list", params={"path": path}
            ),
        )

    @property
    def _open(self) -> "_Parts":
        if self._parts is None:
            raise SandboxUnavailable("the backend is not open")
        return self._parts

    def _info(self, pod: Pod) -> SandboxInfo:
        return pods.info(pod, self._settings.namespace, judge(pod, self._settings, time.time()))

    async def _ask(self, sandbox_id: str, work: Work[T]) -> T:
        return (await self._open.agents.ask(sandbox_id, work))[0]

    async def _job(
        self, job_id: str, method: str, suffix: str, params: Mapping[str, str] | None = None
    ) -> Job:
        sandbox_id, _, number = job_id.partition(".")
        if not number.isalnum():
            raise SandboxNotFound(f"there is no job {job_id}")
        job = await self._ask(
            sandbox_id,
            lambda line, agent: line.call(Job, method, f"/jobs/{agent}.{number}{suffix}", params=params),
        )
        return _as_of(job, sandbox_id)

    async def _put(
        self, sandbox_id: str, what: str, path: str, content: AsyncIterator[bytes] | bytes
    ) -> FileWritten:
        return await self._ask(
            sandbox_id,
            lambda line, agent: line.call(
                FileWritten, "PUT", f"/sandboxes/{agent}/{what}", params={"path": path}, body=content
            ),
        )

    @asynccontextmanager
    async def _stream(
        self, sandbox_id: str, what: str, params: Mapping[str, str]
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        parts = self._open
        async with AsyncExitStack() as stack:
            pieces, pod = await parts.agents.ask(
                sandbox_id,
                lambda line, agent: stack.enter_async_context(
                    line.stream(f"/sandboxes/{agent}/{what}", params)
                ),
            )
            with parts.activity.request(pod):
                yield pieces


class _Parts(msgspec.Struct, frozen=True, kw_only=True):
    """What works together while the backend is open."""

    api: ClusterApi
    cache: PodCache
    agents: Agents
    activity: Activity
    introductions: KeyExchange
    creation: Creation
    reservations: Reservations


def _as_of(job: J, sandbox_id: str) -> J:
    """A job as its sandbox's: the agent in a warm Pod was started before it was whose it is."""
    number = job.job_id.partition(".")[2]
    renamed = msgspec.structs.replace(job, job_id=f"{sandbox_id}.{number}")
    return msgspec.structs.replace(renamed, sandbox_id=sandbox_id) if isinstance(renamed, Job) else renamed


def _unsupported(what: str) -> SandboxUnsupported:
    return SandboxUnsupported(
        f"{what}: its root belongs to the container runtime; take a directory with GET /sandboxes/ID/archive"
        " and put it into another sandbox with PUT /sandboxes/ID/archive"
    )

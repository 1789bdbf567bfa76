"""Connections to the agents in the Pods, and the diagnosis when one does not respond."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, NamedTuple, TypeVar

import aiohttp
import msgspec

from orchard.injector.agent.signing import Seal, sandbox_key
from orchard.injector.agent_connection import AGENT_REPLACED, AgentConnection, AgentUnreachable
from orchard.injector.errors import (
    SandboxConflict,
    SandboxError,
    SandboxFailed,
    SandboxNotFound,
    SandboxUnavailable,
)
from orchard.injector.kubernetes import pod_metadata
from orchard.injector.kubernetes.activity import Activity
from orchard.injector.kubernetes.api import ClusterApi
from orchard.injector.kubernetes.cache import PodCache
from orchard.injector.kubernetes.objects import Pod
from orchard.injector.kubernetes.settings import KubernetesSettings
from orchard.injector.kubernetes.status import EVICTED, PodVerdict, judge, taken
from orchard.schemas.sandboxes import Acknowledgement, Job, JobQueued

VERDICT_GRACE = 5.0
"""Seconds that the Pod of a silent agent gets to say why: the kubelet reports a container's end that late."""
RETRY_PAUSE = 0.2

T = TypeVar("T")
Work = Callable[[AgentConnection, str], Awaitable[T]]
"""Sends a request to an agent; the text is the id that the agent was started with."""


class Agents:
    """One connection for each Pod, all over one connector; every orchestrator derives the agents' keys
    itself."""

    def __init__(
        self,
        api: ClusterApi,
        cache: PodCache,
        activity: Activity,
        settings: KubernetesSettings,
        secret: bytes,
    ) -> None:
        self._api = api
        self._cache = cache
        self.activity = activity
        self._settings = settings
        self._secret = secret
        self.fingerprint = pod_metadata.fingerprint(secret)
        self._connector = aiohttp.TCPConnector(limit=0)
        self._lines: dict[tuple[str, str], AgentConnection] = {}
        self._closing: set[asyncio.Task[None]] = set()
        cache.listen(self._changed)

    async def close(self) -> None:
        for line in self._lines.values():
            await line.close()
        await asyncio.gather(*self._closing)
        await self._connector.close()

    def line(self, pod: Pod) -> AgentConnection:
        """Return the connection to a Pod's agent, without sending anything."""
        place = (pod.uid, pod.address)
        if place not in self._lines:
            host = f"[{pod.address}]" if ":" in pod.address else pod.address
            seal = Seal(sandbox_key(self._secret, pod.labels[pod_metadata.AGENT], pod.uid))
            address = f"http://{host}:{self._settings.port}"
            self._lines[place] = AgentConnection(self._connector, address, seal, owns_connector=False)
        return self._lines[place]

    async def ask(self, sandbox_id: str, work: Work[T]) -> tuple[T, Pod]:
        """Run `work` with the sandbox's agent; returns its result and the Pod.

        Raises what `work` raises, or the cause of an agent's silence: SandboxNotFound, SandboxFailed with the
        reason, SandboxConflict while the sandbox is pending; SandboxUnavailable when the agent cannot be
        reached and its Pod does not say why. A request that was sent is never sent again here.
        """
        pod = await self.usable(sandbox_id)
        deadline = asyncio.get_running_loop().time() + VERDICT_GRACE
        while True:
            try:
                with self.activity.request(pod):
                    asked = work(self.line(pod), pod.labels[pod_metadata.AGENT])
                    return await self._unless_failed(pod, asked), pod
            except (SandboxUnavailable, SandboxFailed) as error:
                pod = await self._after(error, pod, sandbox_id, deadline)

    async def _after(self, error: SandboxError, pod: Pod, sandbox_id: str, deadline: float) -> Pod:
        """Return the Pod to ask again, if nothing was sent; else raise the cause of the error."""
        match error:
            case AgentUnreachable():
                pod = await self._still_usable(pod, sandbox_id)
                if asyncio.get_running_loop().time() > deadline:
                    raise SandboxUnavailable(error.detail, reason=error.reason) from error
                await self._cache.changed(sandbox_id, RETRY_PAUSE)
                return pod
            case SandboxUnavailable():
                await self._explain(pod, sandbox_id, deadline)
            case SandboxFailed(reason=reason) if reason == AGENT_REPLACED:
                now = await self._still_usable(pod, sandbox_id)
                if (now.uid, now.address) != (pod.uid, pod.address):
                    raise SandboxUnavailable(f"sandbox {sandbox_id} has another Pod now") from error
                await self.fail(pod, pod_metadata.FailureRecord(reason=error.reason, message=error.detail))
        raise error

    async def usable(self, sandbox_id: str) -> Pod:
        """Return the Pod of a ready sandbox. Raises SandboxNotFound, SandboxFailed, SandboxConflict
        (`pending`)."""
        await self._cache.synced(VERDICT_GRACE)
        pod = self._cache.sandbox(sandbox_id)
        if pod is None or not judge(pod, self._settings, time.time()).ready:
            # Another orchestrator may have made it, or have seen it get ready, a moment ago.
            pod = await self._cache.look_up(sandbox_id)
        return await self._insist(pod, sandbox_id)

    async def fail(self, pod: Pod, failure: pod_metadata.FailureRecord) -> None:
        """Mark a sandbox as failed for good, which ends its processes."""
        await self._cache.mark_failed(pod, failure)

    async def settled(self, pod: Pod, verdict: PodVerdict) -> PodVerdict:
        """Return the verdict; a failure that the Pod may later not show is marked first."""
        if verdict.failed and not verdict.settled:
            await self.fail(pod, pod_metadata.FailureRecord(reason=verdict.reason, message=verdict.message))
        return verdict

    async def _insist(self, pod: Pod | None, sandbox_id: str) -> Pod:
        if pod is None or not pod_metadata.claimed(pod):
            raise SandboxNotFound(f"there is no sandbox {sandbox_id}")
        verdict = await self.settled(pod, judge(pod, self._settings, time.time()))
        if verdict.failed:
            raise _failed(sandbox_id, verdict)
        if not verdict.ready:
            raise SandboxConflict(f"sandbox {sandbox_id} is not ready yet", reason="pending")
        if pod_metadata.introduced_by(pod) != self.fingerprint:
            # Not a replaced agent: it must not be given up for what is wrong here.
            raise SandboxUnavailable(
                f"sandbox {sandbox_id} was made with another agent secret than this orchestrator has: all of"
                " a cluster's orchestrators need the same",
                reason="secret_differs",
            )
        return pod

    async def _still_usable(self, pod: Pod, sandbox_id: str) -> Pod:
        """Fetch the Pod from the API server. Raises the same errors as `usable`."""
        return await self._insist(await self._cache.refresh(pod.name), sandbox_id)

    async def _explain(self, pod: Pod, sandbox_id: str, deadline: float) -> None:
        """Raise the cause of an agent's silence, if its Pod comes to show it."""
        loop = asyncio.get_running_loop()
        deadline = max(deadline, loop.time() + VERDICT_GRACE)
        await self._still_usable(pod, sandbox_id)
        while loop.time() < deadline:
            await self._cache.changed(sandbox_id, deadline - loop.time())
            await self._insist(self._cache.named(pod.name), sandbox_id)

    async def _unless_failed(self, pod: Pod, work: Awaitable[T]) -> T:
        """Await `work`, but give up once the Pod has failed or gone: a lost node never answers."""
        working = asyncio.ensure_future(work)
        ending = asyncio.ensure_future(self._end_of(pod))
        try:
            await asyncio.wait({working, ending}, return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                raise ending.result()
            return working.result()
        finally:
            for task in (working, ending):
                task.cancel()
            await asyncio.wait({working, ending})

    async def _end_of(self, pod: Pod) -> SandboxError:
        """Wait until the Pod has ended; returns the cause as an error."""
        sandbox_id = pod.labels[pod_metadata.SANDBOX]
        notice = ""
        while True:
            now = self._cache.named(pod.name)
            if now is None or now.uid != pod.uid:
                if notice:
                    return SandboxFailed(f"sandbox {sandbox_id} failed: {notice}", reason=EVICTED)
                return SandboxNotFound(f"there is no sandbox {sandbox_id} any more")
            notice = taken(now)
            verdict = judge(now, self._settings, time.time())
            if verdict.failed and verdict.settled:
                return _failed(sandbox_id, verdict)
            left = None if verdict.until is None else max(0.0, verdict.until - time.time())
            await self._cache.changed(sandbox_id, left)

    def _changed(self, was: Pod | None, now: Pod | None) -> None:
        if was is not None and (now is None or (now.uid, now.address) != (was.uid, was.address)):
            line = self._lines.pop((was.uid, was.address), None)
            if line is not None:
                task = asyncio.get_running_loop().create_task(line.close())
                self._closing.add(task)
                task.add_done_callback(self._closing.discard)


class PodAgent(NamedTuple):
    """The agent of one sandbox, in whatever Pod that is when asked; implements `Agent`."""

    agents: Agents
    sandbox_id: str

    async def call(self, kind: type[T], method: str, path: str, **options: Any) -> T:
        reply, _ = await self.agents.ask(
            self.sandbox_id,
            lambda line, name: line.call(kind, method, path.replace("{id}", name), **options),
        )
        return self._of_the_sandbox(reply)

    @asynccontextmanager
    async def stream(self, path: str, params: Mapping[str, str]) -> AsyncIterator[AsyncIterator[bytes]]:
        async with AsyncExitStack() as stack:
            pieces, pod = await self.agents.ask(
                self.sandbox_id,
                lambda line, name: stack.enter_async_context(line.stream(path.replace("{id}", name), params)),
            )
            with self.agents.activity.request(pod):
                yield pieces

    async def line(self, path: str) -> aiohttp.ClientWebSocketResponse:
        line, pod = await self.agents.ask(
            self.sandbox_id, lambda line, name: line.line(path.replace("{id}", name))
        )
        self.agents.activity.hold(pod, line)
        return line

    def _of_the_sandbox(self, reply: T) -> T:
        """Replace the agent's own id: in a warm Pod it was started before the sandbox's id was known."""
        changed: dict[str, str] = {}
        if isinstance(reply, Job | JobQueued):
            changed["job_id"] = f"{self.sandbox_id}.{reply.job_id.partition('.')[2]}"
        if isinstance(reply, Job | Acknowledgement):
            changed["sandbox_id"] = self.sandbox_id
        return msgspec.structs.replace(reply, **changed) if changed else reply  # type: ignore[type-var]


def _failed(sandbox_id: str, verdict: PodVerdict) -> SandboxFailed:
    return SandboxFailed(f"sandbox {sandbox_id} failed: {verdict.message}", reason=verdict.reason)

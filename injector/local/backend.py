"""The Backend of one machine: every call goes to the agent of a state directory, over its unix socket."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import aiohttp
import msgspec

from orchard.injector.agent.machine import quantity
from orchard.injector.agent_connection import AgentConnection, AgentUnreachable
from orchard.injector.errors import SandboxUnavailable
from orchard.injector.local import agent_process
from orchard.schemas.sandboxes import (
    Acknowledgement,
    Amounts,
    ApplyPatch,
    CreateSandbox,
    ExecRequest,
    FileList,
    FileWritten,
    ForkSandbox,
    Health,
    Job,
    JobQueued,
    Node,
    PatchResult,
    Resources,
    SandboxInfo,
    SandboxPod,
    SandboxStatus,
    SnapshotReply,
    SnapshotRequest,
)

SOCKET = "agent.sock"
T = TypeVar("T")

_encode = msgspec.json.encode


class LocalBackend:
    """Sandboxes held by the agent of `state`.

    With `start_agent` an agent is started when none answers; without, somebody else starts it and calls raise
    SandboxUnavailable until it is there.
    """

    def __init__(self, state: Path, *, backend: str = "local", start_agent: bool = True) -> None:
        self._state = state
        self._backend = backend
        self._start_agent = start_agent
        self._starting = asyncio.Lock()
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
        # By descriptor, because a socket's path may have only 107 bytes.
        self._directory = os.open(state, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self._agent: AgentConnection | None = None

    async def open(self) -> None:
        """Connect, starting the agent if that is ours to do; SandboxUnavailable when it cannot start."""
        connector = aiohttp.UnixConnector(f"/proc/self/fd/{self._directory}/{SOCKET}", limit=0)
        self._agent = AgentConnection(connector)
        if self._start_agent:
            await self.health()

    async def close(self) -> None:
        """Disconnect; the agent and its sandboxes stay."""
        if self._agent is not None:
            await self._agent.close()
            self._agent = None
        os.close(self._directory)

    async def health(self) -> Health:
        """Of the agent."""
        return await self._call(Health, "GET", "/health")

    async def resources(self) -> Resources:
        """This machine and the sandboxes on it."""
        sandboxes = await self.list({})
        machine = Amounts(
            cpu=float(os.cpu_count() or 1),
            memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        )
        pods = [
            SandboxPod(
                name=sandbox.pod_name,
                namespace=sandbox.namespace,
                phase=_PHASES[sandbox.status],
                cpu_request=quantity(sandbox.cpu),
                memory_request_bytes=int(quantity(sandbox.memory)),
            )
            for sandbox in sandboxes
        ]
        live = [pod for pod in pods if pod.phase != "Failed"]
        requested = Amounts(
            cpu=sum(pod.cpu_request for pod in live),
            memory_bytes=sum(pod.memory_request_bytes for pod in live),
        )
        return Resources(
            status="ok",
            nodes=[Node(name=socket.gethostname(), capacity=machine, allocatable=machine)],
            total_capacity=machine,
            total_allocatable=machine,
            total_requested=requested,
            # Limits are not reservations here, so more may be asked for than there is.
            available=Amounts(
                cpu=max(0.0, machine.cpu - requested.cpu),
                memory_bytes=max(0, machine.memory_bytes - requested.memory_bytes),
            ),
            sandbox_pods=pods,
        )

    async def create(self, request: CreateSandbox, key: str | None) -> SandboxInfo:
        """See Backend."""
        return await self._call(SandboxInfo, "POST", "/sandboxes", body=_encode(request), key=key)

    async def fork(self, sandbox_id: str, request: ForkSandbox, key: str | None) -> list[SandboxInfo]:
        """See Backend."""
        path, body = f"/sandboxes/{_part(sandbox_id)}/fork", _encode(request)
        return await self._call(list[SandboxInfo], "POST", path, body=body, key=key)

    async def get(self, sandbox_id: str) -> SandboxInfo:
        """See Backend."""
        return await self._call(SandboxInfo, "GET", f"/sandboxes/{_part(sandbox_id)}")

    async def wait(self, sandbox_id: str, timeout: float) -> SandboxInfo:
        """See Backend."""
        params = {"timeout": str(timeout)}
        return await self._call(SandboxInfo, "GET", f"/sandboxes/{_part(sandbox_id)}/wait", params=params)

    async def list(self, labels: Mapping[str, str]) -> list[SandboxInfo]:
        """See Backend."""
        params = [("label", f"{name}={value}") for name, value in labels.items()]
        return await self._call(list[SandboxInfo], "GET", "/sandboxes", params=params)

    async def delete(self, sandbox_id: str) -> None:
        """See Backend."""
        await self._call(Acknowledgement, "DELETE", f"/sandboxes/{_part(sandbox_id)}")

    async def heartbeat(self, sandbox_id: str) -> None:
        """See Backend."""
        await self._call(Acknowledgement, "POST", f"/sandboxes/{_part(sandbox_id)}/heartbeat")

    async def exec(self, sandbox_id: str, request: ExecRequest, key: str | None) -> Job | JobQueued:
        """See Backend."""
        path, body = f"/sandboxes/{_part(sandbox_id)}/exec", _encode(request)
        if request.wait:
            return await self._call(Job, "POST", path, body=body, key=key)
        return await self._call(JobQueued, "POST", path, body=body, key=key)

    async def terminal(self, sandbox_id: str) -> aiohttp.ClientWebSocketResponse:
        """See Backend."""
        await self.heartbeat(sandbox_id)  # a refused WebSocket cannot say why; this can
        return await self._connected.line(f"/sandboxes/{_part(sandbox_id)}/exec/pty")

    async def job(self, job_id: str) -> Job:
        """See Backend."""
        return await self._call(Job, "GET", f"/jobs/{_part(job_id)}")

    async def wait_job(self, job_id: str, timeout: float) -> Job:
        """See Backend."""
        return await self._call(Job, "GET", f"/jobs/{_part(job_id)}/wait", params={"timeout": str(timeout)})

    async def cancel_job(self, job_id: str) -> Job:
        """See Backend."""
        return await self._call(Job, "DELETE", f"/jobs/{_part(job_id)}")

    async def apply_patch(self, sandbox_id: str, request: ApplyPatch, key: str | None) -> PatchResult:
        """See Backend."""
        path = f"/sandboxes/{_part(sandbox_id)}/apply_patch"
        return await self._call(PatchResult, "POST", path, body=_encode(request), key=key)

    async def write_file(
        self, sandbox_id: str, path: str, content: AsyncIterator[bytes] | bytes
    ) -> FileWritten:
        """See Backend."""
        params = {"path": path}
        return await self._call(
            FileWritten, "PUT", f"/sandboxes/{_part(sandbox_id)}/files", params=params, body=content
        )

    @asynccontextmanager
    async def read_file(
        self, sandbox_id: str, path: str, limit: int | None = None
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """See Backend."""
        params = {"path": path} if limit is None else {"path": path, "limit": str(limit)}
        async with self._connected.stream(f"/sandboxes/{_part(sandbox_id)}/files", params) as pieces:
            yield pieces

    async def list_files(self, sandbox_id: str, path: str) -> FileList:
        """See Backend."""
        return await self._call(
            FileList, "GET", f"/sandboxes/{_part(sandbox_id)}/files/list", params={"path": path}
        )

    @asynccontextmanager
    async def read_archive(self, sandbox_id: str, path: str) -> AsyncIterator[AsyncIterator[bytes]]:
        """See Backend."""
        archive = f"/sandboxes/{_part(sandbox_id)}/archive"
        async with self._connected.stream(archive, {"path": path}) as pieces:
            yield pieces

    async def write_archive(
        self, sandbox_id: str, path: str, content: AsyncIterator[bytes] | bytes
    ) -> FileWritten:
        """See Backend."""
        archive = f"/sandboxes/{_part(sandbox_id)}/archive"
        return await self._call(FileWritten, "PUT", archive, params={"path": path}, body=content)

    async def snapshot(self, sandbox_id: str, image: str) -> SnapshotReply:
        """See Backend."""
        body = _encode(SnapshotRequest(image=image))
        return await self._call(SnapshotReply, "POST", f"/sandboxes/{_part(sandbox_id)}/snapshot", body=body)

    @property
    def _connected(self) -> AgentConnection:
        if self._agent is None:
            raise SandboxUnavailable("the backend is not open")
        return self._agent

    async def _call(self, kind: type[T], method: str, path: str, **options: Any) -> T:
        try:
            return await self._connected.call(kind, method, path, **options)
        except AgentUnreachable:
            if not self._start_agent:
                raise
        await self._ensure_agent()
        return await self._connected.call(kind, method, path, **options)

    async def _ensure_agent(self) -> None:
        """Start an agent unless one has come to answer meanwhile."""
        async with self._starting:
            try:
                await self._connected.call(Health, "GET", "/health")
            except AgentUnreachable:
                await agent_process.start(self._state, backend=self._backend)


def _part(text: str) -> str:
    """As one part of a path, whatever it contains."""
    return quote(text, safe="")


_PHASES = {
    SandboxStatus.PENDING: "Pending",
    SandboxStatus.UNSCHEDULABLE: "Pending",
    SandboxStatus.READY: "Running",
    SandboxStatus.FAILED: "Failed",
    SandboxStatus.NOT_FOUND: "Failed",
}

"""The agent of one machine asked without an orchestrator between."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager

from orchard.injector.local.backend import LocalBackend
from orchard.schemas.sandboxes import (
    ExecRequest,
    FileWritten,
    ForkSandbox,
    Job,
    JobQueued,
    SandboxInfo,
    SnapshotReply,
    SnapshotRequest,
)

IN = "/sandboxes/{id}"


class Direct(LocalBackend):
    """The backend, with what agents are asked as methods."""

    async def exec(self, sandbox_id: str, request: ExecRequest) -> Job | JobQueued:
        kind: type[Job | JobQueued] = Job if request.wait else JobQueued
        return await self.agent(sandbox_id).call(kind, "POST", f"{IN}/exec", body=request)

    async def wait_job(self, job_id: str, timeout: float) -> Job:
        params = {"timeout": str(timeout)}
        return await self.agent("").call(Job, "GET", f"/jobs/{job_id}/wait", params=params)

    async def fork(self, sandbox_id: str, request: ForkSandbox, key: str | None = None) -> list[SandboxInfo]:
        agent = self.agent(sandbox_id)
        return await agent.call(list[SandboxInfo], "POST", f"{IN}/fork", body=request, key=key)

    async def snapshot(self, sandbox_id: str, image: str) -> SnapshotReply:
        request = SnapshotRequest(image=image)
        return await self.agent(sandbox_id).call(SnapshotReply, "POST", f"{IN}/snapshot", body=request)

    async def write(self, what: str, sandbox_id: str, path: str, content: object) -> FileWritten:
        """`what` is `files` or `archive`."""
        agent = self.agent(sandbox_id)
        return await agent.call(FileWritten, "PUT", f"{IN}/{what}", params={"path": path}, body=content)

    def read(
        self, what: str, sandbox_id: str, path: str
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        return self.agent(sandbox_id).stream(f"{IN}/{what}", {"path": path})

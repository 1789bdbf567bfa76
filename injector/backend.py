"""What the orchestrator needs from whatever holds the sandboxes: one machine, a cluster."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import aiohttp

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


class Backend(Protocol):
    """Sandboxes and their jobs. It is the only memory: an orchestrator may be replaced at any time.

    Every method raises the typed errors of `injector/errors.py`; `key` is an idempotency key: the same again
    returns what the first call made. Times are seconds.
    """

    async def open(self) -> None:
        """Get ready to serve."""

    async def close(self) -> None:
        """Let go of connections; sandboxes stay."""

    async def health(self) -> Health:
        """Raises SandboxUnavailable when sandboxes cannot be made or reached."""

    async def resources(self) -> Resources:
        """What there is and what is asked for."""

    async def create(self, request: CreateSandbox, key: str | None) -> SandboxInfo:
        """Begin to create a sandbox; it is `pending`. Raises SandboxConflict when the id is taken."""

    async def get(self, sandbox_id: str) -> SandboxInfo:
        """Raises SandboxNotFound."""

    async def wait(self, sandbox_id: str, timeout: float) -> SandboxInfo:
        """The sandbox once it is ready or failed; SandboxWaitTimeout."""

    # Before `list`, whose name hides the type in the rest of the class.
    async def fork(self, sandbox_id: str, request: ForkSandbox, key: str | None) -> list[SandboxInfo]:
        """Begin to create copies of a sandbox. Raises SandboxUnsupported where the backend cannot."""

    async def list(self, labels: Mapping[str, str]) -> list[SandboxInfo]:
        """Those that carry all `labels`."""

    async def delete(self, sandbox_id: str) -> None:
        """Gone when this returns; unknown ids too."""

    async def heartbeat(self, sandbox_id: str) -> None:
        """Somebody still needs it. Raises SandboxFailed when it has failed."""

    async def exec(self, sandbox_id: str, request: ExecRequest, key: str | None) -> Job | JobQueued:
        """Start a command; with `request.wait`, its job when it ended or the server-side wait is over."""

    async def terminal(self, sandbox_id: str) -> aiohttp.ClientWebSocketResponse:
        """A line to the agent for one terminal session, frames as in the contract; the caller closes it."""

    async def job(self, job_id: str) -> Job:
        """The job as it is."""

    async def wait_job(self, job_id: str, timeout: float) -> Job:
        """The job when it ended or `timeout` is over."""

    async def cancel_job(self, job_id: str) -> Job:
        """Kill the job's process group."""

    async def apply_patch(self, sandbox_id: str, request: ApplyPatch, key: str | None) -> PatchResult:
        """Apply a patch; one that does not fit is a result, no error."""

    async def write_file(
        self, sandbox_id: str, path: str, content: AsyncIterator[bytes] | bytes
    ) -> FileWritten:
        """Make or replace a regular file, with its parent directories."""

    def read_file(
        self, sandbox_id: str, path: str, limit: int | None = None
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """The content of a regular file, in pieces; SandboxFileMissing, SandboxFileTooLarge (`limit`)."""

    async def list_files(self, sandbox_id: str, path: str) -> FileList:
        """The entries of a directory, by name; SandboxFileMissing."""

    def read_archive(self, sandbox_id: str, path: str) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """A directory as a tar stream in pieces, names relative to it; SandboxFileMissing."""

    async def write_archive(
        self, sandbox_id: str, path: str, content: AsyncIterator[bytes] | bytes
    ) -> FileWritten:
        """Unpack a tar stream into a directory, made where it is missing; nothing lands outside of it."""

    async def snapshot(self, sandbox_id: str, image: str) -> SnapshotReply:
        """Make the sandbox's file system, as it is now, an image."""

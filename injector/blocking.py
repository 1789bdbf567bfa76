"""The blocking client of the sandbox service: the asynchronous one, driven on a thread of its own."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, overload

from orchard.injector.client import AsyncSandboxClient
from orchard.injector.event_loop import EventLoopThread
from orchard.injector.process import ContainerProcess
from orchard.injector.results import Entry, HealthResult, JobResult, PatchOutcome, Written
from orchard.injector.sandbox import IN_MEMORY_LIMIT, ON_DISK_LIMIT, WAIT_STEP, AsyncSandbox
from orchard.schemas.sandboxes import OUTPUT_LIMIT, Resources, SandboxInfo, SnapshotReply


class Sandbox:
    """AsyncSandbox for blocking code: see there for what each method does and raises."""

    def __init__(self, loop: EventLoopThread, sandbox: AsyncSandbox) -> None:
        self._loop = loop
        self._sandbox = sandbox
        self.sandbox_id = sandbox.sandbox_id
        self.namespace = sandbox.namespace
        self.image = sandbox.image
        self.block_network = sandbox.block_network
        self.info = sandbox.info

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.delete()

    @overload
    def exec(
        self,
        command: str | list[str],
        timeout: float | None = ...,
        cwd: str | None = ...,
        env: dict[str, str] | None = ...,
        wait: bool = ...,
        poll_interval: float | None = ...,
        login_shell: bool = ...,
        pty: Literal[False] = ...,
        *,
        timeout_seconds: float | None = ...,
        output_limit: int = ...,
        merge_output: bool = ...,
        stdin: str | None = ...,
        idempotency_key: str | None = ...,
    ) -> JobResult: ...
    @overload
    def exec(
        self,
        command: str | list[str],
        *,
        cwd: str | None = ...,
        env: dict[str, str] | None = ...,
        login_shell: bool = ...,
        pty: Literal[True],
        rows: int = ...,
        cols: int = ...,
    ) -> ContainerProcess: ...
    def exec(
        self,
        command: str | list[str],
        timeout: float | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        wait: bool = True,
        poll_interval: float | None = None,
        login_shell: bool = False,
        pty: bool = False,
        rows: int = 24,
        cols: int = 80,
        *,
        timeout_seconds: float | None = None,
        output_limit: int = OUTPUT_LIMIT,
        merge_output: bool = False,
        stdin: str | None = None,
        idempotency_key: str | None = None,
    ) -> JobResult | ContainerProcess:
        """Run a command, or start one on a terminal; see AsyncSandbox.exec."""
        if pty:
            started = self._loop.run(
                self._sandbox.exec(
                    command, cwd=cwd, env=env, login_shell=login_shell, pty=True, rows=rows, cols=cols
                )
            )
            return ContainerProcess(self._loop, started)
        return self._loop.run(
            self._sandbox.exec(
                command,
                timeout,
                cwd,
                env,
                wait,
                poll_interval,
                login_shell,
                timeout_seconds=timeout_seconds,
                output_limit=output_limit,
                merge_output=merge_output,
                stdin=stdin,
                idempotency_key=idempotency_key,
            )
        )

    def get_job(self, job_id: str) -> JobResult:
        """The job as it is."""
        return self._loop.run(self._sandbox.get_job(job_id))

    def wait_job(self, job_id: str, timeout: float = WAIT_STEP) -> JobResult:
        """The job when it has ended, or as it is after `timeout` seconds."""
        return self._loop.run(self._sandbox.wait_job(job_id, timeout))

    def cancel_job(self, job_id: str) -> JobResult:
        """Kill the job's process group."""
        return self._loop.run(self._sandbox.cancel_job(job_id))

    def apply_patch(
        self,
        patch: str,
        timeout: float = 30.0,
        *,
        cwd: str = "/workspace",
        idempotency_key: str | None = None,
    ) -> PatchOutcome:
        """Apply a unified diff, wholly or not at all."""
        return self._loop.run(
            self._sandbox.apply_patch(patch, timeout, cwd=cwd, idempotency_key=idempotency_key)
        )

    def upload_content(self, content: bytes | str, remote_path: str) -> Written:
        """Make or replace a file."""
        data = content.encode() if isinstance(content, str) else content
        return self._loop.run(self._sandbox.upload_content(data, remote_path))

    def upload_file(self, local_path: str | Path, remote_path: str) -> Written:
        """The same with the content of a local file."""
        return self._loop.run(self._sandbox.upload_file(local_path, remote_path))

    def download_content(self, remote_path: str, *, limit: int = IN_MEMORY_LIMIT) -> bytes:
        """The bytes of a file; SandboxFileTooLarge beyond `limit`."""
        return self._loop.run(self._sandbox.download_content(remote_path, limit=limit))

    def download_file(self, remote_path: str, local_path: str | Path, *, limit: int = ON_DISK_LIMIT) -> int:
        """The same into a local file; returns its size in bytes."""
        return self._loop.run(self._sandbox.download_file(remote_path, local_path, limit=limit))

    def upload_directory(self, local_path: str | Path, remote_path: str) -> Written:
        """Copy what is in a local directory into one of the sandbox."""
        return self._loop.run(self._sandbox.upload_directory(local_path, remote_path))

    def download_directory(
        self, remote_path: str, local_path: str | Path, *, limit: int = ON_DISK_LIMIT
    ) -> list[str]:
        """Copy what is in a directory of the sandbox into a local one; returns what was left out."""
        return self._loop.run(self._sandbox.download_directory(remote_path, local_path, limit=limit))

    def list_files(self, remote_path: str = "/") -> list[Entry]:
        """Entries of a directory, by name."""
        return self._loop.run(self._sandbox.list_files(remote_path))

    def check_env(self, verbose: bool = True) -> dict[str, Any]:
        """What shells find here."""
        return self._loop.run(self._sandbox.check_env(verbose))

    def snapshot(self, image: str) -> SnapshotReply:
        """Make the file system as it is now an image."""
        return self._loop.run(self._sandbox.snapshot(image))

    def fork(
        self,
        count: int = 1,
        *,
        sandbox_ids: Sequence[str] | None = None,
        labels: dict[str, str] | None = None,
        ttl_seconds: float | None = None,
        idempotency_key: str | None = None,
    ) -> "list[Sandbox]":
        """Make copies of the file system as it is now, each a sandbox of its own."""
        forks = self._loop.run(
            self._sandbox.fork(
                count,
                sandbox_ids=sandbox_ids,
                labels=labels,
                ttl_seconds=ttl_seconds,
                idempotency_key=idempotency_key,
            )
        )
        return [Sandbox(self._loop, fork) for fork in forks]

    def status(self) -> SandboxInfo:
        """The sandbox's record as it is now."""
        return self._loop.run(self._sandbox.status())

    def heartbeat(self) -> None:
        """Tell the service, once, that the sandbox is needed."""
        self._loop.run(self._sandbox.heartbeat())

    def start_heartbeat(self, interval: float = 60.0) -> None:
        """Do so every `interval` seconds in the background, until stopped or deleted."""
        self._loop.call(lambda: self._sandbox.start_heartbeat(interval))

    def stop_heartbeat(self) -> None:
        """Stop; nothing when none runs."""
        self._loop.run(self._sandbox.stop_heartbeat())

    def delete(self) -> None:
        """Kill everything inside and remove it; nothing when it is gone."""
        self._loop.run(self._sandbox.delete())


class SandboxClient:
    """AsyncSandboxClient for blocking code: see there for what each argument and method means.

    Safe to use from several threads. A forked child may go on using it: with connections of its own, and
    without owning, or deleting, what its parent made.
    """

    def __init__(
        self,
        base_url: str | None = None,
        timeout: float = 1200.0,
        auto_cleanup: bool = True,
        api_key: str | None = None,
        prefix: str | None = None,
        *,
        retry_seconds: float = 60.0,
        tls_ca: str | None = None,
    ) -> None:
        self._client = AsyncSandboxClient(
            base_url, timeout, auto_cleanup, api_key, prefix, retry_seconds=retry_seconds, tls_ca=tls_ca
        )
        self._loop = EventLoopThread()
        self.base_url = self._client.base_url
        self.prefix = self._client.prefix

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()

    def create_sandbox(
        self,
        image: str,
        block_network: bool = True,
        sandbox_id: str | None = None,
        cpu: str | None = None,
        memory: str | None = None,
        timeout: float | None = None,
        wait_ready: bool = True,
        poll_interval: float | None = None,
        *,
        labels: dict[str, str] | None = None,
        ttl_seconds: float | None = None,
        idempotency_key: str | None = None,
    ) -> Sandbox:
        """Create a sandbox; see AsyncSandboxClient.create_sandbox."""
        made = self._loop.run(
            self._client.create_sandbox(
                image,
                block_network,
                sandbox_id,
                cpu,
                memory,
                timeout,
                wait_ready,
                poll_interval,
                labels=labels,
                ttl_seconds=ttl_seconds,
                idempotency_key=idempotency_key,
            )
        )
        return Sandbox(self._loop, made)

    def get_sandbox(self, sandbox_id: str) -> Sandbox:
        """A sandbox that exists; cleaning up is left to whoever made it."""
        return Sandbox(self._loop, self._loop.run(self._client.get_sandbox(sandbox_id)))

    def list_sandboxes(self, labels: Mapping[str, str] | None = None) -> list[SandboxInfo]:
        """Records of the sandboxes that carry all `labels`."""
        return self._loop.run(self._client.list_sandboxes(labels))

    def delete_sandbox(self, sandbox_id: str) -> None:
        """Delete a sandbox; nothing when there is none."""
        self._loop.run(self._client.delete_sandbox(sandbox_id))

    def cleanup_all(self) -> None:
        """Delete the sandboxes that this client made in this process."""
        self._loop.run(self._client.cleanup_all())

    def health(self) -> HealthResult:
        """Raises SandboxUnavailable while the service cannot make sandboxes."""
        return self._loop.run(self._client.health())

    def resources(self) -> Resources:
        """What there is and what is asked for."""
        return self._loop.run(self._client.resources())

    def close(self) -> None:
        """Clean up, unless told not to, close all connections and end the thread."""
        try:
            self._loop.run(self._client.close())
        finally:
            self._loop.stop()

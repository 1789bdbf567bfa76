"""The asynchronous client of one sandbox: commands, tunnels, life cycle."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Literal, Self, overload

from aiohttp import ClientWebSocketResponse

from orchard.injector import environment, operations
from orchard.injector.agent.protocol import COMMAND_TIMEOUT, WORKSPACE
from orchard.injector.errors import SandboxError, SandboxFailed, SandboxNotFound
from orchard.injector.following import Exit, Output, follow
from orchard.injector.process import AsyncContainerProcess
from orchard.injector.results import JobResult
from orchard.injector.sandbox_states import SandboxStates
from orchard.injector.transport import Transport
from orchard.injector.tunnels import LOOPBACK, AsyncTunnel
from orchard.schemas.sandboxes import (
    OUTPUT_LIMIT,
    Acknowledgement,
    ExecRequest,
    ForkSandbox,
    JobQueued,
    JobStatus,
    SandboxInfo,
    SnapshotReply,
    SnapshotRequest,
)

WAIT_STEP = 60.0
CHECK_TIMEOUT = 60.0
"""Default timeout in seconds of either probe of `check_env`."""
ANSWER_MARGIN = 60.0
"""Seconds that a response may take beyond the time that the server was asked to wait."""

log = logging.getLogger(__name__)


class AsyncSandbox(SandboxStates):
    """An existing sandbox. As a context manager it is deleted at the end of the block.

    Every method raises the errors of `injector/errors.py`: SandboxUnavailable when the service does not
    respond, SandboxFailed when the sandbox died, SandboxNotFound when it was deleted.
    """

    def __init__(
        self,
        transport: Transport,
        info: SandboxInfo,
        deleted: Callable[[str], object],
        made: "Callable[[Coroutine[Any, Any, list[SandboxInfo]]], Awaitable[list[AsyncSandbox]]]",
    ) -> None:
        """`deleted` is called with the id once it is gone; `made` awaits a request for forks, takes
        ownership of them and waits until they are ready."""
        super().__init__(transport, info.sandbox_id)
        self._deleted = deleted
        self._made = made
        self.info = info
        """The record at its creation; `status` fetches the current one."""
        self.namespace = info.namespace
        self.image = info.image
        self.block_network = info.block_network
        self._heartbeat: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        await self.stop_heartbeat()
        await asyncio.shield(self.delete())

    @overload
    async def exec(
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
        user: str | None = ...,
    ) -> JobResult: ...
    @overload
    async def exec(
        self,
        command: str | list[str],
        *,
        cwd: str | None = ...,
        env: dict[str, str] | None = ...,
        login_shell: bool = ...,
        pty: Literal[True],
        rows: int = ...,
        cols: int = ...,
        user: str | None = ...,
    ) -> AsyncContainerProcess: ...
    async def exec(
        self,
        command: str | list[str],
        timeout: float | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        wait: bool = True,
        poll_interval: float | None = None,  # noqa: ARG002
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
        user: str | None = None,
    ) -> JobResult | AsyncContainerProcess:
        """Run a command to its end, once, even if the orchestrator is replaced meanwhile.

        A string is run by the image's shell, a list is executed directly, in `cwd` ("/workspace"). After
        `timeout` (300) seconds, also called `timeout_seconds`, its process group is killed: exit code 124 and
        `timed_out`. It runs as `user` (a name or number of the sandbox, perhaps with `:group`), else as the
        image says. `output_limit` is in bytes, for stdout and stderr each. With `wait=False` the job is
        returned at once, `queued`; see `wait_job`. `poll_interval` is accepted for old callers: nothing is
        polled.

        With `pty=True` the command runs on a terminal of `rows` and `cols`, without a time limit, and its
        process is returned, which lives as long as the caller keeps it.
        """
        if pty:
            init = {"cmd": command, "env": env or {}, "cwd": cwd or WORKSPACE, "login_shell": login_shell}
            return await self._terminal({**init, "rows": rows, "cols": cols, "user": user})
        seconds = timeout_seconds or timeout or COMMAND_TIMEOUT
        request = ExecRequest(
            command=command,
            timeout_seconds=seconds,
            cwd=cwd or WORKSPACE,
            env=env or {},
            login_shell=login_shell,
            wait=wait,
            output_limit=output_limit,
            merge_output=merge_output,
            stdin=stdin,
            user=user,
        )
        if not wait:
            queued = await self._call(JobQueued, operations.EXEC, body=request, key=idempotency_key)
            return JobResult(
                job_id=queued.job_id,
                sandbox_id=self.sandbox_id,
                command=command,
                status=JobStatus.QUEUED,
                created_at=time.time(),
            )
        longest = seconds + ANSWER_MARGIN
        job = await self._call(JobResult, operations.EXEC, body=request, key=idempotency_key, timeout=longest)
        while not job.is_complete:
            job = await self.wait_job(job.job_id, WAIT_STEP)
        return job

    async def _terminal(self, init: dict[str, object]) -> AsyncContainerProcess:
        return await AsyncContainerProcess.start(await self._line(operations.TERMINAL), init)

    async def _line(self, operation: operations.ApiOperation, query: str = "") -> ClientWebSocketResponse:
        try:
            return await self._transport.line(f"{operation.at(self.sandbox_id)}?{query}".rstrip("?"))
        except SandboxError:
            await self.heartbeat()  # a refused WebSocket cannot say why; this can
            raise

    def forward(
        self,
        port: int,
        *,
        local_port: int = 0,
        host: str = LOOPBACK,
        idle_seconds: float | None = None,
    ) -> AsyncTunnel:
        """Return a tunnel to `port` of the sandbox's loopback address; `async with` opens it.

        It listens here, at `host` and `local_port`; 0 chooses a free port, which becomes its `port`. Every
        account of this machine can connect there. A connection without traffic for `idle_seconds` (3600) is
        reset.
        """
        return self._tunnel("forward", port, (host, local_port), idle_seconds)

    def reverse(
        self, port: int, target: int | tuple[str, int], *, idle_seconds: float | None = None
    ) -> AsyncTunnel:
        """Return a tunnel from 127.0.0.1:`port` of the sandbox to `target`; `async with` opens it.

        `target` is a port of this machine's 127.0.0.1, or a host and a port that this process connects to;
        the sandbox reaches nothing else by it, network or not. `port` 0 chooses a free port, which becomes
        its `port`. `idle_seconds` as in `forward`. Raises SandboxConflict if a program inside has the port.
        """
        here = (LOOPBACK, target) if isinstance(target, int) else target
        return self._tunnel("reverse", port, here, idle_seconds)

    def _tunnel(
        self,
        direction: Literal["forward", "reverse"],
        port: int,
        here: tuple[str, int],
        idle_seconds: float | None,
    ) -> AsyncTunnel:
        dial = partial(self._line, operations.TUNNEL)
        return AsyncTunnel(dial, self._transport.tunnels, direction, port, here, idle_seconds)

    async def start(
        self,
        command: str | list[str],
        *,
        timeout_seconds: float = COMMAND_TIMEOUT,
        cwd: str = WORKSPACE,
        env: dict[str, str] | None = None,
        login_shell: bool = False,
        idempotency_key: str | None = None,
    ) -> str:
        """Start a command and return its job id at once."""
        job = await self.exec(
            command,
            timeout_seconds,
            cwd,
            env,
            wait=False,
            login_shell=login_shell,
            idempotency_key=idempotency_key,
        )
        return job.job_id

    async def get_job(self, job_id: str) -> JobResult:
        """Return the job in its current state."""
        return await self._transport.call(JobResult, operations.JOB, job_id)

    async def list_jobs(self) -> list[JobResult]:
        """List the jobs that are kept, oldest first, without output."""
        return await self._call(list[JobResult], operations.JOBS)

    async def wait_job(self, job_id: str, timeout: float = WAIT_STEP) -> JobResult:
        """Return the job once it has ended, or in its state after `timeout` seconds."""
        params, longest = {"timeout": str(timeout)}, timeout + ANSWER_MARGIN
        return await self._transport.call(
            JobResult, operations.WAIT_JOB, job_id, params=params, timeout=longest
        )

    def follow(self, job_id: str, offset: str = "0.0") -> AsyncIterator[Output | Exit]:
        """Yield the job's output while it runs, from the start or after `offset`; the last item is its Exit.

        It reconnects as needed, and nothing comes twice. The middle of output beyond the job's `output_limit`
        is not kept: an Output then says how many bytes were `skipped`. Leaving the loop leaves the job
        running.
        """
        return follow(self._transport, job_id, offset, self._transport.retry_seconds)

    async def cancel_job(self, job_id: str) -> JobResult:
        """Kill the job's process group. The job may still be `running` in the response."""
        return await self._transport.call(JobResult, operations.CANCEL_JOB, job_id)

    async def check_env(self, verbose: bool = True) -> dict[str, Any]:
        """Report what shells find here: whether `~/.bashrc` is loaded, conda, PATH with and without login,
        python.

        For the keys see `environment.report`. The report is also printed unless `verbose` is false.
        """
        plain = await self.exec(environment.PROBE, CHECK_TIMEOUT, "/")
        login = await self.exec(environment.PROBE, CHECK_TIMEOUT, "/", login_shell=True)
        for probe in (plain, login):
            if not probe.succeeded:
                raise SandboxError(
                    f"the shell of {self.image} cannot be asked: {probe.error or probe.stderr}"
                )
        found = environment.report(plain.stdout, login.stdout)
        if verbose:
            print(environment.summary(self.sandbox_id, found))  # noqa: T201
        return found

    async def snapshot(self, image: str) -> SnapshotReply:
        """Make the current file system an image. Wait for writing commands before."""
        return await self._call(SnapshotReply, operations.SNAPSHOT, body=SnapshotRequest(image=image))

    async def fork(
        self,
        count: int = 1,
        *,
        sandbox_ids: Sequence[str] | None = None,
        labels: dict[str, str] | None = None,
        ttl_seconds: float | None = None,
        snapshot: str | None = None,
        idempotency_key: str | None = None,
    ) -> "list[AsyncSandbox]":
        """Make `count` copies of the current file system, each a sandbox of its own, and wait for them.

        With `snapshot` they start from the snapshot of this name instead (`take_snapshot`). They have this
        one's image, limits and network, and its labels and time to live unless others are given, but none of
        its processes. Wait for writing commands before. The client deletes them like those that it creates.
        Raises SandboxConflict when one of `sandbox_ids` is taken and SandboxUnsupported where the backend
        cannot fork; then there are none.
        """
        request = ForkSandbox(
            count=count,
            sandbox_ids=None if sandbox_ids is None else list(sandbox_ids),
            labels=labels,
            ttl_seconds=ttl_seconds,
            snapshot=snapshot,
        )
        return await self._made(
            self._call(list[SandboxInfo], operations.FORK, body=request, key=idempotency_key)
        )

    async def status(self) -> SandboxInfo:
        """Fetch the sandbox's current record."""
        return await self._call(SandboxInfo, operations.GET)

    async def heartbeat(self) -> None:
        """Tell the service, once, that the sandbox is in use."""
        await self._call(Acknowledgement, operations.HEARTBEAT)

    def start_heartbeat(self, interval: float = 60.0) -> None:
        """Send a heartbeat every `interval` seconds, until stopped or deleted."""
        if self._heartbeat is None or self._heartbeat.done():
            self._heartbeat = asyncio.get_running_loop().create_task(self._beat(interval))

    async def stop_heartbeat(self) -> None:
        if self._heartbeat is None:
            return
        if (
            self._heartbeat.get_loop() is asyncio.get_running_loop()
        ):  # else of the process we were forked from
            self._heartbeat.cancel()
            await asyncio.wait([self._heartbeat])
        self._heartbeat = None

    async def delete(self) -> None:
        """Kill everything inside and remove the sandbox; does nothing when it is gone."""
        await self.stop_heartbeat()
        await self._call(Acknowledgement, operations.DELETE)
        self._deleted(self.sandbox_id)

    async def _beat(self, interval: float) -> None:
        while True:
            await asyncio.sleep(interval)
            try:
                await self.heartbeat()
            except (SandboxNotFound, SandboxFailed) as error:
                # Its next use will raise the same; there is nothing left to keep alive.
                log.warning("sandbox %s: heartbeat ended: %s", self.sandbox_id, error)
                return
            except SandboxError as error:
                log.warning("sandbox %s: no heartbeat: %s", self.sandbox_id, error)

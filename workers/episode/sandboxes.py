"""Creates sandboxes with retries, keeps them alive, and deletes them in every case.

This is the boundary at which the sandbox service's errors become typed infrastructure failures.
"""

import asyncio
import copy
import itertools
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import IO, Any

import msgspec

from orchard.injector.client import AsyncSandbox, AsyncSandboxClient
from orchard.injector.errors import (
    PASSING,
    SandboxError,
    SandboxFailed,
    SandboxFileMissing,
    SandboxFileTooLarge,
    SandboxNotFound,
    SandboxRefused,
    SandboxRequestInvalid,
    SandboxUnavailable,
    SandboxUnsupported,
    SandboxWaitTimeout,
)
from orchard.injector.results import JobResult, ended_with_sandbox
from orchard.injector.tunnels import AsyncTunnel
from orchard.schemas.events import SandboxCreated, SandboxDeleted, SandboxFailure
from orchard.schemas.outcomes import AbortCause
from orchard.schemas.quantities import Size
from orchard.schemas.sandboxes import OUTPUT_LIMIT, JobEnding, SandboxStatus
from orchard.streams.tasks import end
from orchard.workers.episode.listening import until_listening
from orchard.workers.episode.machine import READ_LIMIT, CommandOutcome, FileTooLarge, ServicesBeside
from orchard.workers.episode.networks import SHUT, Network
from orchard.workers.episode.settings import SandboxSettings as SandboxSettings
from orchard.workers.failures import (
    EndedUnderCommand,
    InfrastructureError,
    LimitExceeded,
    NotWritable,
    SandboxEvicted,
)

Publish = Callable[[msgspec.Struct], Awaitable[None]]
Create = Callable[[float, str], Awaitable[AsyncSandbox]]
"""Tries once to make a sandbox, given the seconds left and the idempotency key."""

CLEAN_UP_SECONDS = 30.0
LONGEST_PAUSE = 16.0
"""Most seconds between two tries to create a sandbox."""
_NO_FILE = (SandboxFileMissing.default_status, SandboxRequestInvalid.default_status)
LIMITS = {
    "out_of_memory": AbortCause.SANDBOX_OUT_OF_MEMORY,
    "disk_limit": AbortCause.SANDBOX_DIED,
}
"""Reasons for the end of a sandbox that lie in what ran there, with the cause if that was not the agent."""
DISK_FULL = "disk_full"
"""Reason of a sandbox within its limits that was stopped as its host's disk was nearly full: what ran in it
may have filled that disk."""
EVICTED = "evicted"
"""Reason of a sandbox that its cluster took away."""
_STOPPED = "orchard-stopped"
_WHEN_STOPPED = (JobEnding.CANCELLED, JobEnding.UNKNOWN, None)
"""Endings of a command that was cancelled, by agents of all versions."""
NOT_STARTED = 127
"""Return code of a command that could not be started, as in shells."""


def cause_of(error: SandboxError) -> AbortCause:
    match error:
        case SandboxRefused():
            return AbortCause.SANDBOX_REFUSED
        case (
            SandboxUnavailable(reason="registry_resting")
            | SandboxFailed(reason="image_unavailable" | "image_denied")
        ):
            return AbortCause.IMAGE_UNAVAILABLE
        case SandboxFailed(reason="image_invalid" | "egress_refused"):
            return AbortCause.INVALID_REQUEST
        case SandboxUnavailable() | SandboxWaitTimeout():
            return AbortCause.SANDBOX_UNAVAILABLE
        case SandboxNotFound():
            return AbortCause.SANDBOX_DIED
        case SandboxFailed(reason="image_missing"):
            return AbortCause.IMAGE_MISSING
        case SandboxFailed():
            return AbortCause.SANDBOX_DIED
        case _:
            return AbortCause.INTERNAL_ERROR


def passes(error: InfrastructureError) -> bool:
    """Whether the service said that the failure passes by itself."""
    return isinstance(error.__cause__, SandboxError) and error.__cause__.reason in PASSING


@contextmanager
def classified() -> Iterator[None]:
    """Turns every error of the sandbox service into an InfrastructureError."""
    try:
        yield
    except SandboxError as error:
        if isinstance(error, SandboxFailed) and error.reason in LIMITS:
            raise LimitExceeded(LIMITS[error.reason], str(error)) from error
        if isinstance(error, SandboxFailed) and error.reason == DISK_FULL:
            raise EndedUnderCommand(cause_of(error), str(error)) from error
        if isinstance(error, SandboxFailed) and error.reason == EVICTED:
            raise SandboxEvicted(cause_of(error), str(error)) from error
        raise InfrastructureError(cause_of(error), str(error)) from error


@contextmanager
def _file_errors(path: str) -> Iterator[None]:
    """Turns the service's errors about a file into FileTooLarge or FileNotFoundError."""
    with classified():
        try:
            yield
        except SandboxFileTooLarge as error:
            raise FileTooLarge(error.detail) from error
        except SandboxRequestInvalid as error:  # a task may have put a directory or a pipe in its place
            if error.status in _NO_FILE:
                raise FileNotFoundError(path) from error
            raise


def _insist_held(tunnel: AsyncTunnel, *, asks_again: bool) -> None:
    """Raises as `Machine.reverse` says, for a tunnel that was closed."""
    if tunnel.error is not None:
        with classified():
            raise tunnel.error
    if tunnel.interrupted and not asks_again:
        raise InfrastructureError(
            AbortCause.SANDBOX_UNAVAILABLE,
            f"a line between the sandbox and this worker broke while {tunnel.interrupted} of its connections "
            "waited for an answer",
        )


class SandboxMachine:
    def __init__(self, sandbox: AsyncSandbox, output_limit: Size = OUTPUT_LIMIT) -> None:
        self.sandbox = sandbox
        self.services: ServicesBeside | None = None
        self._reverse: set[AsyncTunnel] = set()
        """The open reverse tunnels."""
        self._output_limit = output_limit
        self._user: str | None = None

    def for_user(self, user: str) -> "SandboxMachine":
        """Returns the machine as one whose commands run as `user` unless they name another."""
        machine = copy.copy(self)
        machine._user = user
        return machine

    async def run(
        self,
        command: str,
        *,
        timeout: float,
        cwd: str,
        env: dict[str, str] | None = None,
        stdin: str | None = None,
        user: str | None = None,
        stop: asyncio.Event | None = None,
    ) -> CommandOutcome:
        started = time.monotonic()
        with classified():
            job = await self._executed(
                command,
                stop,
                timeout_seconds=timeout,
                cwd=cwd,
                env=env,
                stdin=stdin,
                merge_output=True,
                output_limit=self._output_limit,
                user=user or self._user,
            )
        seconds = time.monotonic() - started
        stopped = stop is not None and stop.is_set() and job.ending in _WHEN_STOPPED
        if job.timed_out or stopped:
            return CommandOutcome(
                output=job.stdout,
                returncode=-1,
                seconds=seconds,
                timed_out=True,
                out_of_memory=job.oom_killed,
                cut=job.stdout_bytes > self._output_limit,
            )
        if job.ending is not JobEnding.EXITED:
            await self._insist_alive(job)
        code = NOT_STARTED if job.exit_code is None else job.exit_code
        return CommandOutcome(
            # The sandbox may live and be unable to start this: the agent removed its directory or its shell.
            output=job.stdout or (job.error or "" if code == NOT_STARTED else ""),
            returncode=code if code >= 0 else 128 - code,  # as a shell tells a signal, which models know
            seconds=seconds,
            out_of_memory=job.oom_killed,
            cut=job.stdout_bytes > self._output_limit,
        )

    async def _executed(self, command: str, stop: asyncio.Event | None, **options: Any) -> JobResult:
        """Runs a command to its end, and cancels it once `stop` is set."""
        job: JobResult = await self.sandbox.exec(command, wait=stop is None, **options)
        if stop is None:
            return job
        stopping = asyncio.create_task(stop.wait())
        try:
            while not job.is_complete:
                waiting = asyncio.create_task(self.sandbox.wait_job(job.job_id))
                try:
                    await asyncio.wait({waiting, stopping}, return_when=asyncio.FIRST_COMPLETED)
                    if stopping.done() and not waiting.done():
                        await self.sandbox.cancel_job(job.job_id)
                    job = await waiting
                finally:
                    await end(waiting)
        finally:
            await end(stopping)
        return job

    async def _insist_alive(self, job: JobResult) -> None:
        """Raises SANDBOX_DIED if the sandbox ended while the command ran: the job then says nothing about the
        command."""
        if not (ended := ended_with_sandbox(job)) and job.ending is None and job.error is None:
            return  # an agent from before there were endings says no more of a command that ran
        with classified():
            info = await self.sandbox.status()
        # While it is being deleted or set back its record says still that it is ready.
        if ended or info.status is SandboxStatus.FAILED:
            detail = f"sandbox {info.sandbox_id}: {info.status_message or job.error or 'it ended'}"
            if info.reason in LIMITS:
                raise LimitExceeded(LIMITS[info.reason], detail)
            if info.reason in (SandboxFailed.default_reason, DISK_FULL):
                raise EndedUnderCommand(AbortCause.SANDBOX_DIED, detail)
            if info.reason == EVICTED:
                raise SandboxEvicted(AbortCause.SANDBOX_DIED, detail)
            raise InfrastructureError(AbortCause.SANDBOX_DIED, detail)

    async def write(self, path: str, content: bytes) -> None:
        with classified():
            try:
                await self.sandbox.upload_content(content, path)
            except SandboxRequestInvalid as error:
                if error.status in _NO_FILE:
                    raise NotWritable(cause_of(error), error.detail) from error
                raise

    async def read(self, path: str, *, limit: int = READ_LIMIT) -> bytes:
        with _file_errors(path):
            content: bytes = await self.sandbox.download_content(path, limit=limit)
        return content

    async def copy_out(self, path: str, target: Path, *, limit: int) -> None:
        with _file_errors(path):
            await self.sandbox.download_directory(path, target, limit=limit)

    async def archive(self, path: str, target: IO[bytes], *, limit: int) -> None:
        with _file_errors(path):
            await self.sandbox.download_archive(path, target, limit=limit)

    async def replace_directory(self, path: str, archive: IO[bytes]) -> None:
        with classified():
            try:
                for entry in await self.sandbox.list_files(path):
                    await self.sandbox.remove(f"{path}/{entry.name}")
            except SandboxFileMissing:
                pass
            try:
                await self.sandbox.upload_archive(archive, path)
            except SandboxRequestInvalid as error:
                raise NotWritable(cause_of(error), error.detail) from error

    async def remove(self, path: str) -> None:
        with classified(), suppress(SandboxFileMissing):
            await self.sandbox.remove(path)

    async def freeze(self) -> None:
        # A task that forks without end is not frozen in time, and must not gain an abort by it.
        with suppress(SandboxError):
            await self.sandbox.pause()

    async def resume(self) -> None:
        with classified(), suppress(SandboxUnsupported):  # then nothing was stopped
            await self.sandbox.resume()

    async def end_processes(self) -> None:
        before = {tunnel: tunnel.interrupted for tunnel in self._reverse}
        try:
            with classified():
                await self.sandbox.take_snapshot(_STOPPED)
                await self.sandbox.restore(_STOPPED)
        except InfrastructureError as error:
            if not isinstance(error.__cause__, SandboxUnsupported):
                raise
            raise InfrastructureError(
                AbortCause.INVALID_REQUEST, f"the sandbox service cannot end processes: {error.detail}"
            ) from error.__cause__
        if self._reverse:  # the tunnels reopen by themselves, and what comes next needs them
            wait = until_listening(sorted(tunnel.port for tunnel in self._reverse))
            back = await self.run(wait, timeout=CLEAN_UP_SECONDS, cwd="/", user="root")
            if back.returncode != 0:
                raise InfrastructureError(
                    AbortCause.SANDBOX_UNAVAILABLE, f"no tunnel came back after a restore: {back.output}"
                )
            for tunnel, interrupted in before.items():
                tunnel.interrupted = interrupted

    @asynccontextmanager
    async def forward(self, port: int) -> AsyncIterator[str]:
        with classified():
            tunnel = await self.sandbox.forward(port).open()
        try:
            yield tunnel.url
        finally:
            await tunnel.close()
        _insist_held(tunnel, asks_again=False)

    @asynccontextmanager
    async def reverse(
        self, port: int, inside: int = 0, *, asks_again: bool = False
    ) -> AsyncIterator[AsyncTunnel]:
        with classified():
            tunnel = await self.sandbox.reverse(inside, port).open()
        self._reverse.add(tunnel)
        try:
            yield tunnel
        finally:
            self._reverse.discard(tunnel)
            await tunnel.close()
        _insist_held(tunnel, asks_again=asks_again)


class SandboxFactory:
    """Creates the sandboxes of one attempt and publishes events about their lives."""

    def __init__(
        self,
        client: AsyncSandboxClient,
        settings: SandboxSettings,
        publish: Publish,
        *,
        key: str,
        labels: dict[str, str],
    ) -> None:
        self._client = client
        self._settings = settings
        self._publish = publish
        self._key = key
        self._labels = labels
        self.seconds_creating = 0.0

    @asynccontextmanager
    async def open(
        self,
        image: str,
        *,
        purpose: str,
        cpu: str,
        memory: str,
        timeout: float,
        layers: Sequence[str] = (),
        network: Network = SHUT,
        standby: Callable[[], AsyncSandbox | None] = lambda: None,
    ) -> AsyncIterator[SandboxMachine]:
        """Gives a ready machine and deletes it at the block's end.

        `timeout` bounds creation, all tries together, in seconds. `layers` are images laid over `image`. A
        sandbox that `standby` gives is taken instead of a new one. A heartbeat keeps the sandbox while the
        block runs, grading in place included; no deadline of the task can take it away before.
        """

        async def create(left: float, key: str) -> AsyncSandbox:
            if (ready := standby()) is not None:
                return ready
            try:
                return await self._client.create_sandbox(
                    image,
                    block_network=network.blocked,
                    egress=network.hosts,
                    cpu=cpu,
                    memory=memory,
                    timeout=left,
                    labels={**self._labels, "purpose": purpose},
                    ttl_seconds=self._settings.ttl_seconds,
                    layers=layers,
                    idempotency_key=key,
                )
            except SandboxUnsupported as error:  # as a network where there is no program for it
                raise InfrastructureError(
                    AbortCause.INVALID_REQUEST, f"the sandbox service cannot make it: {error}"
                ) from None

        async with self._kept(create, image, purpose=purpose, memory=memory, timeout=timeout) as machine:
            yield machine

    @asynccontextmanager
    async def fork(
        self, source: SandboxMachine, *, purpose: str, memory: str, timeout: float
    ) -> AsyncIterator[SandboxMachine]:
        """Gives a copy of another machine as `open` does: its files and its `memory`, not its processes.

        Raises SandboxUnsupported if the service cannot fork.
        """

        async def create(_: float, key: str) -> AsyncSandbox:
            (made,) = await source.sandbox.fork(
                labels={**self._labels, "purpose": purpose},
                ttl_seconds=self._settings.ttl_seconds,
                idempotency_key=f"{key}-fork",
            )
            return made

        image = source.sandbox.image
        async with self._kept(create, image, purpose=purpose, memory=memory, timeout=timeout) as machine:
            yield machine

    @asynccontextmanager
    async def copy(
        self, source: SandboxMachine, *, purpose: str, memory: str, timeout: float
    ) -> AsyncIterator[SandboxMachine]:
        """Gives a copy as `fork` does, which reaches the services of `source`. Raises INVALID_REQUEST if the
        service cannot make one."""
        try:
            async with self.fork(source, purpose=purpose, memory=memory, timeout=timeout) as machine:
                machine.services = source.services
                async with machine.services.reached_from(machine) if machine.services else nullcontext():
                    yield machine
        except SandboxUnsupported as error:
            raise InfrastructureError(
                AbortCause.INVALID_REQUEST,
                f"the sandbox service cannot copy a sandbox between the stages of a task: {error}",
            ) from error

    @asynccontextmanager
    async def _kept(
        self, create: Create, image: str, *, purpose: str, memory: str, timeout: float
    ) -> AsyncIterator[SandboxMachine]:
        sandbox, made = await self._made(create, image, purpose=purpose, memory=memory, timeout=timeout)
        try:
            await self._publish(made)
            sandbox.start_heartbeat(self._settings.heartbeat_seconds)
            yield SandboxMachine(sandbox, self._settings.output_limit)
        finally:
            await asyncio.shield(self._delete(sandbox, purpose))

    async def _made(
        self, create: Create, image: str, *, purpose: str, memory: str, timeout: float
    ) -> tuple[AsyncSandbox, SandboxCreated]:
        """Creates a sandbox with retries, and returns it with the event that reports it."""
        started = time.monotonic()
        await asyncio.sleep(random.uniform(0, self._settings.creation_jitter))
        tries = 0
        for number in itertools.count(1):
            left = timeout - (time.monotonic() - started)
            try:
                with classified():
                    sandbox = await self._created(
                        create(max(left, 1.0), f"{self._key}-{purpose}-{number}"), purpose
                    )
            except InfrastructureError as error:
                if isinstance(error.__cause__, SandboxUnsupported):
                    raise error.__cause__ from None
                tries += not passes(error)  # what only has to be waited for takes nothing but time
                last = tries >= self._settings.creation_tries or error.rest > 0
                again = error.retryable and not last and left > 1
                await self._publish(
                    SandboxFailure(
                        cause=error.cause,
                        detail=error.detail,
                        will_retry=again,
                        purpose=purpose,
                        memory=memory,
                    )
                )
                if not again:
                    raise
                pause = min(0.5 * 2**number, LONGEST_PAUSE, left)
                await asyncio.sleep(pause * random.uniform(0.5, 1))
            else:
                seconds = time.monotonic() - started
                self.seconds_creating += seconds
                return sandbox, SandboxCreated(
                    sandbox_id=sandbox.sandbox_id,
                    image=image,
                    purpose=purpose,
                    seconds=seconds,
                    tries=number,
                    memory=memory,
                )
        raise AssertionError("unreachable: each try returns, raises or is followed by another")

    async def _created(self, creating: Awaitable[AsyncSandbox], purpose: str) -> AsyncSandbox:
        """Returns the new sandbox. If cancelled meanwhile, deletes it so that it does not leak."""
        task = asyncio.ensure_future(creating)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            await asyncio.wait({task}, timeout=CLEAN_UP_SECONDS)
            if not task.done():
                task.cancel()
            elif not task.cancelled() and task.exception() is None:
                await self._delete(task.result(), purpose)
            raise

    async def _delete(self, sandbox: AsyncSandbox, purpose: str) -> None:
        """Deletes the sandbox, or leaves it to its time-to-live if the service does not answer."""
        await sandbox.stop_heartbeat()
        try:
            async with asyncio.timeout(CLEAN_UP_SECONDS):
                await sandbox.delete()
        except (SandboxError, TimeoutError) as error:
            await self._publish(
                SandboxFailure(
                    cause=AbortCause.SANDBOX_UNAVAILABLE,
                    detail=f"not deleted, left to its time-to-live: {error}",
                    will_retry=False,
                    sandbox_id=sandbox.sandbox_id,
                    purpose=purpose,
                )
            )
        else:
            await self._publish(SandboxDeleted(sandbox_id=sandbox.sandbox_id, purpose=purpose))

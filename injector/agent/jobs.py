"""Commands of one sandbox: each starts once, has a time limit and bounded output, and is kept for later
queries.

A long-lived sandbox must not cost its agent ever more memory. Of finished jobs the newest RETAINED_JOBS are
kept, with up to RETAINED_OUTPUT bytes of output; of older ones only the idempotency key, so that a late retry
is refused and never runs again.
"""

import asyncio
import errno
import hashlib
import json
import os
import signal
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from orchard.injector.agent.accounts import UserAccount
from orchard.injector.agent.command_lines import command_line
from orchard.injector.agent.draining import drained
from orchard.injector.agent.errors import Conflict, NotFound
from orchard.injector.agent.interfaces import RunningSandbox, account_of
from orchard.injector.agent.kernel import sealed_file
from orchard.injector.agent.output import BoundedOutput, PipeReader, WithoutLoginNoise
from orchard.injector.agent.protocol import COMMAND_TIMEOUT, SENTENCES, WORKSPACE, CommandEnding
from orchard.injector.agent.spawning import Report, Spawner, StartFailure

TIMEOUT_EXIT_CODE = 124
NOT_FOUND_EXIT_CODE = 127
"""Exit code of a command that could not be started, as in shells; `error` says why."""
OUTPUT_LIMIT = 10 * 1024 * 1024
RETAINED_OUTPUT = 64 * 1024 * 1024
"""Bytes of finished jobs' commands and output kept for a sandbox; the oldest are dropped first."""
RETAINED_JOBS = 1000
REMEMBERED_KEYS = 100_000
"""Idempotency keys of dropped jobs that are remembered, a hundred bytes each."""


class OutputForgotten(Conflict):
    """The job ran, but its output or its whole record was dropped to make room."""

    reason = "output_forgotten"


class CommandResult(NamedTuple):
    """How a command ended; `error` is for people."""

    ending: CommandEnding
    exit_code: int | None
    error: str | None = None


@dataclass(kw_only=True, eq=False)
class TrackedJob:
    job_id: str
    sandbox_id: str
    command: str | list[str]
    out: BoundedOutput
    err: BoundedOutput
    created_at: float = field(default_factory=time.time)
    status: str = "queued"
    started_at: float | None = None
    completed_at: float | None = None
    verdict: CommandResult | None = None
    """Known once the process has ended, which may be before all its output has come."""
    output_open: bool = False
    """Whether other processes could still write to its output when the job ended."""
    oom_killed: bool = False
    """Whether the kernel killed a process of the sandbox for memory while the job ran."""
    oom_kills_before: int = 0
    key: str | None = None
    request_digest: bytes = b""
    """Digest of the request; a retry under the same key must have the same."""
    forgotten: bool = False
    readers: int = 0
    """Requests that are about to report the job; its output is not dropped meanwhile."""
    done: asyncio.Event = field(default_factory=asyncio.Event)
    stopped_for: CommandEnding | None = None
    news: asyncio.Event = field(default_factory=asyncio.Event)
    """Set, and replaced, when there is new output or the job ended."""

    def printing(self, output: BoundedOutput) -> Callable[[bytes], None]:
        """Return a consumer that adds to `output`, one of the job's two, and notifies followers."""

        def printed(data: bytes) -> None:
            output.add(data)
            self.tell()

        return printed

    def tell(self) -> None:
        """Notify followers that there is news."""
        news, self.news = self.news, asyncio.Event()
        news.set()

    @property
    def held(self) -> int:
        words = [self.command] if isinstance(self.command, str) else self.command
        return self.out.kept + self.err.kept + sum(map(len, words))

    def cut_off(self) -> None:
        """Discard a normal exit: the sandbox ended before the output did, so the output may be incomplete."""
        exited = self.verdict is not None and self.verdict.ending is CommandEnding.EXITED
        if exited and not self.done.is_set():
            self.verdict = None

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Keep the job's output while a request reads it. A context manager."""
        self.readers += 1
        try:
            yield
        finally:
            self.readers -= 1

    def document(self) -> dict[str, Any]:
        if self.forgotten:
            raise OutputForgotten(f"the output of job {self.job_id} was dropped to make room for newer ones")
        return {**self.summary(), "stdout": self.out.text(), "stderr": self.err.text()}

    def summary(self) -> dict[str, Any]:
        return {
            "job_id": self.job_id,
            "sandbox_id": self.sandbox_id,
            "command": self.command,
            "created_at": self.created_at,
            "started_at": self.started_at,
            "completed_at": self.completed_at,
            **self.outcome(),
        }

    def outcome(self) -> dict[str, Any]:
        known = self.verdict if self.done.is_set() else None
        return {
            "status": self.status,
            "exit_code": known and known.exit_code,
            "error": known and known.error,
            "timed_out": known is not None and known.ending is CommandEnding.TIMEOUT,
            "oom_killed": self.oom_killed,
            "ending": known and known.ending,
            "output_open": self.output_open,
            "stdout_bytes": self.out.total,
            "stderr_bytes": self.err.total,
        }


class SandboxJobs:
    def __init__(self, sandbox_id: str, spawner: Spawner, machine: RunningSandbox) -> None:
        self._sandbox_id = sandbox_id
        self._spawner = spawner
        self.machine = machine
        """The sandbox that the next command enters."""
        self._jobs: dict[str, TrackedJob] = {}
        self._keys: dict[str, TrackedJob] = {}
        self._spent_keys: dict[bytes, None] = {}
        self._leftovers: set[PipeReader] = set()
        self._draining: set[asyncio.Task[None]] = set()
        self._finished: dict[str, TrackedJob] = {}
        self._held = 0

    def get(self, job_id: str) -> TrackedJob:
        job = self._jobs.get(job_id)
        if job is None:
            raise NotFound(
                f"sandbox {self._sandbox_id} has no job {job_id}; "
                f"of finished ones the newest {RETAINED_JOBS} are kept"
            )
        return job

    def summaries(self) -> list[dict[str, Any]]:
        """Records of all kept jobs, oldest first, without output."""
        return [job.summary() for job in self._jobs.values()]

    @property
    def running(self) -> bool:
        return any(not job.done.is_set() for job in self._jobs.values())

    async def start(self, request: Mapping[str, Any], key: str | None) -> TrackedJob:
        """Start the command of an exec request; return the existing job for a `key` that was used before.

        Raises Conflict when the key was used for another request, OutputForgotten when its job is no longer
        kept, and RequestInvalid for an unknown user.
        """
        asked = b"" if key is None else _digest(json.dumps(request, sort_keys=True))
        if key is not None:
            first = self._keys.get(key)
            if first is not None and first.request_digest != asked:
                raise Conflict(
                    "this Idempotency-Key was used for another command: send a new one",
                    reason="key_reused",
                )
            if first is not None:
                return first
            if _digest(key) in self._spent_keys:
                raise OutputForgotten(
                    f"the command of this Idempotency-Key ran; {RETAINED_JOBS} others ended since, "
                    "and its result is no longer kept"
                )
        runs_as = account_of(self.machine, request.get("user"))
        limit = int(request.get("output_limit") or OUTPUT_LIMIT)
        job = TrackedJob(
            job_id=f"{self._sandbox_id}.{uuid.uuid4().hex[:12]}",
            sandbox_id=self._sandbox_id,
            command=request["command"],
            out=BoundedOutput(limit),
            err=BoundedOutput(limit),
            key=key,
            request_digest=asked,
        )
        self._jobs[job.job_id] = job
        if key is not None:
            self._keys[key] = job
        await self._run(job, request, *runs_as)
        return job

    def cancel(self, job_id: str) -> TrackedJob:
        job = self.get(job_id)
        self._stop(job, CommandEnding.CANCELLED)
        return job

    def abandon(self, why: CommandEnding) -> None:
        """Record why unfinished jobs end: the sandbox is gone or about to go."""
        for job in self._jobs.values():
            if not job.done.is_set():
                job.stopped_for = job.stopped_for or why

    def settle(self, why: CommandEnding) -> None:
        """Complete all unfinished jobs and close their pipes, after the sandbox is gone."""
        for task in self._draining:
            task.cancel()
        for job in self._jobs.values():
            if not job.done.is_set():
                job.cut_off()
                self._complete(job, job.verdict or CommandResult(why, None, SENTENCES[why]))
        for reader in self._leftovers:
            reader.close()
        self._leftovers.clear()

    async def _run(
        self,
        job: TrackedJob,
        request: Mapping[str, Any],
        account: UserAccount | None,
        environment: Mapping[str, str],
    ) -> None:
        login = bool(request.get("login_shell"))
        stdin = request.get("stdin")
        readers = [PipeReader(job.printing(job.out))]
        if not request.get("merge_output"):
            readers.append(PipeReader(job.printing(job.err)))
        if login:
            readers[-1].consume = WithoutLoginNoise(readers[-1].consume)
        source = (
            os.open(os.devnull, os.O_RDONLY) if stdin is None else sealed_file("stdin", os.fsencode(stdin))
        )
        timer = asyncio.get_running_loop().call_later(
            float(request.get("timeout_seconds") or COMMAND_TIMEOUT), self._stop, job, CommandEnding.TIMEOUT
        )
        job.status = "running"
        job.started_at = time.time()
        job.oom_kills_before = self.machine.oom_kills()
        try:
            with command_line(job.command, login) as command:
                await self._spawner.enter(
                    job.job_id,
                    self.machine.entrance,
                    command=command,
                    account=account,
                    env={**environment, **(request.get("env") or {})},
                    cwd=os.path.join(self.machine.working_directory, request.get("cwd") or WORKSPACE),  # noqa: PTH118
                    stdio=(source, readers[0].writer, readers[-1].writer),
                    report=self._ended(job, readers, timer),
                )
        finally:
            os.close(source)
            for reader in readers:
                reader.close_writer()

    def _ended(self, job: TrackedJob, readers: list[PipeReader], timer: asyncio.TimerHandle) -> Report:
        def report(status: int, failure: StartFailure | None) -> None:
            timer.cancel()
            if not job.done.is_set():  # else it was settled with its sandbox, and that stands
                job.verdict = self._judged(job, status, failure)
            if [reader for reader in readers if reader.catch_up()]:  # of each, whatever the first one says
                task = asyncio.get_running_loop().create_task(self._drain(job, readers))
                self._draining.add(task)
                task.add_done_callback(self._draining.discard)
            else:
                self._end(job, readers)

        return report

    async def _drain(self, job: TrackedJob, readers: list[PipeReader]) -> None:
        """End the job when its output has ended: filters may print after the command's own exit."""
        machine = self.machine
        try:
            await drained(readers, machine.entrance, lambda: job.out.total + job.err.total)
        finally:
            if machine.dying():  # and those are killed who had its output in hand
                job.cut_off()
            self._end(job, readers)

    def _end(self, job: TrackedJob, readers: list[PipeReader]) -> None:
        open_still = {reader for reader in readers if reader.finish()}
        if open_still:
            self._leftovers = {left for left in self._leftovers if left.open} | open_still
        if job.verdict is not None and not job.done.is_set():
            job.output_open = bool(open_still)
            self._complete(job, job.verdict)
        # Else the sandbox is ending: `settle` tells the caller, once the sandbox itself says that it failed.

    def _judged(self, job: TrackedJob, status: int, failure: StartFailure | None) -> CommandResult | None:
        """Return how its process ended; None: it ended with the sandbox, which will say more later."""
        if failure is not None:
            ended_with_it = not failure.executing and self.machine.dying()
            return None if ended_with_it else _not_started(failure)
        code = os.waitstatus_to_exitcode(status)
        job.oom_killed = self.machine.oom_kills() > job.oom_kills_before
        if code != -signal.SIGKILL:
            return _by_itself(job, code)
        ending = job.stopped_for or (CommandEnding.OUT_OF_MEMORY if job.oom_killed else None)
        if ending is not None:
            return CommandResult(
                ending, TIMEOUT_EXIT_CODE if ending is CommandEnding.TIMEOUT else code, SENTENCES[ending]
            )
        return None if self.machine.dying() else CommandResult(CommandEnding.EXITED, code)

    def _complete(self, job: TrackedJob, verdict: CommandResult) -> None:
        job.verdict = verdict
        job.completed_at = time.time()
        job.status = "succeeded" if verdict.exit_code == 0 and verdict.error is None else "failed"
        job.done.set()
        job.tell()
        self._finished[job.job_id] = job
        self._held += job.held
        self._make_room(job)

    def _make_room(self, newest: TrackedJob) -> None:
        """Drop the oldest finished jobs, except those that a request is about to report."""
        surplus = len(self._finished) - RETAINED_JOBS
        if surplus <= 0 and self._held <= RETAINED_OUTPUT:
            return
        for old in list(self._finished.values()):
            if surplus <= 0 and self._held <= RETAINED_OUTPUT:
                return
            if old.readers or old is newest:
                continue
            if surplus > 0:
                self._drop(old)
                surplus -= 1
            elif not old.forgotten:
                self._forget(old)

    def _forget(self, job: TrackedJob) -> None:
        self._held -= job.held
        job.out, job.err, job.command = BoundedOutput(0), BoundedOutput(0), ""
        job.forgotten = True

    def _drop(self, job: TrackedJob) -> None:
        self._held -= job.held
        del self._finished[job.job_id]
        del self._jobs[job.job_id]
        if job.key is not None:
            del self._keys[job.key]
            self._spent_keys[_digest(job.key)] = None
            if len(self._spent_keys) > REMEMBERED_KEYS:
                del self._spent_keys[next(iter(self._spent_keys))]

    def _stop(self, job: TrackedJob, why: CommandEnding) -> None:
        if not job.done.is_set():
            job.stopped_for = job.stopped_for or why
            self._spawner.kill(job.job_id)


def _not_started(failure: StartFailure) -> CommandResult:
    if failure.executing and failure.errno in (errno.ENOENT, errno.ENOTDIR):
        ending = CommandEnding.NOT_FOUND
    elif failure.errno in (errno.EACCES, errno.EPERM):
        ending = CommandEnding.NOT_PERMITTED
    else:
        ending = CommandEnding.NOT_STARTED
    return CommandResult(ending, NOT_FOUND_EXIT_CODE, failure.why)


def _by_itself(job: TrackedJob, code: int) -> CommandResult:
    """Judge a command that ended by itself; 128 + 9 is a shell's exit code for a child killed by SIGKILL."""
    if job.oom_killed and code == 128 + signal.SIGKILL:
        return CommandResult(CommandEnding.OUT_OF_MEMORY, code, SENTENCES[CommandEnding.OUT_OF_MEMORY])
    if code == NOT_FOUND_EXIT_CODE and isinstance(job.command, str):
        return CommandResult(CommandEnding.EXITED, code, "the shell did not find a program (exit code 127)")
    return CommandResult(CommandEnding.EXITED, code)


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=16).digest()

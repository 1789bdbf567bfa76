"""Registry of an agent's sandboxes: creates, restores, expires and deletes them."""

import asyncio
import json
import logging
import sys
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeVar

from orchard.injector.agent.errors import (
    AgentError,
    Conflict,
    NotFound,
    RequestInvalid,
    TimeIsUp,
)
from orchard.injector.agent.interfaces import Died, Host, RunningSandbox, SandboxSpec
from orchard.injector.agent.jobs import SandboxJobs
from orchard.injector.agent.protocol import COUNT_LIMIT_VARIABLE, CommandEnding
from orchard.injector.agent.sandbox import HostedSandbox
from orchard.injector.agent.spawning import Spawner

RECORD = "record.json"
REMEMBERED_FORKS = 1000
"""Fork requests of one sandbox that are remembered, so that a retry returns the first result."""

T = TypeVar("T")

log = logging.getLogger(__name__)


class Sandboxes:
    """All sandboxes of an agent.

    Records are kept in `directory`, so that the next agent can report them; None: there will be no next one.
    With `most`, so many live at once, and more are pending until one fails or is deleted.
    """

    def __init__(self, directory: Path | None, host: Host, spawner: Spawner, most: int | None = None) -> None:
        self._most = most
        self._room = asyncio.Semaphore(sys.maxsize if most is None else most)
        self._directory = directory
        self._host = host
        self.spawner = spawner
        self._sandboxes: dict[str, HostedSandbox] = {}
        self._by_key: dict[str, HostedSandbox] = {}
        self._tasks: set[asyncio.Task[Any]] = set()

    def __iter__(self) -> Iterator[HostedSandbox]:
        return iter(list(self._sandboxes.values()))

    def recover(self) -> None:
        """Report the sandboxes of an agent that died as `failed`: they died with it."""
        for path in [] if self._directory is None else sorted(self._directory.glob(f"*/{RECORD}")):
            record = json.loads(path.read_text())
            sandbox = HostedSandbox(SandboxSpec(**record["spec"]), record["key"], record["created_at"])
            sandbox.fail("agent_died", "the agent that held it died, and the sandbox with it")
            self._remember(sandbox)
            self._arm(sandbox)

    def get(self, sandbox_id: str) -> HostedSandbox:
        sandbox = self._sandboxes.get(sandbox_id)
        if sandbox is None:
            raise NotFound(f"there is no sandbox {sandbox_id}")
        return sandbox

    def of_job(self, job_id: str) -> HostedSandbox:
        """Return the sandbox of a job, whose id begins with the sandbox's. Raises NotFound."""
        return self.get(job_id.partition(".")[0])

    def create(self, spec: SandboxSpec, key: str | None) -> HostedSandbox:
        """Start a sandbox; generates an id if `spec` has none.

        The same `key` again returns the first sandbox. Raises Conflict when the id is taken, or the key was
        used for another request.
        """
        spec.check()
        if key is not None and key in self._by_key:
            first = self._by_key[key]
            if spec != (first.spec if spec.sandbox_id else replace(first.spec, sandbox_id="")):
                raise Conflict(
                    "this Idempotency-Key was used for another sandbox: send a new one",
                    reason="key_reused",
                )
            return first
        sandbox = self._add(spec, key)
        sandbox.starting = self._keep(self._start(sandbox, self._host.create))
        return sandbox

    async def fork(
        self, origin: HostedSandbox, request: Mapping[str, Any], key: str | None
    ) -> list[HostedSandbox]:
        """Make sandboxes from the file system that `origin` has before this returns.

        `request` has `count` and, where the new ones differ, fields of SandboxSpec and `sandbox_ids`. The
        same `key` again returns the first ones, as long as `origin` exists. Raises RequestInvalid, Conflict
        for ids that are taken, and what `RunningSandbox.template` raises; then there are no new sandboxes.
        """
        if key is not None and key in origin.forks:
            first, forking = origin.forks[key]
            if first != request:
                raise Conflict(
                    "this Idempotency-Key was used for another fork: send a new one",
                    reason="key_reused",
                )
        else:
            machine, _ = origin.ready()
            specs = _fork_specs(origin.spec, request)
            forking = self._keep(self._fork(origin, machine, specs, request.get("snapshot")))
            if key is not None:
                origin.forks[key] = (dict(request), forking)
                if len(origin.forks) > REMEMBERED_FORKS:
                    del origin.forks[next(iter(origin.forks))]
        try:
            made = await asyncio.shield(forking)
        except AgentError:
            if key is not None:
                origin.forks.pop(key, None)
            raise
        return [self._sandboxes[sandbox_id] for sandbox_id in made if sandbox_id in self._sandboxes]

    async def _fork(
        self, origin: HostedSandbox, machine: RunningSandbox, specs: list[SandboxSpec], snapshot: str | None
    ) -> list[str]:
        for spec in specs:
            self._check_free(spec)
        async with origin.snapshots.template(machine, snapshot) as template:
            for spec in specs:
                self._check_free(spec)
            forks = [self._add(spec, None) for spec in specs]
            for fork in forks:
                fork.starting = self._keep(self._start(fork, template.create))
            await asyncio.wait([fork.starting for fork in forks if fork.starting is not None])
        return [fork.spec.sandbox_id for fork in forks]

    async def restore(self, sandbox: HostedSandbox, name: str) -> None:
        """Restart the sandbox from its snapshot of this name; returns when it is ready or failed.

        Its jobs, watches and tunnels end. Raises NotFound, Conflict while it is being restored, and what
        `HostedSandbox.ready` raises.
        """
        sandbox.ready()
        sandbox.snapshots.find(name)
        if sandbox.starting is not None and not sandbox.starting.done():
            raise Conflict(
                f"sandbox {sandbox.spec.sandbox_id} is being restored: wait until it is ready",
                reason="pending",
            )
        sandbox.starting = self._keep(self._restore(sandbox, name))
        await asyncio.shield(sandbox.starting)

    async def _restore(self, sandbox: HostedSandbox, name: str) -> None:
        machine, jobs = sandbox.ready()
        async with sandbox.snapshots.template(machine, name) as template:
            sandbox.ready()  # it may have failed while this waited
            sandbox.begin_again()
            jobs.abandon(CommandEnding.SANDBOX_RESTORED)
            await machine.destroy()
            jobs.settle(CommandEnding.SANDBOX_RESTORED)
            await self._start(sandbox, template.create)

    def _add(self, spec: SandboxSpec, key: str | None) -> HostedSandbox:
        self._check_free(spec)
        if not spec.sandbox_id:
            spec = replace(spec, sandbox_id=self._new_id())
        sandbox = HostedSandbox(spec, key, time.time())
        self._remember(sandbox)
        self._record(sandbox)
        self._arm(sandbox)
        return sandbox

    def _check_free(self, spec: SandboxSpec) -> None:
        if spec.sandbox_id in self._sandboxes:
            raise Conflict(
                f"there is a sandbox {spec.sandbox_id} already: choose another sandbox_id", reason="exists"
            )

    async def wait(self, sandbox_id: str, timeout: float) -> HostedSandbox:
        """Return the sandbox once it is ready or failed. Raises TimeIsUp after `timeout` seconds."""
        sandbox = self.get(sandbox_id)
        try:
            async with asyncio.timeout(timeout):
                await sandbox.settled.wait()
        except TimeoutError as error:
            raise TimeIsUp(f"sandbox {sandbox_id} was not ready within {timeout:g} s") from error
        return sandbox

    async def delete(self, sandbox_id: str) -> None:
        """Kill and remove the sandbox; does nothing when there is none. Returns when it is gone."""
        sandbox = self._sandboxes.get(sandbox_id)
        if sandbox is None:
            return
        if sandbox.deleting is None or (sandbox.deleting.done() and sandbox.deleting.exception()):
            sandbox.deleting = self._keep(self._delete(sandbox))
        await asyncio.shield(sandbox.deleting)

    async def close(self) -> None:
        await asyncio.gather(*(self.delete(sandbox.spec.sandbox_id) for sandbox in self))

    @contextmanager
    def active(self, sandbox: HostedSandbox) -> Iterator[None]:
        """Keep the sandbox from expiring while a request is open. A context manager."""
        sandbox.in_flight += 1
        try:
            yield
        finally:
            sandbox.in_flight -= 1
            sandbox.touched = time.monotonic()

    def _new_id(self) -> str:
        while True:
            sandbox_id = uuid.uuid4().hex[:8]
            if sandbox_id not in self._sandboxes:
                return sandbox_id

    def _remember(self, sandbox: HostedSandbox) -> None:
        self._sandboxes[sandbox.spec.sandbox_id] = sandbox
        if sandbox.key is not None:
            self._by_key[sandbox.key] = sandbox

    def _record(self, sandbox: HostedSandbox) -> None:
        if self._directory is None:
            return
        directory = self._directory / sandbox.spec.sandbox_id
        directory.mkdir(parents=True)
        record = {"spec": asdict(sandbox.spec), "key": sandbox.key, "created_at": sandbox.created_at}
        # By a rename: an agent killed at any moment leaves a whole record or none.
        unfinished = directory / f"{RECORD}.new"
        unfinished.write_text(json.dumps(record))
        unfinished.rename(directory / RECORD)

    async def _start(
        self, sandbox: HostedSandbox, create: Callable[[SandboxSpec, Died], Awaitable[RunningSandbox]]
    ) -> None:
        def died(reason: str, message: str) -> None:
            log.warning("sandbox %s: %s", sandbox.spec.sandbox_id, message)
            self._fail(sandbox, reason, message)
            if sandbox.jobs is not None:
                sandbox.jobs.settle(CommandEnding.SANDBOX_DIED)

        try:
            async with asyncio.timeout(sandbox.spec.timeout):
                await self._take_room(sandbox)
                machine = await create(sandbox.spec, died)
        except TimeoutError:
            late = f"it was not ready within {sandbox.spec.timeout:g} s"
            waited = "" if sandbox.has_room else f": {self._full}"
            self._fail(sandbox, "start_timeout", late + waited)
        except AgentError as error:
            log.warning("sandbox %s did not start: %s", sandbox.spec.sandbox_id, error.detail)
            self._fail(sandbox, error.reason, error.detail)
        except OSError as error:
            log.exception("sandbox %s could not be started", sandbox.spec.sandbox_id)
            what = f"it could not be started: {error.strerror} ({error.filename})"
            self._fail(sandbox, "start_failed", what)
        else:
            machine.environment.update(sandbox.spec.env)
            sandbox.machine = machine
            if sandbox.jobs is None:
                sandbox.jobs = SandboxJobs(sandbox.spec.sandbox_id, self.spawner, machine)
            sandbox.jobs.machine = machine
            if sandbox.status == "pending":
                sandbox.status, sandbox.status_message, sandbox.paused = "ready", machine.note, False
                sandbox.settled.set()

    @property
    def _full(self) -> str:
        return f"this machine has the {self._most} sandboxes that it may have ({COUNT_LIMIT_VARIABLE})"

    async def _take_room(self, sandbox: HostedSandbox) -> None:
        """Wait until the sandbox may be one more; one that is restored has its room already."""
        if not sandbox.has_room:
            if self._room.locked():
                sandbox.status_message = self._full
            await self._room.acquire()
            sandbox.has_room, sandbox.status_message = True, ""

    def _fail(self, sandbox: HostedSandbox, reason: str, message: str) -> None:
        sandbox.fail(reason, message)
        if sandbox.has_room:
            sandbox.has_room = False
            self._room.release()

    async def _delete(self, sandbox: HostedSandbox) -> None:
        sandbox.ended.set()
        if sandbox.expiry is not None:
            sandbox.expiry.cancel()
        if sandbox.starting is not None:
            sandbox.starting.cancel()
            await asyncio.wait([sandbox.starting])
        if sandbox.jobs is not None:
            sandbox.jobs.abandon(CommandEnding.SANDBOX_DELETED)
        if sandbox.machine is not None:
            await sandbox.machine.destroy()
        await sandbox.snapshots.close()
        self._fail(sandbox, "deleted", "it was deleted")
        if sandbox.jobs is not None:
            sandbox.jobs.settle(CommandEnding.SANDBOX_DELETED)
        if self._directory is not None:
            directory = self._directory / sandbox.spec.sandbox_id
            (directory / RECORD).unlink(missing_ok=True)
            directory.rmdir()
        del self._sandboxes[sandbox.spec.sandbox_id]
        if sandbox.key is not None:
            del self._by_key[sandbox.key]

    def _arm(self, sandbox: HostedSandbox) -> None:
        ttl = sandbox.spec.ttl_seconds
        if ttl is None or sandbox.deleting is not None:
            return
        idle = 0.0 if sandbox.in_flight else time.monotonic() - sandbox.touched
        if idle >= ttl:
            log.info("sandbox %s expired: no request for %g s", sandbox.spec.sandbox_id, ttl)
            sandbox.deleting = self._keep(self._delete(sandbox))
            return
        loop = asyncio.get_running_loop()
        sandbox.expiry = loop.call_later(max(ttl - idle, 0.01), self._arm, sandbox)

    def _keep(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or isinstance(task.exception(), AgentError):
            return  # whoever asked is told
        if task.exception() is not None:
            log.error("a sandbox task failed", exc_info=task.exception())


def _fork_specs(origin: SandboxSpec, request: Mapping[str, Any]) -> list[SandboxSpec]:
    """Specifications of the forks: those of `origin` where `request` says nothing. Raises RequestInvalid."""
    count = int(request.get("count") or 1)
    ids = request.get("sandbox_ids") or [""] * count
    if len(ids) != count or len(set(ids) - {""}) not in (0, count):
        raise RequestInvalid(
            f"{count} forks need {count} different sandbox_ids, or none; {len(ids)} were given"
        )
    own = {name for name in SandboxSpec.__dataclass_fields__ if name not in ("sandbox_id", "image")}
    changed = {name: request[name] for name in own if request.get(name) is not None}
    specs = [replace(origin, sandbox_id=sandbox_id, **changed) for sandbox_id in ids]
    for spec in specs:
        spec.check()
    return specs


def matching(sandboxes: Iterable[HostedSandbox], labels: Mapping[str, str]) -> list[dict[str, Any]]:
    return [
        sandbox.document()
        for sandbox in sandboxes
        if all(sandbox.spec.labels.get(name) == value for name, value in labels.items())
    ]

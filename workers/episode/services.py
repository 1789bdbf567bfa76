"""What a task has running beside its sandbox: programs of other images, each in a sandbox of its own.

Their ports appear on loopback of the sandboxes that use them, where /etc/hosts has their names. Nothing else
connects these sandboxes: no process of one sees a process or a file of another.
"""

import re
import shlex
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import NamedTuple
from urllib.parse import urlsplit

import msgspec

from orchard.schemas.outcomes import AbortCause
from orchard.schemas.tasks import Task, TaskService
from orchard.workers.episode.listening import until_listening
from orchard.workers.episode.machine import Machine
from orchard.workers.episode.preparation import failed_set_up
from orchard.workers.failures import InfrastructureError

Open = Callable[[TaskService], AbstractAsyncContextManager[Machine]]
LOG, ENDED = "/tmp/orchard-service.log", "/tmp/orchard-service.ended"
_SOCKETS = "cat /proc/net/tcp /proc/net/tcp6"
_LISTENING = re.compile(r"^ *\d+: 0+:([0-9A-F]{4}) [0-9A-F]+:0000 0A ", re.MULTILINE)
"""A socket that listens at all addresses; its port in hexadecimal."""
_ENDED = (AbortCause.SANDBOX_DIED, AbortCause.SANDBOX_OUT_OF_MEMORY)
_ASKED = 30.0
"""Seconds that a sandbox has to show that it lives."""
_LAST = 400
"""Characters of a program's output that an error shows."""


class _Running(NamedTuple):
    service: TaskService
    machine: Machine
    lines: dict[int, int]
    """Its ports, each with the one of this host that leads to it."""


class RunningServices:
    """The services of a task that run, in the order of their start."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._running: list[_Running] = []

    def sandbox(self, name: str) -> Machine | None:
        return next((each.machine for each in self._running if each.service.names[0] == name), None)

    async def insist_alive(self) -> None:
        """Raises InfrastructureError if the sandbox of one has ended. What became of the program in it is not
        asked: the agent may have ended that."""
        for each in self._running:
            await each.machine.run("true", timeout=_ASKED, cwd="/", user="root")

    async def start(self, service: TaskService, machine: Machine, stack: AsyncExitStack) -> None:
        """Starts one in its sandbox, until the stack closes."""
        await stack.enter_async_context(self.reached_from(machine))
        before = await _listening(machine)
        await _start(self._task, service, machine)
        ports = (await _listening(machine)) - before if service.ports is None else set(service.ports)
        lines = {
            port: urlsplit(await stack.enter_async_context(machine.forward(port))).port or 0
            for port in sorted(ports)
        }
        self._running.append(_Running(service, machine, lines))

    @asynccontextmanager
    async def reached_from(self, machine: Machine) -> AsyncIterator[None]:
        """Gives a sandbox the names and ports of those that run. Whoever works in it learns of its end there,
        and whose doing that is, so it is no failure of the lines that ended with it."""
        over = False
        try:
            async with AsyncExitStack() as stack:
                for port, here in self._ports().items():
                    await stack.enter_async_context(machine.reverse(here, port))
                if self._running:
                    await self._name(machine)
                yield
                over = True
        except InfrastructureError as error:
            if not over or error.cause not in _ENDED:
                raise

    def _ports(self) -> dict[int, int]:
        """Raises INVALID_REQUEST for two services at one port."""
        found: dict[int, int] = {}
        taken: dict[int, str] = {}
        for service, _, lines in self._running:
            name = service.names[0]
            for port, here in lines.items():
                if port in found:
                    raise InfrastructureError(
                        AbortCause.INVALID_REQUEST,
                        f"task {self._task.task_id}: the services {taken[port]} and {name} both listen at "
                        f"port {port}, and they appear on one loopback address: give one another port",
                    )
                found[port], taken[port] = here, name
        return found

    async def _name(self, machine: Machine) -> None:
        names = " ".join(name for each in self._running for name in each.service.names)
        line = shlex.quote(f"127.0.0.1 {names}")
        outcome = await machine.run(f"echo {line} >> /etc/hosts", timeout=30.0, cwd="/", user="root")
        if outcome.returncode != 0:
            raise InfrastructureError(
                AbortCause.INVALID_REQUEST,
                f"task {self._task.task_id}: /etc/hosts of its sandbox cannot name its services: "
                f"{outcome.output}",
            )


def service_sandbox(name: str, machine: Machine) -> Machine:
    """Returns the sandbox of a service beside `machine`. Raises INVALID_REQUEST if there is none."""
    found = machine.services and machine.services.sandbox(name)
    if not found:
        raise InfrastructureError(
            AbortCause.INVALID_REQUEST,
            f"the task's check takes something from the service {name!r}, which the task does not have: "
            "add the service, or correct the name",
        )
    return found


@asynccontextmanager
async def beside(task: Task, machine: Machine, open_sandbox: Open) -> AsyncIterator[None]:
    """Runs the task's services, as `machine` can reach them, while the block lasts.

    Raises as `failed_set_up` says, with TASK_BROKEN, for a service that does not become ready, and
    INVALID_REQUEST for two at one port. Raises InfrastructureError at the block's end, as for any lost
    sandbox, if that of a service has ended before, or a line to one did not hold: then whatever the block has
    found out, even that the task is broken, may be the loss's doing.
    """
    if not task.services:
        yield
        return
    async with AsyncExitStack() as stack:
        services = RunningServices(task)
        for service in task.services:
            own = await stack.enter_async_context(open_sandbox(service))
            await services.start(service, own, stack)
        await stack.enter_async_context(services.reached_from(machine))
        machine.services = services
        try:
            yield
        except InfrastructureError as error:
            if not error.retryable:
                await services.insist_alive()
            raise
        await services.insist_alive()


async def _start(task: Task, service: TaskService, machine: Machine) -> None:
    """Starts the program and waits until it is ready."""
    user, workdir = service.user or None, service.workdir or "."
    if service.ends:
        wait = f'while [ ! -s {ENDED} ]; do sleep 0.2; done; exit "$(cat {ENDED})"'
    elif service.ready:
        wait = service.ready
    else:
        wait = until_listening(service.ports or (), unless=f"[ -e {ENDED} ]")
    # As `discovery.type`: a shell may drop what it cannot set.
    odd = [f"{name}={value}" for name, value in service.environment.items() if not name.isidentifier()]
    program = shlex.join(["env", *odd, *service.argv] if odd else service.argv)
    begin = f"({program}; echo $? > {ENDED}) > {LOG} 2>&1 < /dev/null &"
    for text, seconds in ((begin, 30.0), (wait or "true", service.ready_seconds)):
        outcome = await machine.run(text, timeout=seconds, cwd=workdir, env=service.environment, user=user)
        if outcome.returncode != 0:
            said = await machine.run(f"tail -c {_LAST} {LOG}", timeout=30.0, cwd="/")
            outcome = msgspec.structs.replace(
                outcome, output=f"{outcome.output[-_LAST:].strip()} {said.output.strip()}"
            )
            what = f"task {task.task_id}: its service {service.names[0]}, given {seconds:g} s,"
            raise failed_set_up(task, what, outcome, AbortCause.TASK_BROKEN)


async def _listening(machine: Machine) -> set[int]:
    outcome = await machine.run(_SOCKETS, timeout=30.0, cwd="/")
    return {int(port, 16) for port in _LISTENING.findall(outcome.output)}

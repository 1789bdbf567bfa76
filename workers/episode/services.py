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

from orchard.schemas.outcomes import AbortCause
from orchard.schemas.tasks import Task, TaskService
from orchard.workers.episode.listening import until_listening
from orchard.workers.episode.machine import Machine
from orchard.workers.failures import InfrastructureError

Open = Callable[[TaskService], AbstractAsyncContextManager[Machine]]
LOG, ENDED = "/tmp/orchard-service.log", "/tmp/orchard-service.ended"
_SOCKETS = "cat /proc/net/tcp /proc/net/tcp6"
_LISTENING = re.compile(r"^ *\d+: 0+:([0-9A-F]{4}) [0-9A-F]+:0000 0A ", re.MULTILINE)
"""A socket that listens at all addresses; its port in hexadecimal."""
_LAST = 400
"""Characters of a program's output that an error shows."""


class _Running(NamedTuple):
    service: TaskService
    lines: dict[int, int]
    """Its ports, each with the one of this host that leads to it."""


@asynccontextmanager
async def beside(task: Task, machine: Machine, open_sandbox: Open) -> AsyncIterator[None]:
    """Runs the task's services, as `machine` can reach them, while the block lasts.

    Raises TASK_BROKEN for a service that does not become ready, INVALID_REQUEST for two at one port.
    """
    async with AsyncExitStack() as stack:
        running: list[_Running] = []
        for service in task.services or ():
            own = await stack.enter_async_context(open_sandbox(service))
            await _connect(task, own, running, stack)
            before = await _listening(own)
            await _start(task, service, own)
            ports = (await _listening(own)) - before if service.ports is None else set(service.ports)
            lines = {
                port: urlsplit(await stack.enter_async_context(own.forward(port))).port or 0
                for port in sorted(ports)
            }
            running.append(_Running(service, lines))
        await _connect(task, machine, running, stack)
        yield


async def _connect(task: Task, machine: Machine, running: list[_Running], stack: AsyncExitStack) -> None:
    """Gives a sandbox the names and ports of the services that run."""
    if not running:
        return
    taken: dict[int, str] = {}
    for service, lines in running:
        for port, here in lines.items():
            if other := taken.setdefault(port, service.names[0]) != service.names[0] and taken[port]:
                raise InfrastructureError(
                    AbortCause.INVALID_REQUEST,
                    f"task {task.task_id}: the services {other} and {service.names[0]} both listen at port "
                    f"{port}, and they appear on one loopback address: give one of them another port",
                )
            await stack.enter_async_context(machine.reverse(here, port))
    names = " ".join(name for service, _ in running for name in service.names)
    line = shlex.quote(f"127.0.0.1 {names}")
    outcome = await machine.run(f"echo {line} >> /etc/hosts", timeout=30.0, cwd="/", user="root")
    if outcome.returncode != 0:
        raise InfrastructureError(
            AbortCause.INVALID_REQUEST,
            f"task {task.task_id}: /etc/hosts of its sandbox cannot name its services: {outcome.output}",
        )


async def _start(task: Task, service: TaskService, machine: Machine) -> None:
    """Starts the program and waits until it is ready. Raises TASK_BROKEN if it is not."""
    user, workdir = service.user or None, service.workdir or "."
    command = f"({shlex.join(service.argv)}; echo $? > {ENDED}) > {LOG} 2>&1 < /dev/null &"
    await machine.run(command, timeout=30.0, cwd=workdir, env=service.environment, user=user)
    if service.ends:
        wait = f'while [ ! -s {ENDED} ]; do sleep 0.2; done; exit "$(cat {ENDED})"'
    elif service.ready:
        wait = service.ready
    else:
        wait = until_listening(service.ports or (), unless=f"[ -e {ENDED} ]")
    outcome = await machine.run(
        wait or "true",
        timeout=service.ready_seconds,
        cwd=workdir,
        env=service.environment,
        user=user,
    )
    if outcome.returncode == 0:
        return
    said = await machine.run(f"tail -c {_LAST} {LOG}", timeout=30.0, cwd="/")
    why = f"was not ready within {service.ready_seconds:g} s" if outcome.timed_out else "failed"
    raise InfrastructureError(
        AbortCause.TASK_BROKEN,
        f"task {task.task_id}: its service {service.names[0]} {why}: "
        f"{outcome.output[-_LAST:].strip()} {said.output.strip()}",
    )


async def _listening(machine: Machine) -> set[int]:
    outcome = await machine.run(_SOCKETS, timeout=30.0, cwd="/")
    return {int(port, 16) for port in _LISTENING.findall(outcome.output)}

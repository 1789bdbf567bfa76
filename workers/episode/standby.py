"""Machines that domains keep ready before an attempt asks for one."""

from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol

from orchard.injector.client import AsyncSandbox, AsyncSandboxClient
from orchard.schemas.tasks import Task
from orchard.workers.discovery import load
from orchard.workers.domain import domains
from orchard.workers.episode.settings import SandboxSettings, WorkerSettings
from orchard.workers.episode.worlds import Shared


class Standby(Protocol):
    """What one domain keeps ready."""

    def take(self, task: Task, memory: str) -> AsyncSandbox | None:
        """The sandbox of one that is as the task wants it, with so much memory; None where there is none. It
        is the caller's from here on."""


MakeStandby = Callable[[Shared, AsyncSandboxClient, SandboxSettings, WorkerSettings], Awaitable[Standby]]
"""Makes the standby of a worker, which ends with what its worlds share."""


async def standbys(
    shared: Shared, client: AsyncSandboxClient, sandboxes: SandboxSettings, worker: WorkerSettings
) -> tuple[Standby, ...]:
    """The standbys of all domains that have one."""
    makers: list[MakeStandby] = [load(each.standby) for each in domains().values() if each.standby]
    return tuple([await make(shared, client, sandboxes, worker) for make in makers])


def take(standbys: Iterable[Standby], task: Task, memory: str) -> AsyncSandbox | None:
    """The first that there is. See Standby.take."""
    return next((found for each in standbys if (found := each.take(task, memory)) is not None), None)

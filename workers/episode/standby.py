"""Sandboxes that domains keep ready before an attempt asks for one."""

from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol

from orchard.injector.client import AsyncSandbox, AsyncSandboxClient
from orchard.schemas.tasks import Task
from orchard.workers.discovery import load
from orchard.workers.domain import domains
from orchard.workers.episode.settings import SandboxSettings, WorkerSettings
from orchard.workers.episode.worlds import SharedResources


class Standby(Protocol):
    """A domain's pool of ready sandboxes."""

    def take(self, task: Task, memory: str) -> AsyncSandbox | None:
        """Returns a ready sandbox that suits the task, with that much memory, and hands it over to the
        caller; None if there is none."""


MakeStandby = Callable[
    [SharedResources, AsyncSandboxClient, SandboxSettings, WorkerSettings], Awaitable[Standby]
]
"""Makes the standby of a worker, which ends with the resources that its worlds share."""


async def standbys(
    shared: SharedResources, client: AsyncSandboxClient, sandboxes: SandboxSettings, worker: WorkerSettings
) -> tuple[Standby, ...]:
    makers: list[MakeStandby] = [load(each.standby) for each in domains().values() if each.standby]
    return tuple([await make(shared, client, sandboxes, worker) for make in makers])


def take(standbys: Iterable[Standby], task: Task, memory: str) -> AsyncSandbox | None:
    return next((found for each in standbys if (found := each.take(task, memory)) is not None), None)

"""The sandboxes of one attempt: the agent's, those of its checks and controls, and services beside each."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from fractions import Fraction

import msgspec

from orchard.schemas.campaigns import RolloutRequest
from orchard.schemas.messages import MessageNode
from orchard.schemas.quantities import format_bytes, parse_bytes
from orchard.schemas.tasks import Task, TaskService
from orchard.workers.attempts.dependencies import AttemptDependencies
from orchard.workers.episode.machine import Machine
from orchard.workers.episode.networks import network_of
from orchard.workers.episode.preparation import prepare
from orchard.workers.episode.sandboxes import Publish, SandboxFactory, SandboxMachine
from orchard.workers.episode.services import beside
from orchard.workers.episode.totals import Totals
from orchard.workers.episode.worlds import take_standby
from orchard.workers.harnesses.programs.layers import Layer, installed
from orchard.workers.harnesses.programs.record import Program

_ROLLOUT = "rollout"
"""Purpose of the agent's sandbox."""


@dataclass(frozen=True, kw_only=True)
class Beginning:
    """A state in the middle of another rollout, from which an attempt starts instead of from its task."""

    history: tuple[MessageNode, ...]
    """Whole messages of the other rollout, root first."""
    spent: Totals
    machine: Callable[[SandboxFactory, Task, str], AbstractAsyncContextManager[SandboxMachine]]
    """Opens a machine, with the given memory, in which the history's commands have run."""


class AttemptSandboxes:
    def __init__(
        self, dependencies: AttemptDependencies, request: RolloutRequest, number: int, publish: Publish
    ) -> None:
        self._dependencies = dependencies
        self.memory = request.memory or ""
        """Memory of the agent's, and the least of each; empty before the task is known, unless the request
        says it."""
        self._given = request.memory
        self._growth = Fraction(1)
        """The memory that the request grants, over what the task says."""
        self.creation_seconds = request.timeouts.creation
        """Time limit of the creation of each."""
        self.layer: Layer | None = None
        """The program's files, if the harness is a program."""
        self._beside = 0
        """Bytes of memory that the program needs in addition to the task's."""
        self._factory = SandboxFactory(
            dependencies.sandboxes,
            dependencies.sandbox_settings,
            publish,
            key=f"{request.rollout_id}-{number}",
            labels={"campaign": request.campaign, "rollout": request.rollout_id, "attempt": str(number)},
        )

    @property
    def seconds_creating(self) -> float:
        return self._factory.seconds_creating

    def set_task(self, task: Task) -> None:
        """Says which task the request is about. After a kill for memory the request grants more than the task
        says. Then each sandbox grows in proportion, since it may be another than the agent's that ran out."""
        if self._given is None:
            self.memory = task.memory
        else:
            self._growth = max(Fraction(parse_bytes(self._given), parse_bytes(task.memory)), Fraction(1))

    async def lay(self, program: Program) -> None:
        """Lays the program's files over the agent's sandbox once that is opened. Raises HARNESS_MISSING."""
        self.layer = await installed(self._dependencies.sandboxes, program.name)
        self._beside = parse_bytes(program.memory)

    @asynccontextmanager
    async def open(self, task: Task, purpose: str) -> AsyncIterator[SandboxMachine]:
        """Opens a sandbox of the task, with the services beside it."""

        def service(each: TaskService) -> AbstractAsyncContextManager[Machine]:
            alone = msgspec.structs.replace(task, image=each.image)
            return self._sandbox(alone, f"{purpose}-{each.names[0]}")

        async with self._sandbox(task, purpose) as machine, beside(task, machine, service):
            yield machine

    @asynccontextmanager
    async def agents(self, task: Task, beginning: Beginning | None) -> AsyncIterator[SandboxMachine]:
        """Opens the agent's in the state in which the agent finds it."""
        if beginning is not None:
            async with beginning.machine(self._factory, task, self.memory) as machine:
                yield machine
        else:
            async with self.open(task, _ROLLOUT) as machine:
                await prepare(task, machine, self.creation_seconds)
                yield machine

    def copy(self, machine: SandboxMachine, purpose: str) -> AbstractAsyncContextManager[SandboxMachine]:
        return self._factory.copy(machine, purpose=purpose, memory=self.memory, timeout=self.creation_seconds)

    def _sandbox(self, task: Task, purpose: str) -> AbstractAsyncContextManager[SandboxMachine]:
        program = self.layer if purpose == _ROLLOUT else None
        ready = self._dependencies.standbys if purpose == _ROLLOUT and program is None else ()
        memory = max(self.memory, self._grown(task.memory), key=parse_bytes)
        return self._factory.open(
            task.image,
            purpose=purpose,
            cpu=task.cpu,
            memory=str(parse_bytes(memory) + self._beside) if program else memory,
            timeout=self.creation_seconds,
            layers=[program.image] if program else [],
            network=network_of(task, agent=purpose == _ROLLOUT),
            standby=lambda: take_standby(ready, task, self.memory),
        )

    def _grown(self, memory: str) -> str:
        """Returns the memory in place of what a task, or a check for its own sandbox, says."""
        if self._growth == 1:
            return memory
        said, most = parse_bytes(memory), parse_bytes(self._dependencies.sandbox_settings.max_memory)
        return format_bytes(max(said, min(int(said * self._growth), most)))

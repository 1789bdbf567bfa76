"""Executing recorded commands again, and what of it differed from the record."""

from collections.abc import Sequence
from dataclasses import dataclass

from orchard.schemas.campaigns import Timeouts
from orchard.schemas.tasks import Task
from orchard.workers.episode.comparing import Divergence, Executed, compare
from orchard.workers.episode.machine import Machine
from orchard.workers.harnesses.interface import Harness


@dataclass(frozen=True)
class Replay:
    """What came of executing recorded commands again."""

    commands: int
    divergences: tuple[Divergence, ...]

    @property
    def diverged(self) -> tuple[int, ...]:
        """The steps, each once."""
        return tuple(sorted({one.step for one in self.divergences}))

    @property
    def obstacle(self) -> Divergence | None:
        """The first divergence that is more than timing."""
        return next((one for one in self.divergences if not one.timing), None)


async def replay(
    commands: Sequence[Executed], *, harness: Harness, task: Task, machine: Machine, timeouts: Timeouts
) -> Replay:
    """Execute the commands, in their order, in a machine that is as the task begins.

    Processes that a command left behind in the background run again, too. Raises InfrastructureError,
    CannotExecute.
    """
    found = []
    for command in commands:
        outcome, shown = await harness.execute(command.call, task, machine, timeouts)
        divergence = compare(command, outcome, shown)
        if divergence is not None:
            found.append(divergence)
    return Replay(len(commands), tuple(found))

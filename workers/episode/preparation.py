"""Brings a new sandbox to the state in which a task starts, or to the one in which it is solved."""

import msgspec

from orchard.schemas.outcomes import AbortCause
from orchard.schemas.tasks import Task
from orchard.workers.episode.machine import CommandOutcome, Machine
from orchard.workers.episode.networks import SHUT, asked
from orchard.workers.failures import InfrastructureError

SOLUTION = "/tmp/orchard-solution"
"""Path of the script that solves a task graded in place."""


class SetUpFailed(InfrastructureError):
    """What a task runs before its agent failed."""


async def prepare(task: Task, machine: Machine, timeout: float) -> None:
    """Runs the task's set-up commands, within `timeout` seconds for all of them. Raises as `failed_set_up`
    says if they fail: no model has done anything yet."""
    if not task.setup_commands:
        return
    script = "set -e\n" + "\n".join(task.setup_commands)
    outcome = await machine.run(script, timeout=timeout, cwd=task.workdir, env=task.environment)
    if outcome.returncode != 0:
        raise failed_set_up(task, f"set-up commands of {task.task_id}", outcome)


def failed_set_up(
    task: Task, what: str, outcome: CommandOutcome, broken: AbortCause = AbortCause.INVALID_REQUEST
) -> SetUpFailed:
    """The error for what a task runs before its agent and that failed.

    It is `broken`, which no other attempt would mend, only where neither memory nor a busy machine nor a
    network can be the reason.
    """
    ending = "ran out of time" if outcome.timed_out else f"exited with {outcome.returncode}"
    detail = f"{what} {ending}: {outcome.output[-300:]}"
    if outcome.out_of_memory:
        return SetUpFailed(AbortCause.SANDBOX_OUT_OF_MEMORY, f"{detail} (memory ran out meanwhile)")
    if outcome.timed_out:
        return SetUpFailed(AbortCause.SANDBOX_UNAVAILABLE, f"{detail} (or the machine is too busy)")
    if asked(task) != SHUT:
        return SetUpFailed(AbortCause.SANDBOX_UNAVAILABLE, f"{detail} (or the network failed it)")
    return SetUpFailed(broken, detail)


async def solve(task: Task, machine: Machine, timeout: float) -> None:
    """Runs the known solution, a shell script, of a task that is graded in place, as the agent's user."""
    await machine.write(SOLUTION, task.gold_patch.encode())
    user = None if isinstance(task.user, msgspec.UnsetType) else task.user
    await machine.run(f"bash {SOLUTION}", timeout=timeout, cwd=task.workdir, env=task.environment, user=user)


class Course:
    """How a prepared sandbox comes to the state in which the agent begins, or to the solved one."""

    def __init__(self, task: Task) -> None:
        self.task = task

    async def set_up(self, machine: Machine, timeout: float) -> None:
        """Continues from `prepare` to where the agent begins."""

    async def solve(self, machine: Machine, timeout: float) -> None:
        """Continues from `prepare` to where the known solution ends."""
        await solve(self.task, machine, timeout)

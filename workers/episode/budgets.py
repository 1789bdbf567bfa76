"""What a budget of the task allows, and whether it has run out: for loops in this process and for programs
alike. Pure."""

from math import inf

import msgspec

from orchard.schemas.campaigns import Budget, Timeouts
from orchard.schemas.outcomes import ExitStatus
from orchard.schemas.tasks import Asked, StateCheck, Task
from orchard.workers.episode.totals import Totals


def spent(totals: Totals, budget: Budget) -> ExitStatus | None:
    """What has run out, if anything, by all that is known of tokens and cost."""
    if 0 < budget.steps <= totals.turns:
        return ExitStatus.STEP_LIMIT
    if 0 < budget.cost_usd <= totals.usd:
        return ExitStatus.COST_LIMIT
    if 0 < budget.tokens <= totals.tokens:
        return ExitStatus.TOKEN_LIMIT
    return ExitStatus.TIME_LIMIT if out_of_time(totals, budget) else None


def out_of_time(totals: Totals, budget: Budget) -> bool:
    """Whether the wall clock has run out. Commands use it too, so it is tested before each of a message but
    the first, which the answer was paid for. Steps, tokens and cost are used by model calls alone."""
    return 0 < budget.wall_seconds <= totals.seconds


def time_left(totals: Totals, budget: Budget) -> float:
    """Seconds of the wall clock that are left; infinite without one."""
    return max(budget.wall_seconds - totals.seconds, 0.0) if budget.wall_seconds > 0 else inf


def as_published(task: Task, budget: Budget, timeouts: Timeouts) -> tuple[Budget, Timeouts]:
    """The limits of a rollout where its task's definition publishes time-outs: they hold in place of the
    campaign's wall clock, and the infrastructure's limits grow with them where they are smaller.

    Grading has room for the check, for the known solution and for the check once more (a control), whatever
    else the definition says: an agent whose leftovers make the check hang would else never be graded.
    """
    asks = task.asks if isinstance(task.asks, Asked) else Asked()
    creation = max(timeouts.creation, asks.creation_seconds or 0.0)
    grading = timeouts.grading
    if isinstance(task.grading, StateCheck):
        solution = (asks.agent_seconds or timeouts.command) if task.gold_patch else 0.0
        grading = max(grading, 2 * task.grading.timeout_seconds + creation + solution)
    rollout = timeouts.rollout + grading - timeouts.grading
    timeouts = msgspec.structs.replace(timeouts, creation=creation, grading=grading, rollout=rollout)
    if not isinstance(task.asks, Asked):
        return budget, timeouts
    if asks.agent_seconds is not None and not budget.wall_for_all:
        budget = msgspec.structs.replace(budget, wall_seconds=asks.agent_seconds)
    longest = budget.wall_seconds + _beside(timeouts)
    return budget, msgspec.structs.replace(timeouts, rollout=max(rollout, longest))


def within(budget: Budget, timeouts: Timeouts) -> Budget:
    """The budget with a wall clock that leaves time for the sandbox before the agent's work and all that
    follows it, so that an agent that never ends is truncated, and graded, rather than stopped by the
    outermost timeout.

    It is the same in each attempt: what a sandbox takes to start is never taken from the agent. Timeouts
    that leave room for less than one command change nothing.
    """
    room = timeouts.rollout - _beside(timeouts)
    if room < timeouts.command or 0 < budget.wall_seconds <= room:
        return budget
    return msgspec.structs.replace(budget, wall_seconds=room)


def _beside(timeouts: Timeouts) -> float:
    """Seconds of an attempt beside the agent's wall clock, at most."""
    return timeouts.command + timeouts.shutdown + 2 * timeouts.creation + timeouts.grading

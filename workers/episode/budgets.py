"""What a task's budget allows, and whether it is used up, for harnesses and for programs. Pure."""

from math import inf

import msgspec

from orchard.schemas.campaigns import Budget, Timeouts
from orchard.schemas.outcomes import ExitStatus
from orchard.schemas.tasks import Asked, Task, checks_of
from orchard.workers.episode.totals import Totals


def spent(totals: Totals, budget: Budget) -> ExitStatus | None:
    """Returns the exit status of the limit that is reached, judging by the tokens and costs that are known;
    None if none is."""
    if 0 < budget.steps <= totals.turns:
        return ExitStatus.STEP_LIMIT
    if 0 < budget.cost_usd <= totals.usd:
        return ExitStatus.COST_LIMIT
    if 0 < budget.tokens <= totals.tokens:
        return ExitStatus.TOKEN_LIMIT
    return ExitStatus.TIME_LIMIT if out_of_time(totals, budget) else None


def out_of_time(totals: Totals, budget: Budget) -> bool:
    """Whether the wall clock has run out. Commands use it too, so it is tested before each command of a
    message but the first, which the answer was paid for. Only model calls use steps, tokens and cost."""
    return 0 < budget.wall_seconds <= totals.seconds


def time_left(totals: Totals, budget: Budget) -> float:
    """Returns the seconds left of the wall clock; infinite without one."""
    return max(budget.wall_seconds - totals.seconds, 0.0) if budget.wall_seconds > 0 else inf


def as_published(task: Task, budget: Budget, timeouts: Timeouts) -> tuple[Budget, Timeouts]:
    """Returns the limits of a rollout whose task's definition publishes time-outs: they replace the
    campaign's wall clock, and the infrastructure's limits grow with them if they are smaller.

    Grading has room for the check, for the known solution and for the check once more (a control), whatever
    else the definition says: an agent whose leftovers make the check hang would otherwise never be graded.
    """
    asks = task.asks if isinstance(task.asks, Asked) else Asked()
    creation = max(timeouts.creation, asks.creation_seconds or 0.0)
    grading, checks = timeouts.grading, checks_of(task.grading)
    for check in checks:
        solution = (asks.agent_seconds or timeouts.command) if task.gold_patch else 0.0
        own = 0.0 if isinstance(check.sandbox, msgspec.UnsetType) else 2 * creation
        collecting = sum(hook.timeout_seconds for hook in check.collect or ())
        grading = max(grading, 2 * (check.timeout_seconds + collecting) + creation + own + solution)
    more = max(len(checks) - 1, 0) * (grading + creation)  # checks between the stages
    rollout = timeouts.rollout + grading - timeouts.grading + more
    timeouts = msgspec.structs.replace(timeouts, creation=creation, grading=grading, rollout=rollout)
    if not isinstance(task.asks, Asked):
        return budget, timeouts
    if asks.agent_seconds is not None and not budget.wall_for_all:
        budget = msgspec.structs.replace(budget, wall_seconds=asks.agent_seconds)
    longest = budget.wall_seconds + _beside(timeouts) + more
    return budget, msgspec.structs.replace(timeouts, rollout=max(rollout, longest))


def within(budget: Budget, timeouts: Timeouts) -> Budget:
    """Returns the budget with a wall clock that leaves time to create the sandbox before the agent's work and
    for all that follows it, so that an agent that never ends is truncated, and graded, instead of being
    stopped by the outermost timeout.

    It is the same in each attempt: the time that a sandbox takes to start is never taken from the agent.
    Timeouts that leave room for less than one command change nothing.
    """
    room = timeouts.rollout - _beside(timeouts)
    if room < timeouts.command or 0 < budget.wall_seconds <= room:
        return budget
    return msgspec.structs.replace(budget, wall_seconds=room)


def time_before_checks(timeouts: Timeouts, checks: int) -> float:
    """Returns the seconds of an attempt by which an agent must have ended, waiting included, if so many
    checks follow."""
    return timeouts.rollout - timeouts.shutdown - checks * (timeouts.creation + timeouts.grading)


def _beside(timeouts: Timeouts) -> float:
    """Returns the most seconds that an attempt may take apart from the agent's wall clock."""
    return timeouts.command + timeouts.shutdown + 2 * timeouts.creation + timeouts.grading

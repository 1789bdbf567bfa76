"""Counts rollouts that made no group to learn from since the last one, and stops a run for them.

A policy that never succeeds, or always, makes groups of equal rewards alone. Dynamic sampling drops
them and asks for more, so nothing in the plan would ever end such a run.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from orchard.pipelines.rl.coordinator import RunError, subjects
from orchard.pipelines.rl.plan import RunPlan
from orchard.pipelines.rl.progress import RunProgress
from orchard.streams import names
from orchard.streams.connection import Connection
from orchard.streams.reading import bounds
from orchard.streams.records import StoredEvent
from orchard.streams.replay import replay_batches

STEPS = 10
"""Default of `patience`, in steps' worth of rollouts."""


class NothingToLearn(RunError):
    """The run made no group to learn from within its patience."""

    exit_code = 3


class Barren(NamedTuple):
    """Cost of the prompts decided since the newest group that trains."""

    rollouts: int = 0
    """Finished rollouts, graded or aborted."""
    succeeded: int = 0
    aborted: int = 0

    def __str__(self) -> str:
        lost = f", {self.aborted} aborted" if self.aborted else ""
        return f"{self.rollouts} rollouts without a group to learn from ({self.succeeded} succeeded{lost})"


def barren(progress: RunProgress, first: int = 0) -> Barren:
    """Cost of the prompts from number `first` on that follow the newest group that trains. A group that
    waits counts as one, until it is dropped."""
    keep = progress.plan.keep_degenerate
    teaching = [
        group.prompt
        for name, group in progress.groups.items()
        if name not in progress.dropped and (keep or not group.degenerate)
    ]
    begin = max([first, *(prompt + 1 for prompt in teaching)])
    found = [
        rollout
        for number, prompt in progress.prompts.items()
        if number >= begin and prompt.decided and not progress.plan.is_trap(number)
        for place in prompt.places.values()
        for rollout in place.outcomes.values()
    ]
    return Barren(
        rollouts=len(found),
        succeeded=sum(rollout.resolved for rollout in found),
        aborted=sum(rollout.reward is None for rollout in found),
    )


async def stop_barren(
    connection: Connection, plan: RunPlan, start: int, patience: int | None, say: Callable[[str], None]
) -> None:
    """Follow a run whose events begin at sequence `start`, and `say` after each step's worth of rollouts
    that made no group. Rollouts before this call do not count, so a stopped run can be resumed.
    Returns when the run is finished. Raises NothingToLearn after `patience` rollouts (None: STEPS
    steps' worth)."""
    worth = plan.prompts_per_step * plan.slots
    limit = STEPS * worth if patience is None else patience
    progress, told = RunProgress(plan), 0
    last = (await bounds(connection, names.EVENTS)).last
    async for batch in replay_batches(connection, start, subjects=subjects(plan.name)):
        _fold(progress, batch)
    first = max(progress.prompts, default=-1) + 1
    following = replay_batches(connection, max(start, last + 1), subjects=subjects(plan.name), follow=True)
    async for batch in following:
        _fold(progress, batch)
        if progress.finished:
            return
        spent = barren(progress, first)
        if spent.rollouts >= limit:
            raise NothingToLearn(
                f"run {plan.name!r} stops after {spent}: start from a policy that succeeds now and then, or "
                "choose tasks that it sometimes solves (`tasks.measured_in`); the same command goes on for "
                f"another {limit} (`patience`)"
            )
        if spent.rollouts // worth != told:
            told = spent.rollouts // worth
            if told:
                say(f"{spent}; the run stops at {limit}")


def _fold(progress: RunProgress, batch: Iterable[StoredEvent]) -> None:
    for stored in batch:
        if stored.fact is not None:
            progress.apply(stored.fact, stored.sequence)

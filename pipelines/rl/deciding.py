"""Decides about a run's prompts, by its method, from the folded log. Pure."""

from collections.abc import Iterator

import msgspec

from orchard.pipelines.rl import bar, frugal
from orchard.pipelines.rl.bar import Assemble, Generate, GiveUp
from orchard.pipelines.rl.frugal import Grown, OneClass, VersionCounts, information
from orchard.pipelines.rl.progress import RunProgress, SlotState
from orchard.schemas.groups import GroupOutcome, PromptSkipped

Places = list[tuple[int, int]]
"""Slots, each as prompt and index in its pool."""
FrugalGroup = tuple[Grown | OneClass, Places]
"""A decision with the slots that were left over, newest first, of which it takes the first ones."""


def decide(progress: RunProgress, prompt: int) -> Assemble | Generate | GiveUp | FrugalGroup:
    """Decide what to do next for an open prompt."""
    plan = progress.plan
    pool = progress.prompts[prompt].pool(plan)
    if plan.frugal is None:
        return bar.decide(pool, plan.bar, impossible=plan.is_trap(prompt))
    if plan.is_trap(prompt):
        least, aborts = plan.frugal.least, plan.frugal.abort_limit
        stride = bar.BarSettings(size=least, budget=least, interval=None, max_aborts=aborts)
        return bar.decide(pool, stride, impossible=True)
    left = left_over(progress, prompt)
    seen = evidence(progress, plan.task_of(prompt).task_id)
    decision = frugal.decide(
        pool,
        [progress.prompts[number].places[slot].slot.tried[-1] for number, slot in left],
        frugal.posterior(seen, progress.version, plan.frugal),
        rate(progress),
        plan.frugal,
    )
    return (decision, left) if isinstance(decision, Grown | OneClass) else decision


def skipped(progress: RunProgress, prompt: int) -> PromptSkipped | None:
    """Say why the next prompt is passed over; None: it is opened, as other methods open all."""
    plan = progress.plan
    if plan.frugal is None or plan.is_trap(prompt):
        return None
    task = plan.task_of(prompt).task_id
    found = frugal.visit(
        frugal.posterior(evidence(progress, task), progress.version, plan.frugal),
        plan.frugal,
        seed=f"{plan.seed}:{prompt}",
        skipped_in_a_row=_skipped_in_a_row(progress, task),
    )
    if found is None:
        return None
    return PromptSkipped(
        run=plan.name,
        prompt=prompt,
        task_id=task,
        version=progress.version,
        **msgspec.structs.asdict(found),
    )


def evidence(progress: RunProgress, task: str) -> list[VersionCounts]:
    """A task's graded rollouts by the policy version that was newest when they were asked for."""
    counts: dict[int, list[bool]] = {}
    for _, _, place in _places(progress, task):
        rollout = place.outcomes[place.last]
        if rollout.reward is not None:
            counts.setdefault(_version(progress, place), []).append(bar.is_positive(rollout))
    return [VersionCounts(version, sum(found), len(found)) for version, found in sorted(counts.items())]


def left_over(progress: RunProgress, prompt: int) -> Places:
    """Graded rollouts of the prompt's task that train, of decided prompts, newest first, that no group has.

    Empty while an older prompt of the task is undecided: the oldest has the first right to them, so no two
    groups ever name the same, whoever decides them.
    """
    plan = progress.plan
    assert plan.frugal is not None
    task = plan.task_of(prompt).task_id
    numbers = progress.prompts_of.get(task, [])
    if any(number < prompt and not progress.prompts[number].decided for number in numbers):
        return []
    used = {
        member.rollout_id
        for number in numbers
        if number in progress.decisions
        for member in progress.decisions[number].members
    }
    found = [
        (place.requested, number, slot)
        for number, slot, place in _places(progress, task)
        if number != prompt
        and progress.prompts[number].decided
        and place.outcomes[place.last].reward is not None
        and progress.trains(number, slot)
        and place.rollout_id not in used
        and progress.version - _version(progress, place) <= plan.frugal.reuse
    ]
    return [(number, slot) for _, number, slot in sorted(found, reverse=True)]


def rate(progress: RunProgress) -> float:
    """Mean information of the run's groups for each graded rollout that its decided prompts cost."""
    decided = [one for one in progress.decisions.values() if one.outcome is not GroupOutcome.IMPOSSIBLE]
    cost = sum(one.generated for one in decided)
    return sum(information(one.positive, len(one.members)) for one in decided) / cost if cost else 0.0


def _places(progress: RunProgress, task: str) -> Iterator[tuple[int, int, SlotState]]:
    """Finished slots of a task, as prompt, index and state."""
    for number in progress.prompts_of.get(task, []):
        for slot, place in progress.prompts[number].places.items():
            if not place.running:
                yield number, slot, place


def _version(progress: RunProgress, place: SlotState) -> int:
    """The newest policy version that the log had when a rollout was requested."""
    return max((version for version, at in progress.updates.items() if at < place.requested), default=0)


def _skipped_in_a_row(progress: RunProgress, task: str) -> int:
    row = 0
    for number in sorted(progress.prompts_of.get(task, []), reverse=True):
        if number not in progress.skipped:
            break
        row += 1
    return row

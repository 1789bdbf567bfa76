"""The verdict of repeated gradings of the known solution and of nothing.

Pure. This is the rule for tasks that are judged as a whole, by a check or a plug-in. Domains bring
others (`orchard.pipelines.domain`).
"""

from collections.abc import Sequence

import msgspec

from orchard.schemas.outcomes import Reward
from orchard.schemas.tasks import Task


class Proven(msgspec.Struct, frozen=True, kw_only=True):
    """The known solution resolves `task`, and nothing at all does not, in every run."""

    task: Task
    """The task itself, or the one that remains without its unsteady tests."""
    dropped: dict[str, str] = {}
    """Reason of each dropped test."""
    detail: str | None = None
    """What the runs could not show, or how the proof was made."""
    runs: int = 1
    """Gradings of the known solution, and as many of nothing."""
    without_canary: tuple[str, ...] | None = None
    """Tests without a canary, as in TaskValidated."""


class Refuted(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict that a task is unfit for use."""

    reason: str
    """Reason, as in `task.rejected`."""
    detail: str


Verdict = Proven | Refuted


def judge_whole(task: Task, gold: Sequence[Reward], empty: Sequence[Reward]) -> Verdict:
    """The verdict over the rewards of the known solution and of nothing. `gold` is empty where no solution is
    known; `empty` has at least one."""
    for rewards, when in ((empty, "without a solution"), (gold, "with the known solution")):
        if len({reward.resolved for reward in rewards}) > 1:
            said = "; ".join(reward.detail for reward in rewards)
            return Refuted(reason="flaky", detail=f"{when} the verdict changes between runs: {said}")
    if empty[0].resolved:
        return Refuted(reason="empty_resolves", detail=f"an untouched sandbox passes: {empty[0].detail}")
    if gold and not gold[0].resolved:
        return Refuted(reason="gold_does_not_resolve", detail=gold[0].detail)
    unknown = f"no solution is known; an untouched sandbox does not pass: {empty[0].detail}"
    return Proven(task=task, detail=None if gold else unknown)

"""What repeated grading of the known solution and of nothing proves about a task. Pure.

A test is *unsteady* when its outcome differs between runs with the same patch. Unsteady tests are dropped
from the task's lists, which makes another task (another `task_hash`) under the same id, proven by the same
runs. A task that is judged as a whole, by a check or a plug-in, has nothing to drop.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from orchard.schemas.outcomes import Reward
from orchard.schemas.tasks import SWETests, Task
from orchard.workers.domains.swe.verdict import MISSING, PASSING

KEPT_SHARE = 0.5
"""Of the tests of a task, that must be steady for the rest to be a task."""
_SHOWN = 5


class Proven(msgspec.Struct, frozen=True, kw_only=True):
    """The known solution resolved `task` in every run, and nothing at all in none."""

    task: Task
    """The task itself, or the one that is left without its unsteady tests."""
    dropped: dict[str, str] = {}
    """Dropped test to why."""
    detail: str | None = None
    """What the runs could not show."""


class Refuted(msgspec.Struct, frozen=True, kw_only=True):
    """The task is not fit for use."""

    reason: str
    """As in `task.rejected`."""
    detail: str


def prove(task: Task, gold: Sequence[Reward], empty: Sequence[Reward]) -> Proven | Refuted:
    """The verdict over the runs: rewards of the known solution, and of nothing, one or more of each. Only a
    task that is not graded by tests may have no known solution, and then `gold` is empty."""
    if isinstance(task.grading, SWETests):
        return _by_tests(task, task.grading, gold, empty)
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


def _by_tests(
    task: Task, grading: SWETests, gold: Sequence[Reward], empty: Sequence[Reward]
) -> Proven | Refuted:
    dropped = {**_unsteady(empty, "without a patch"), **_unsteady(gold, "with the gold patch")}
    kept = msgspec.structs.replace(
        grading,
        fail_to_pass=_without(grading.fail_to_pass, dropped),
        pass_to_pass=_without(grading.pass_to_pass, dropped),
    )
    listed = len(grading.fail_to_pass) + len(grading.pass_to_pass)
    left = len(kept.fail_to_pass) + len(kept.pass_to_pass)
    if dropped and (not kept.fail_to_pass or left < KEPT_SHARE * listed):
        return Refuted(
            reason="flaky",
            detail=f"{len(dropped)} of {listed} tests change between runs, which leaves too few: "
            f"{_some(dropped.values())}",
        )
    failing = sorted({failure for reward in gold for failure in _failures(kept, reward)})
    if failing:
        return Refuted(reason="gold_does_not_resolve", detail=f"{gold[0].detail}: {_some(failing)}")
    if not all(_failures(kept, reward) for reward in empty):
        return Refuted(reason="empty_resolves", detail="every test passes without any change")
    return Proven(
        task=msgspec.structs.replace(task, grading=kept) if dropped else task,
        dropped=dropped,
    )


def _unsteady(rewards: Sequence[Reward], when: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for test in rewards[0].tests:
        statuses = [reward.tests.get(test, MISSING) for reward in rewards]
        if len({status in PASSING for status in statuses}) > 1:
            found[test] = f"{test} is {', '.join(statuses)} {when}"
    return found


def _failures(grading: SWETests, reward: Reward) -> list[str]:
    kept = (*PASSING, "SKIPPED")
    status = {
        test: reward.tests.get(test, MISSING) for test in (*grading.fail_to_pass, *grading.pass_to_pass)
    }
    failing = [test for test in grading.fail_to_pass if status[test] not in PASSING]
    failing += [test for test in grading.pass_to_pass if status[test] not in kept]
    return [f"{test} is {status[test]}" for test in failing]


def _without(tests: Sequence[str], dropped: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(test for test in tests if test not in dropped)


def _some(texts: Iterable[str]) -> str:
    shown = list(texts)
    more = f" and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else ""
    return "; ".join(shown[:_SHOWN]) + more

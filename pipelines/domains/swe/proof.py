"""Proves tasks that a repository's tests judge: no solution in reach, steady tests, gold resolves,
nothing does not. A test is *unsteady* when its outcome differs between runs with the same patch.
Unsteady tests are dropped from the task's lists, which makes another task (another `task_hash`) under
the same id, proven by the same runs."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

import msgspec

from orchard.pipelines.domains.swe.history import OVER, look
from orchard.pipelines.domains.swe.other_releases import LIST, newer_releases
from orchard.pipelines.tasks.proving import ProofContext, Proven, Refuted, Verdict
from orchard.schemas.outcomes import Reward
from orchard.schemas.protection import Protected
from orchard.schemas.tasks import SWETests, Task
from orchard.workers.domains.swe.sheets.making import PlainRun
from orchard.workers.domains.swe.sheets.obtaining import sheet_of
from orchard.workers.domains.swe.verdict import MISSING, PASSING
from orchard.workers.episode.preparation import prepare

KEPT_SHARE = 0.5
"""Share of a task's tests that must be steady for the rest to be a task."""
FOUND = "/tmp/orchard-found"
"""File that the search for solutions in reach writes its findings to."""
_REACH_SHOWN = 1000
"""Characters of what is in reach, in a verdict."""
_SHOWN = 5


async def prove_task(task: Task, context: ProofContext) -> Verdict:
    if not task.gold_patch.strip():
        return Refuted(reason="no_gold_patch", detail="without a known solution nothing can be proven")
    if seen := await _solutions_in_reach(task, context):
        return Refuted(reason="solution_in_reach", detail="; ".join(seen)[:_REACH_SHOWN])
    known: list[Reward] = []

    def judged(task: Task, gold: Sequence[Reward], empty: Sequence[Reward]) -> Verdict:
        known.extend(gold)
        return judge_tests(task, gold, empty)

    verdict = await context.by_runs(task, judged)
    return verdict if isinstance(verdict, Refuted) else await _labelled(verdict, known, context)


async def _labelled(proven: Proven, gold: Sequence[Reward], context: ProofContext) -> Proven:
    """Makes the question sheet of a proven task, and says how well it protects the reward."""
    task = proven.task
    seconds = context.settings.grading_seconds
    pristine = partial(context.fresh, task)
    assert isinstance(task.grading, SWETests)
    plain = PlainRun(statuses=gold[-1].tests, seconds=min(reward.seconds for reward in gold))
    sheet = await sheet_of(
        task, pristine, context.blobs, context.controls, seconds, None if task.grading.strip_timing else plain
    )
    if sheet is None:
        why = "its test command is not pytest's or unittest's, so its tests are judged by what they print"
        return msgspec.structs.replace(proven, protected=Protected.INSIDE, protected_why=why)
    return msgspec.structs.replace(
        proven,
        protected=sheet.label,
        protected_tests={test.name: test.label for test in sheet.tests.values()},
        protected_why=sheet.why,
    )


async def _solutions_in_reach(task: Task, context: ProofContext) -> list[str]:
    """Findings from which an agent could read the solution in a fresh sandbox."""
    seconds = context.settings.grading_seconds
    async with context.fresh(task) as machine:
        await prepare(task, machine, seconds)
        copies = tuple(filter(None, (task.labels.get("base"), task.labels.get("gold"))))
        found = []
        for script in (look(task.base_commit, copies), LIST):
            told = f"{{ {script}\n}} > {FOUND} 2> /dev/null"
            await machine.run(told, timeout=seconds, cwd=task.workdir, env=task.environment)
            found.append((await machine.read(FOUND)).decode(errors="replace").splitlines())
    history, releases = found
    if not history or history.pop() != OVER:
        history.append("the look at the history did not end")
    if history:
        history.append("`orchard tasks import` cuts the history of the tasks it brings")
    return [*history, *newer_releases(releases, task.repo, task.version)]


def judge_tests(task: Task, gold: Sequence[Reward], empty: Sequence[Reward]) -> Verdict:
    """The verdict over the rewards of the gold patch and of an empty one, one or more of each."""
    grading = task.grading
    assert isinstance(grading, SWETests)
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

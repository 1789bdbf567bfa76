"""Grades by a repository's own tests, in a fresh sandbox with only the submitted patch applied.

**When is a run without a result the model's fault, and when is it infrastructure?** A test command may end
without a parsed result because the patch breaks the interpreter or the test runner's start, because it hangs,
or because the environment is broken. The log alone cannot tell. So an inconclusive run (`verdict.conclusive`)
is followed by a control run in another sandbox, with the gold patch (or without a patch if the task has
none). If the control is conclusive, the submitted patch is to blame and the task is unresolved; otherwise
nothing is known about the submission and GRADER_FAILED is raised. A test patch that cannot be applied after
the submitted one is decided in the same way.

Memory is decided likewise: tests that fail while a process is killed for memory are the model's fault, unless
the control is killed as well; then the task needs more memory, and SANDBOX_OUT_OF_MEMORY is raised. If the
sandbox itself ends during the tests without exceeding a limit, the host may be the cause: only a second such
end, in another sandbox, is the model's fault.
"""

import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import PurePosixPath

import msgspec

from orchard.schemas.outcomes import PUBLISHED, AbortCause, Reward
from orchard.schemas.tasks import SWETests, Task
from orchard.workers.domains.swe.canaries.canaries import (
    LIMIT,
    SHARE,
    Canaries,
    canaries_of,
    evidence,
    suspicious,
)
from orchard.workers.domains.swe.checkout import LADDER, PUBLISHED_LADDER, Applied, RepositoryCheckout
from orchard.workers.domains.swe.logs.parsers import PARSERS, without_timing
from orchard.workers.domains.swe.patch_policy import PatchRejected, permitted
from orchard.workers.domains.swe.testing import (
    NO_ANSWERS,
    Answers,
    RunnerPlan,
    TestRun,
    plan_of,
    run_copies,
    run_tests,
)
from orchard.workers.domains.swe.verdict import DOUBTFUL, SWEVerdict, judge
from orchard.workers.episode.diffs import is_diff, touched_paths
from orchard.workers.episode.machine import Machine
from orchard.workers.episode.preparation import prepare
from orchard.workers.failures import InfrastructureError, LimitExceeded
from orchard.workers.graders.judgement import Judgement

NAME = "swe-tests"

RUNNER_HOOKS = frozenset({"conftest.py", "pytest.ini", "sitecustomize.py", "usercustomize.py"})
"""Files that control the test runner. An evaluation restores them, unless the gold patch changes them."""

REFUSED, FORGED, UNPROVEN = "refused", "forged", "unproven"
"""Causes of a -1 that no test result gave."""


class Grade(msgspec.Struct, frozen=True, kw_only=True):
    verdict: SWEVerdict
    detail: str
    log: str = ""
    cause: str | None = None
    extra_sandboxes: int = 0


async def grade_swe(grading: SWETests, judgement: Judgement) -> Reward:
    """Returns +1 if the submission resolves the task, else -1. Raises as the module's docstring explains."""
    task, published = judgement.task, judgement.published
    if grading.parser not in PARSERS:
        raise _invalid(
            task, f"names the unknown log parser {grading.parser!r}: use one of {', '.join(PARSERS)}"
        )
    if not grading.fail_to_pass:
        raise _invalid(
            task, "names no test that the solution must make pass: list at least one in fail_to_pass"
        )
    started = time.monotonic()
    grade = await _Grader(grading, judgement).grade()
    return Reward(
        value=1.0 if grade.verdict.resolved else -1.0,
        resolved=grade.verdict.resolved,
        grader=NAME + PUBLISHED if published else NAME,
        parts={"fail_to_pass": grade.verdict.fail_to_pass, "pass_to_pass": grade.verdict.pass_to_pass},
        tests=grade.verdict.tests,
        detail=grade.detail,
        log=await judgement.keep_log(grade.log),
        seconds=time.monotonic() - started,
        cause=grade.cause,
        extra_sandboxes=grade.extra_sandboxes,
    )


class _Grader:
    def __init__(self, grading: SWETests, judgement: Judgement) -> None:
        self._task = judgement.task
        self._grading = grading
        self._submission = judgement.submission
        self._machine = judgement.machine
        self._pristine = judgement.pristine
        self._deadline = time.monotonic() + judgement.timeout
        self._published = judgement.published
        self._copies = judgement.copies and not judgement.published
        self._ladder = PUBLISHED_LADDER if judgement.published else LADDER

    async def grade(self) -> Grade:
        submission, machine = self._submission, self._machine
        checkout = await self._begun(machine)
        nothing = judge({}, self._grading.fail_to_pass, self._grading.pass_to_pass)
        detail = "no patch was submitted"
        if submission.strip():
            if not is_diff(submission):
                return Grade(verdict=nothing, detail="the submission is not a diff", log=submission)
            applied = await self._apply(submission, checkout)
            if isinstance(applied, PatchRejected):
                return Grade(verdict=nothing, detail=f"refused: {applied.reason}", cause=REFUSED)
            if applied.by is None:
                return Grade(verdict=nothing, detail="the patch does not apply", log=applied.log)
            detail = f"applied by {applied.by}"
        run = await self._test(submission, machine, checkout)
        if run is not None and run.ended_by and not isinstance(run.ended_by, LimitExceeded):
            async with self._pristine() as another:
                checkout = await self._begun(another)
                await self._apply(submission, checkout)
                run = await self._test(submission, another, checkout)
        if run is None or not run.conclusive:
            return await self._inconclusive(nothing, run)
        grade = Grade(verdict=self._judged(run), detail=detail, log=run.log)
        if run.out_of_memory and not grade.verdict.resolved:
            return await self._inconclusive(nothing, run)
        if not grade.verdict.resolved or not self._copies:
            return grade
        return await self._proven(submission, run, grade)

    async def _begun(self, machine: Machine) -> RepositoryCheckout:
        checkout = RepositoryCheckout(machine, self._task, self._deadline)
        await prepare(self._task, machine, checkout.seconds_left)
        await checkout.begin()
        return checkout

    async def _apply(self, submission: str, checkout: RepositoryCheckout) -> Applied | PatchRejected:
        """Applies a submission as git reads it; outside of published rules, only the permitted part."""
        if self._published:
            return await checkout.apply(submission, self._ladder)
        staged = await checkout.stage(submission)
        if isinstance(staged, Applied):
            return staged
        allowed = permitted(staged.changes, self._task.gold_patch, staged.base, self._restored(""))
        if isinstance(allowed, PatchRejected):
            return allowed
        if not await checkout.put(allowed.changes):
            return Applied(by=None, log="its files cannot be written\n")
        return Applied(by=staged.by, log="")

    def _restored(self, patch: str) -> set[str]:
        return paths_to_restore(self._task, self._grading, patch if self._published else "")

    async def _bring_tests(self, patch: str, checkout: RepositoryCheckout) -> bool:
        """Brings the task's tests in; False if they cannot be applied to the repository."""
        brought = await checkout.restore(self._restored(patch))
        if brought and self._grading.test_patch.strip():
            brought = (await checkout.apply(self._grading.test_patch, self._ladder)).by is not None
        return brought

    async def _test(self, patch: str, machine: Machine, checkout: RepositoryCheckout) -> TestRun | None:
        if not await self._bring_tests(patch, checkout):
            return None
        return await run_tests(self._task, self._grading, machine, checkout, trusted=self._published)

    def _judged(self, run: TestRun) -> SWEVerdict:
        statuses = run.statuses
        must: Sequence[str] = self._grading.fail_to_pass
        keep: Sequence[str] = self._grading.pass_to_pass
        if self._grading.strip_timing:
            statuses = {without_timing(test): status for test, status in statuses.items()}
            must, keep = [without_timing(test) for test in must], [without_timing(test) for test in keep]
        return judge(statuses, must, keep)

    async def _gold(self, machine: Machine) -> RepositoryCheckout:
        """Applies the gold patch in a machine that never held the submission."""
        checkout = await self._begun(machine)
        if self._task.gold_patch and (await checkout.apply(self._task.gold_patch, self._ladder)).by is None:
            raise _failed(self._task, "the gold patch does not apply")
        return checkout

    async def _inconclusive(self, nothing: SWEVerdict, run: TestRun | None) -> Grade:
        """Runs the control that decides why the tests gave no result; see the module's docstring."""
        async with self._pristine() as machine:
            control = await self._test(self._task.gold_patch, machine, await self._gold(machine))
        if control is None:
            raise _failed(self._task, "the test patch does not apply")
        if not control.conclusive:
            if control.ended_by is not None:
                raise control.ended_by
            if control.out_of_memory:
                what = f"task {self._task.task_id}: the tests need more memory, whatever is applied"
                raise InfrastructureError(AbortCause.SANDBOX_OUT_OF_MEMORY, what)
            said = control.log.strip()[-300:]
            raise _failed(self._task, f"the tests give no result, whatever is applied: {said}")
        if run is None:
            detail = "the patch leaves files where the test patch cannot be applied"
            return Grade(verdict=nothing, detail=detail, extra_sandboxes=1)
        verdict = msgspec.structs.replace(self._judged(run), resolved=False)
        blame = "never end" if run.exit_code is None else f"give no result (exit code {run.exit_code})"
        if run.out_of_memory:
            blame = "run out of memory"
        if run.ended_by is not None:
            blame = f"end their sandbox ({run.ended_by.detail})"
        detail = f"with this patch the tests {blame}, without it they run"
        return Grade(verdict=verdict, detail=detail, log=run.log, extra_sandboxes=1)

    # --- before a +1 -----------------------------------------------------------------------------

    async def _proven(self, submission: str, run: TestRun, grade: Grade) -> Grade:
        """Confirms a +1. The grade becomes -1 if the submission cannot tell right answers from wrong ones, or
        passes by a skipped or expected failure that the gold patch does not have. Takes at most two more
        sandboxes."""
        doubtful = {test for test, status in grade.verdict.tests.items() if status in DOUBTFUL}
        plan = plan_of(self._grading) if self._task.gold_patch.strip() else None
        canaries: Canaries | None = None
        answers = NO_ANSWERS
        used, limit = 0, LIMIT
        if plan is not None:
            async with self._pristine() as machine:
                used = 1
                checkout = await self._begun(machine)
                await self._apply(submission, checkout)
                await self._bring_tests(submission, checkout)
                canaries = await canaries_of(self._grading, plan, machine, self._task, run.seconds)
                limit = min(LIMIT, checkout.seconds_left * SHARE)
                with suppress(LimitExceeded):  # then nothing was answered
                    answers = await self._ask(plan, canaries, machine, checkout, limit)
        suspects = suspicious(canaries.sites, answers) if canaries else set()
        forged: set[str] = set()
        if self._task.gold_patch.strip() and (suspects or doubtful):
            async with self._pristine() as machine:
                used += 1
                checkout = await self._gold(machine)
                if not await self._bring_tests(self._task.gold_patch, checkout):
                    raise _failed(self._task, "the test patch does not apply")
                if doubtful:
                    control = await run_tests(self._task, self._grading, machine, checkout, trusted=False)
                    as_gold = self._judged(control).tests
                    doubtful = {test for test in doubtful if as_gold[test] != grade.verdict.tests[test]}
                if suspects and plan is not None and canaries is not None:
                    gold = await self._ask(plan, canaries, machine, checkout, limit / 2)
                    if not gold.ended and not gold.counts:
                        raise _failed(
                            self._task,
                            "the gold patch had no time for copies of the tests: grade with a longer timeout",
                        )
                    forged = evidence(canaries.sites, answers, gold)
        grade = msgspec.structs.replace(grade, extra_sandboxes=used)
        if doubtful:
            return _refuted(
                grade, UNPROVEN, f"passes otherwise than the gold patch: {', '.join(sorted(doubtful))}"
            )
        if forged and canaries is not None:
            tests = sorted({canaries.sites[name].test for name in forged})
            return _refuted(
                grade, FORGED, f"does not tell right answers from wrong ones in {', '.join(tests)}"
            )
        return grade

    async def _ask(
        self,
        plan: RunnerPlan,
        canaries: Canaries,
        machine: Machine,
        checkout: RepositoryCheckout,
        limit: float,
    ) -> Answers:
        """Runs the copies where the tests were; the tests themselves and their patches are removed first."""
        if not canaries.sites:
            return NO_ANSWERS
        await checkout.restore(set(canaries.texts))
        await checkout.forget_patches()
        return await run_copies(
            self._task, self._grading, plan.call, canaries.texts, machine, checkout, limit
        )


def paths_to_restore(task: Task, grading: SWETests, patch: str) -> set[str]:
    """Returns the paths that are reset to the base commit before the tests come: test files, and the patch's
    runner hooks."""
    hooks = {path for path in touched_paths(patch) if PurePosixPath(path).name in RUNNER_HOOKS}
    return (
        set(grading.test_files) | touched_paths(grading.test_patch) | (hooks - touched_paths(task.gold_patch))
    )


def _refuted(grade: Grade, cause: str, what: str) -> Grade:
    verdict = msgspec.structs.replace(grade.verdict, resolved=False)
    return msgspec.structs.replace(grade, verdict=verdict, cause=cause, detail=f"{cause}: {what}")


def _invalid(task: Task, what: str) -> InfrastructureError:
    return InfrastructureError(AbortCause.INVALID_REQUEST, f"task {task.task_id} {what}")


def _failed(task: Task, what: str) -> InfrastructureError:
    return InfrastructureError(AbortCause.GRADER_FAILED, f"task {task.task_id}: {what}")

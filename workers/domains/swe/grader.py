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

import asyncio
import time
from collections.abc import Mapping

import msgspec

from orchard.schemas.outcomes import PUBLISHED, AbortCause, Reward
from orchard.schemas.protection import Protected
from orchard.schemas.tasks import SWETests, Task
from orchard.workers.domains.swe.checkout import Applied, RepositoryCheckout
from orchard.workers.domains.swe.logs.parsers import PARSERS
from orchard.workers.domains.swe.patch_policy import PatchRejected, permitted
from orchard.workers.domains.swe.preparing import TaskRepository
from orchard.workers.domains.swe.sheets.answering import answered_run, otherwise_than_gold
from orchard.workers.domains.swe.sheets.fresh import by_rote
from orchard.workers.domains.swe.sheets.obtaining import sheet_of
from orchard.workers.domains.swe.sheets.sheet import Sheet
from orchard.workers.domains.swe.testing import TestRun, run_tests
from orchard.workers.domains.swe.verdict import DOUBTFUL, SWEVerdict, judge, judged
from orchard.workers.episode.diffs import is_diff
from orchard.workers.episode.machine import Machine
from orchard.workers.failures import InfrastructureError, LimitExceeded
from orchard.workers.graders.judgement import Judgement

NAME = "swe-tests"

REFUSED, UNPROVEN, FORGED = "refused", "unproven", "forged"
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
    grader = _Grader(grading, judgement)
    grade = await grader.grade()
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
        protected=Protected.INSIDE if grader.sheet is None else grader.sheet.label,
    )


class _Grader:
    def __init__(self, grading: SWETests, judgement: Judgement) -> None:
        self._task = judgement.task
        self._grading = grading
        self._submission = judgement.submission
        self._machine = judgement.machine
        self._pristine = judgement.pristine
        deadline = time.monotonic() + judgement.timeout
        self._repository = TaskRepository(
            judgement.task, grading, judgement.pristine, deadline, published=judgement.published
        )
        self._published = judgement.published
        self._judgement = judgement
        self.sheet: Sheet | None = None

    async def grade(self) -> Grade:
        submission, machine = self._submission, self._machine
        if not (self._judgement.plain or self._published):
            given = self._judgement
            self.sheet = await sheet_of(
                given.task, given.pristine, given.blobs, given.controls, given.timeout
            )
        checkout = await self._repository.begin(machine)
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
                checkout = await self._repository.begin(another)
                await self._apply(submission, checkout)
                run = await self._test(submission, another, checkout)
        if run is None or not run.conclusive:
            return await self._inconclusive(nothing, run)
        grade = Grade(verdict=self._judged(run), detail=detail, log=run.log)
        if run.out_of_memory and not grade.verdict.resolved:
            return await self._inconclusive(nothing, run)
        if not grade.verdict.resolved or self._judgement.plain or self._published:
            return grade
        if self._questions is not None:
            grade = _unproven(grade, otherwise_than_gold(self._questions, run.statuses))
            return _forged(grade, await asyncio.to_thread(by_rote, self._questions, run.told))
        return await self._as_gold(grade)

    @property
    def _questions(self) -> Sheet | None:
        """The task's sheet, if it asks anything."""
        return self.sheet if self.sheet is not None and self.sheet.tests else None

    async def _apply(self, submission: str, checkout: RepositoryCheckout) -> Applied | PatchRejected:
        """Applies a submission as git reads it; outside of published rules, only the permitted part. One that
        takes more memory or disk than there is does not apply: its repository alone has been read before."""
        try:
            return await self._permitted(submission, checkout)
        except LimitExceeded as error:
            return Applied(by=None, log=f"{error.detail}\n")

    async def _permitted(self, submission: str, checkout: RepositoryCheckout) -> Applied | PatchRejected:
        if self._published:
            return await checkout.apply(submission, self._repository.ladder)
        staged = await checkout.stage(submission)
        if isinstance(staged, Applied):
            return staged
        allowed = permitted(staged.changes, self._task.gold_patch, staged.base, self._repository.restored(""))
        if isinstance(allowed, PatchRejected):
            return allowed
        if not await checkout.put(allowed.changes):
            return Applied(by=None, log="its files cannot be written\n")
        return Applied(by=staged.by, log="")

    async def _test(self, patch: str, machine: Machine, checkout: RepositoryCheckout) -> TestRun | None:
        """Runs the task's question sheet, or its tests where it has none; None if they cannot be brought."""
        sheet = self._questions
        if not await self._repository.bring_tests(checkout, patch, sheet):
            return None
        run = await run_tests(
            self._task, self._grading, machine, checkout, trusted=self._published, sheet=sheet is not None
        )
        return run if sheet is None else await asyncio.to_thread(answered_run, sheet, run)

    def _judged(self, run: TestRun) -> SWEVerdict:
        return judged(self._grading, run.statuses)

    async def _inconclusive(self, nothing: SWEVerdict, run: TestRun | None) -> Grade:
        """Runs the control that decides why the tests gave no result; see the module's docstring."""
        async with self._pristine() as machine:
            control = await self._test(
                self._task.gold_patch, machine, await self._repository.with_gold(machine)
            )
        if control is None:
            raise self._repository.failed("the test patch does not apply")
        if not control.conclusive:
            if control.ended_by is not None:
                raise control.ended_by
            if control.out_of_memory:
                what = f"task {self._task.task_id}: the tests need more memory, whatever is applied"
                raise InfrastructureError(AbortCause.SANDBOX_OUT_OF_MEMORY, what)
            if control.cut:
                raise self._repository.failed("the tests print more than is kept: raise sandbox.output_limit")
            said = control.log.strip()[-300:]
            raise self._repository.failed(f"the tests give no result, whatever is applied: {said}")
        if (
            run is not None
            and run.out_of_memory
            and control.out_of_memory
            and not self._judged(control).resolved
        ):
            what = f"task {self._task.task_id}: the tests need more memory, with the known solution too"
            raise InfrastructureError(AbortCause.SANDBOX_OUT_OF_MEMORY, what)
        if run is None:
            detail = "the patch leaves files where the test patch cannot be applied"
            return Grade(verdict=nothing, detail=detail, extra_sandboxes=1)
        verdict = msgspec.structs.replace(self._judged(run), resolved=False)
        blame = "never end" if run.exit_code is None else f"give no result (exit code {run.exit_code})"
        if run.cut:
            blame = "print more than is kept"
        if run.out_of_memory:
            blame = "run out of memory"
        if run.ended_by is not None:
            blame = f"end their sandbox ({run.ended_by.detail})"
        detail = f"with this patch the tests {blame}, without it they run"
        return Grade(verdict=verdict, detail=detail, log=run.log, extra_sandboxes=1)

    async def _as_gold(self, grade: Grade) -> Grade:
        """Confirms a +1 that no sheet judged: a skipped or an expected failure counts only where the gold
        patch has it too. Takes one more sandbox."""
        doubtful = {test for test, status in grade.verdict.tests.items() if status in DOUBTFUL}
        if not doubtful or not self._task.gold_patch.strip():
            return grade
        async with self._repository.prepared(gold=True) as (machine, checkout):
            control = await run_tests(self._task, self._grading, machine, checkout)
        as_gold = self._judged(control).tests
        return _unproven(grade, {test for test in doubtful if as_gold[test] != grade.verdict.tests[test]}, 1)


def _unproven(grade: Grade, tests: set[str], sandboxes: int = 0) -> Grade:
    """Refuses a +1 by tests that do not pass as with the gold patch."""
    grade = msgspec.structs.replace(grade, extra_sandboxes=sandboxes)
    if not tests:
        return grade
    return msgspec.structs.replace(
        grade,
        verdict=msgspec.structs.replace(grade.verdict, resolved=False),
        cause=UNPROVEN,
        detail=f"{UNPROVEN}: passes otherwise than the gold patch: {', '.join(sorted(tests))}",
    )


def _forged(grade: Grade, wrong: Mapping[str, str]) -> Grade:
    """Refuses a +1 by functions whose tests pass for their own inputs alone."""
    if not wrong or not grade.verdict.resolved:
        return grade
    said = [f"{name}: {why}\n" for name, why in sorted(wrong.items())]
    return msgspec.structs.replace(
        grade,
        verdict=msgspec.structs.replace(grade.verdict, resolved=False),
        cause=FORGED,
        detail=f"{FORGED}: right for the tests' own inputs alone: {', '.join(sorted(wrong))}",
        log=f"{grade.log}\n== fresh inputs ==\n{''.join(said)}",
    )


def _invalid(task: Task, what: str) -> InfrastructureError:
    return InfrastructureError(AbortCause.INVALID_REQUEST, f"task {task.task_id} {what}")

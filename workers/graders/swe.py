"""Grading by a repository's own tests, in a fresh sandbox with only the submitted patch applied.

**When is a run without a result the model's doing, and when ours?** A test command may end without a
parsed result because the patch breaks the interpreter or the test runner's start, because it hangs, or
because the environment is broken. The log alone cannot tell. So an inconclusive run (`verdict.conclusive`)
is followed by a control run in a sandbox of its own, with the gold patch (with none where the task has
none): if the control is conclusive, the submitted patch is to blame and the task is
unresolved; if it is not, nothing was learned about the submission and GRADER_FAILED is raised. A test patch
that cannot be applied after the submitted one is decided in the same way.
"""

import asyncio
import re
import secrets
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import PurePosixPath

import msgspec

from orchard.schemas.outcomes import AbortCause, Reward
from orchard.schemas.tasks import SWETests, Task
from orchard.storage.blobs import BlobStore
from orchard.storage.errors import StorageError
from orchard.workers.failures import InfrastructureError
from orchard.workers.graders.diffs import is_diff, touched_paths
from orchard.workers.graders.parsers import PARSERS, parse, without_timing
from orchard.workers.graders.patches import Checkout
from orchard.workers.graders.verdict import Verdict, conclusive, judge
from orchard.workers.machine import Machine
from orchard.workers.masking import masked
from orchard.workers.preparation import prepare

NAME = "swe-tests"

Pristine = Callable[[], AbstractAsyncContextManager[Machine]]
"""Opens another fresh machine of the task's image."""

RUNNER_HOOKS = frozenset({"conftest.py", "pytest.ini", "sitecustomize.py", "usercustomize.py"})
"""Files that decide what the test runner does: undone in a submission, unless the gold patch has them."""

RUN_SHARE = 0.45
"""Of the time left, that one test run may take: a control run must still fit."""


class TestRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run of the test command."""

    __test__ = False

    statuses: dict[str, str]
    exit_code: int | None
    """None when the command was stopped for time or never reached its end."""
    log: str

    @property
    def conclusive(self) -> bool:
        return conclusive(self.statuses, self.exit_code)


async def grade_swe(
    task: Task,
    grading: SWETests,
    submission: str,
    machine: Machine,
    *,
    timeout: float,
    blobs: BlobStore,
    pristine: Pristine,
) -> Reward:
    """+1 when the submission resolves the task, -1 when not; see `grade` for what is raised."""
    if grading.parser not in PARSERS:
        raise _invalid(task, f"names the log parser {grading.parser!r}: there is {', '.join(PARSERS)}")
    if not grading.fail_to_pass:
        raise _invalid(task, "names no test that the solution must make pass")
    started = time.monotonic()
    checkout = Checkout(machine, task, started + timeout)
    await prepare(task, machine, timeout)
    await checkout.begin()
    verdict, detail, log = await _grade(task, grading, submission, machine, checkout, pristine)
    try:
        reference = await asyncio.to_thread(
            blobs.put, masked(log).text.encode(errors="replace"), "text/plain; charset=utf-8"
        )
    except StorageError as error:
        raise InfrastructureError(AbortCause.STORE_FAILED, str(error)) from error
    return Reward(
        value=1.0 if verdict.resolved else -1.0,
        resolved=verdict.resolved,
        grader=NAME,
        parts={"fail_to_pass": verdict.fail_to_pass, "pass_to_pass": verdict.pass_to_pass},
        tests=verdict.tests,
        detail=detail,
        log=reference,
        seconds=time.monotonic() - started,
    )


async def _grade(
    task: Task,
    grading: SWETests,
    submission: str,
    machine: Machine,
    checkout: Checkout,
    pristine: Pristine,
) -> tuple[Verdict, str, str]:
    """The verdict, a sentence for people, and the log."""
    nothing = judge({}, grading.fail_to_pass, grading.pass_to_pass)
    log, detail = "", "no patch was submitted"
    if submission.strip():
        if not is_diff(submission):
            return nothing, "the submission is not a diff", submission
        applied = await checkout.apply(submission)
        log = applied.log
        if applied.by is None:
            return nothing, "the patch does not apply", log
        detail = f"applied by {applied.by}"
    run = await _test(task, grading, submission, machine, checkout)
    if run is not None and run.conclusive:
        return _judged(grading, run), detail, log + run.log
    control = await _control(task, grading, checkout, pristine)
    if control is None:
        raise _failed(task, "the test patch does not apply")
    if not control.conclusive:
        raise _failed(task, f"the tests give no result, whatever is applied: {control.log.strip()[-300:]}")
    if run is None:
        return nothing, "the patch leaves files where the test patch cannot be applied", log
    verdict = msgspec.structs.replace(_judged(grading, run), resolved=False)
    blame = "never end" if run.exit_code is None else f"give no result (exit code {run.exit_code})"
    return verdict, f"with this patch the tests {blame}, without it they run", log + run.log


async def _control(task: Task, grading: SWETests, checkout: Checkout, pristine: Pristine) -> TestRun | None:
    """The tests with the gold patch, in a machine that the submission has never been in."""
    async with pristine() as machine:
        fresh = Checkout(machine, task, checkout.deadline)
        await prepare(task, machine, fresh.seconds_left)
        await fresh.begin()
        if task.gold_patch and (await fresh.apply(task.gold_patch)).by is None:
            raise _failed(task, "the gold patch does not apply")
        return await _test(task, grading, task.gold_patch, machine, fresh)


def _judged(grading: SWETests, run: TestRun) -> Verdict:
    statuses = run.statuses
    must, keep = grading.fail_to_pass, grading.pass_to_pass
    if grading.strip_timing:
        statuses = {without_timing(test): status for test, status in statuses.items()}
        must, keep = tuple(map(without_timing, must)), tuple(map(without_timing, keep))
    return judge(statuses, must, keep)


async def _test(
    task: Task, grading: SWETests, patch: str, machine: Machine, checkout: Checkout
) -> TestRun | None:
    """Bring the tests and run them; None when they cannot be brought into the repository as it is."""
    brought = await checkout.restore(paths_to_restore(task, grading, patch))
    if brought and grading.test_patch.strip():
        brought = (await checkout.apply(grading.test_patch)).by is not None
    if not brought:
        return None
    marker = f"orchard-{secrets.token_hex(12)}"
    path = f"{checkout.scratch}/tests.sh"
    await machine.write(path, test_script(grading, marker).encode())
    limit = min(grading.timeout_seconds, checkout.seconds_left * RUN_SHARE)
    outcome = await machine.run(f". {path}", timeout=limit, cwd=task.workdir, env=task.environment)
    log, exit_code = between_markers(outcome.output, marker)
    return TestRun(
        statuses=parse(grading.parser, log),
        exit_code=None if outcome.timed_out else exit_code,
        log=log,
    )


def paths_to_restore(task: Task, grading: SWETests, patch: str) -> set[str]:
    """What is put back to the base commit before the tests come: test files, and the patch's runner hooks."""
    hooks = {path for path in touched_paths(patch) if PurePosixPath(path).name in RUNNER_HOOKS}
    return (
        set(grading.test_files) | touched_paths(grading.test_patch) | (hooks - touched_paths(task.gold_patch))
    )


def test_script(grading: SWETests, marker: str) -> str:
    """The shell script of one run. The marker is new each time, so that no log holds it by chance; code that
    sets out to deceive can find it (docs/threat-model.md, forged-test-output)."""
    return "\n".join(
        [
            *grading.pre_commands,
            f"echo; echo '{marker} start'",
            "(",
            grading.test_command,
            ")",
            "code=$?",
            f'echo; echo "{marker} end $code"',
            "",
        ]
    )


def between_markers(output: str, marker: str) -> tuple[str, int | None]:
    """What the test command printed, and its exit code; all there is and None where it did not end."""
    _, found, rest = output.partition(f"\n{marker} start\n")
    if not found:
        return output, None
    log, _, end = rest.rpartition(f"\n{marker} end ")
    code = re.match(r"\d+", end)
    return (log, int(code[0])) if code else (rest, None)


def _invalid(task: Task, what: str) -> InfrastructureError:
    return InfrastructureError(AbortCause.INVALID_REQUEST, f"task {task.task_id} {what}")


def _failed(task: Task, what: str) -> InfrastructureError:
    return InfrastructureError(AbortCause.GRADER_FAILED, f"task {task.task_id}: {what}")

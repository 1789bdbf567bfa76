"""Prepares a task's repository in fresh machines: at the base commit or with the gold patch."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import PurePosixPath

from orchard.schemas.outcomes import AbortCause
from orchard.schemas.tasks import SWETests, Task
from orchard.workers.domains.swe.checkout import LADDER, PUBLISHED_LADDER, RepositoryCheckout
from orchard.workers.domains.swe.sheets.sheet import Sheet
from orchard.workers.episode.diffs import touched_paths
from orchard.workers.episode.machine import Machine
from orchard.workers.episode.preparation import prepare
from orchard.workers.failures import InfrastructureError
from orchard.workers.graders.judgement import Pristine

RUNNER_HOOKS = frozenset({"conftest.py", "pytest.ini", "sitecustomize.py", "usercustomize.py"})
"""Files that control the test runner. An evaluation restores them, unless the gold patch changes them."""


class TaskRepository:
    """One task's repository, in as many machines as are needed. Raises InfrastructureError."""

    def __init__(
        self, task: Task, grading: SWETests, pristine: Pristine, deadline: float, *, published: bool = False
    ) -> None:
        """`deadline` is on the clock of time.monotonic()."""
        self._task = task
        self._grading = grading
        self._pristine = pristine
        self._deadline = deadline
        self._published = published
        self.ladder = PUBLISHED_LADDER if published else LADDER

    async def begin(self, machine: Machine) -> RepositoryCheckout:
        checkout = RepositoryCheckout(machine, self._task, self._deadline)
        await prepare(self._task, machine, checkout.seconds_left)
        await checkout.begin()
        return checkout

    async def with_gold(self, machine: Machine) -> RepositoryCheckout:
        """Applies the gold patch in a machine that never held the submission."""
        checkout = await self.begin(machine)
        if self._task.gold_patch and (await checkout.apply(self._task.gold_patch, self.ladder)).by is None:
            raise self.failed("the gold patch does not apply")
        return checkout

    def restored(self, patch: str) -> set[str]:
        return paths_to_restore(self._task, self._grading, patch if self._published else "")

    async def bring_tests(self, checkout: RepositoryCheckout, patch: str, sheet: Sheet | None) -> bool:
        """Brings the task's tests in, or its question sheet, and nothing else that tells of them; False if
        they cannot be applied to the repository. `patch` is what was applied before."""
        if not await checkout.restore(self.restored(patch) | set(sheet.paths if sheet else ())):
            return False
        tests = sheet.patch.decode(errors="surrogateescape") if sheet else self._grading.test_patch
        if tests.strip() and (await checkout.apply(tests, self.ladder)).by is None:
            return False
        await checkout.forget_patches()
        return True

    @asynccontextmanager
    async def prepared(self, *, gold: bool) -> AsyncIterator[tuple[Machine, RepositoryCheckout]]:
        """Opens a machine with the task's own tests, and perhaps the gold patch."""
        async with self._pristine() as machine:
            checkout = await (self.with_gold(machine) if gold else self.begin(machine))
            if not await self.bring_tests(checkout, self._task.gold_patch if gold else "", None):
                raise self.failed("the test patch does not apply")
            yield machine, checkout

    def failed(self, what: str) -> InfrastructureError:
        return InfrastructureError(AbortCause.GRADER_FAILED, f"task {self._task.task_id}: {what}")


def paths_to_restore(task: Task, grading: SWETests, patch: str) -> set[str]:
    """Returns the paths that are reset to the base commit before the tests come: test files, and the patch's
    runner hooks."""
    hooks = {path for path in touched_paths(patch) if PurePosixPath(path).name in RUNNER_HOOKS}
    return (
        set(grading.test_files) | touched_paths(grading.test_patch) | (hooks - touched_paths(task.gold_patch))
    )

"""Proving tasks: the gold patch must resolve a task and the empty patch must not, each time it is tried."""

import itertools
import time
from collections.abc import AsyncIterator, Callable, Iterable
from functools import partial

import msgspec

from orchard.injector.client import AsyncSandboxClient
from orchard.pipelines.tasks.errors import TaskError
from orchard.pipelines.tasks.impossible import variants
from orchard.pipelines.tasks.proof import Proven, prove
from orchard.pipelines.tasks.workshop import as_ready, open_sandbox
from orchard.schemas.events import TaskRejected, TaskValidated
from orchard.schemas.outcomes import AbortCause, Reward
from orchard.schemas.tasks import SWETests, Task, task_hash
from orchard.storage.blobs import BlobStore
from orchard.workers.failures import InfrastructureError
from orchard.workers.graders import grade

UNFIT = {
    AbortCause.IMAGE_MISSING: "image_missing",
    AbortCause.GRADER_FAILED: "no_verdict",
    AbortCause.INVALID_REQUEST: "invalid",
    AbortCause.SANDBOX_OUT_OF_MEMORY: "out_of_memory",
}
"""Failures that a task causes itself, and the reason it is rejected for; any other is raised."""


MOST_VARIANTS = 8
"""Of a task, tried until one is impossible."""


class ValidationSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How tasks are proven (configuration section `[validation]`)."""

    runs: int = 3
    """Gradings of the gold patch and as many of the empty one."""
    concurrency: int = 3
    """Tasks at once."""
    creation_seconds: float = 120.0
    grading_seconds: float = 1800.0


class Validation(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict on a task."""

    original: Task
    task: Task
    """The proven task: the original, or what is left of it without unsteady tests."""
    event: TaskValidated | TaskRejected
    dropped: dict[str, str] = {}
    """Dropped test to why."""


class Validator:
    """Grades tasks in fresh sandboxes, exactly as a worker grades a rollout."""

    def __init__(
        self, client: AsyncSandboxClient, blobs: BlobStore, settings: ValidationSettings | None = None
    ) -> None:
        self.settings = settings or ValidationSettings()
        self._client = client
        self._blobs = blobs

    def many(
        self, tasks: Iterable[Task], *, started: Callable[[Task], None] = lambda _: None
    ) -> AsyncIterator[Validation]:
        """The validation of each task as it is ready; raises what `validate` raises."""
        return as_ready(tasks, self.validate, concurrency=self.settings.concurrency, started=started)

    async def validate(self, task: Task) -> Validation:
        """Prove or reject one task.

        Raises InfrastructureError when the machine, and not the task, is to blame, and TaskError for a task
        that is not graded by tests.
        """
        grading = task.grading
        if not isinstance(grading, SWETests):
            raise TaskError(f"task {task.task_id} is not graded by tests, so a gold patch cannot prove it")
        started = time.monotonic()
        if not task.gold_patch.strip():
            return _rejected(task, "no_gold_patch", "without a known solution nothing can be proven")
        gold: list[Reward] = []
        empty: list[Reward] = []
        try:
            for number in range(self.settings.runs):
                gold.append(await self._grade(task, task.gold_patch, copies=number == 0))
                empty.append(await self._grade(task, ""))
        except InfrastructureError as error:
            if error.cause not in UNFIT:
                raise
            return _rejected(task, UNFIT[error.cause], error.detail)
        verdict = prove(task, grading, gold, empty)
        if not isinstance(verdict, Proven):
            return _rejected(task, verdict.reason, verdict.detail)
        return Validation(
            original=task,
            task=verdict.task,
            dropped=verdict.dropped,
            event=TaskValidated(
                task_id=task.task_id,
                task_hash=task_hash(verdict.task),
                runs=self.settings.runs,
                seconds=time.monotonic() - started,
                without_canary=gold[0].without_canary,
            ),
        )

    async def impossible(self, task: Task) -> Validation | None:
        """The first variant of a task whose tests run, and fail with the task's own gold patch in what a
        solution must make pass; None where there is none. Raises as `validate`."""
        started = time.monotonic()
        for variant in itertools.islice(variants(task), MOST_VARIANTS):
            assert isinstance(variant.grading, SWETests)
            try:
                reward = await self._grade(variant, task.gold_patch)
            except InfrastructureError as error:
                if error.cause not in UNFIT:
                    raise
                continue
            failing = {reward.tests.get(test) for test in variant.grading.fail_to_pass} & {"FAILED"}
            if reward.resolved or not failing:
                continue
            event = TaskValidated(
                task_id=variant.task_id,
                task_hash=task_hash(variant),
                runs=1,
                seconds=time.monotonic() - started,
            )
            return Validation(original=variant, task=variant, event=event)
        return None

    async def _grade(self, task: Task, submission: str, *, copies: bool = True) -> Reward:
        fresh = partial(
            open_sandbox,
            self._client,
            task.image,
            purpose="validation",
            cpu=task.cpu,
            memory=task.memory,
            timeout=self.settings.creation_seconds,
        )
        async with fresh() as machine:
            return await grade(
                task,
                submission,
                machine,
                timeout=self.settings.grading_seconds,
                blobs=self._blobs,
                pristine=fresh,
                copies=copies,
            )


def _rejected(task: Task, reason: str, detail: str) -> Validation:
    return Validation(
        original=task,
        task=task,
        event=TaskRejected(task_id=task.task_id, task_hash=task_hash(task), reason=reason, detail=detail),
    )

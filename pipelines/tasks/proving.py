"""The means of a proof: fresh sandboxes, gradings like a worker's, and the verdict over repeated ones."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Protocol

import msgspec

from orchard.injector.client import AsyncSandboxClient
from orchard.pipelines.tasks.sandboxes import copy_sandbox, open_sandbox
from orchard.schemas.campaigns import Budget, Timeouts
from orchard.schemas.outcomes import AbortCause, Reward
from orchard.schemas.protection import UNLABELLED, Protected
from orchard.schemas.tasks import (
    CheckPlace,
    StageChecks,
    Task,
    TaskService,
    TaskStage,
    checked_in,
    graded_in_place,
)
from orchard.storage.blobs import BlobStore
from orchard.workers.episode.budgets import as_published
from orchard.workers.episode.machine import Machine
from orchard.workers.episode.networks import asked
from orchard.workers.episode.preparation import Course, prepare, solve
from orchard.workers.episode.sandboxes import SandboxMachine
from orchard.workers.episode.services import beside
from orchard.workers.failures import InfrastructureError
from orchard.workers.graders import grade
from orchard.workers.graders.endings import Controls
from orchard.workers.graders.judgement import Copied
from orchard.workers.graders.stages import combined, through_stages


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
    protected: Protected = UNLABELLED
    """Label of the task, `protected_tests` and `protected_why`, as in TaskValidated."""
    protected_tests: dict[str, Protected] = {}
    protected_why: str = ""


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


UNFIT = {
    AbortCause.IMAGE_MISSING: "image_missing",
    AbortCause.GRADER_FAILED: "no_verdict",
    AbortCause.TASK_BROKEN: "task_broken",
    AbortCause.INVALID_REQUEST: "invalid",
    AbortCause.SANDBOX_OUT_OF_MEMORY: "out_of_memory",
}
"""Failures that a task causes itself, and the reason it is rejected for; any other is raised."""

_LOG_END = 300
"""Characters of a check's log that a verdict shows."""


class ValidationSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    runs: int = 3
    """Gradings of the known solution, and as many of nothing."""
    creation_seconds: float = 120.0
    grading_seconds: float = 1800.0


class ProofContext:
    """Sandboxes and gradings for proofs. With `play`, a prover acts a task out where it could do without."""

    def __init__(
        self,
        client: AsyncSandboxClient,
        blobs: BlobStore,
        settings: ValidationSettings,
        *,
        play: bool = False,
    ) -> None:
        self.settings = settings
        self.blobs = blobs
        self.play = play
        self._client = client
        self.controls = Controls()

    @asynccontextmanager
    async def fresh(self, task: Task, other: Task | None = None, /) -> AsyncIterator[SandboxMachine]:
        """A sandbox of the image of the task, or of the other one, with the services beside it. Raises
        InfrastructureError."""
        task = other or task

        def service(each: TaskService) -> AbstractAsyncContextManager[Machine]:
            return self._sandbox(msgspec.structs.replace(task, image=each.image))

        async with self._sandbox(task) as machine, beside(task, machine, service):
            yield machine

    def _sandbox(self, task: Task) -> AbstractAsyncContextManager[SandboxMachine]:
        return open_sandbox(
            self._client,
            task.image,
            purpose="validation",
            cpu=task.cpu,
            memory=task.memory,
            timeout=self._timeouts(task).creation,
            network=asked(task),
        )

    async def by_runs(
        self, task: Task, judge: Callable[[Task, Sequence[Reward], Sequence[Reward]], Verdict]
    ) -> Verdict:
        """Grade the known solution, if there is one, and nothing, `settings.runs` times each, and judge both.
        Raises InfrastructureError."""
        gold: list[Reward] = []
        empty: list[Reward] = []
        solution = task.gold_patch if task.gold_patch.strip() else ""
        for _ in range(self.settings.runs):
            if solution:
                gold.append(await self.grade(task, solution, plain=True))
            empty.append(await self.grade(task, "", plain=True))
        verdict = judge(task, gold, empty)
        if isinstance(verdict, Refuted):
            end = self._log_end(gold[0]) if verdict.reason == "gold_does_not_resolve" else ""
            return msgspec.structs.replace(verdict, detail=verdict.detail + end)
        return msgspec.structs.replace(verdict, runs=self.settings.runs)

    async def grade(self, task: Task, submission: str, *, plain: bool = False) -> Reward:
        """The reward of a submission in a fresh sandbox; with `plain`, tests run as they are, without a
        question sheet. Raises InfrastructureError."""
        async with self.fresh(task) as machine:
            if isinstance(task.grading, StageChecks):
                return await self._through_stages(task, task.grading, submission, machine)
            if graded_in_place(task.grading):
                await self._solve(task, submission, machine)
                submission = ""
            return await self._graded(task, submission, machine, plain=plain)

    async def _graded(
        self,
        task: Task,
        submission: str,
        machine: Machine,
        *,
        plain: bool = False,
        stage: Course | None = None,
        copied: Copied | None = None,
    ) -> Reward:
        return await grade(
            task,
            submission,
            machine,
            timeout=self._timeouts(task).grading,
            blobs=self.blobs,
            pristine=partial(self.fresh, task),
            plain=plain,
            controls=self.controls,
            stage=stage,
            copied=copied,
        )

    async def _through_stages(
        self, task: Task, grading: StageChecks, solution: str, machine: SandboxMachine
    ) -> Reward:
        """The reward of the stages' own solutions, or of nothing without a `solution`, which is theirs."""
        limits = self._timeouts(task)
        await prepare(task, machine, self.settings.grading_seconds)

        async def act(alone: Task, _: TaskStage) -> None:
            if solution and alone.gold_patch:
                await solve(alone, machine, limits.grading)

        async def graded(alone: Task, course: Course, goes_on: bool) -> Reward:
            copied = partial(
                copy_sandbox,
                self._client,
                machine,
                purpose="validation",
                memory=task.memory,
                timeout=limits.creation,
            )
            return await self._graded(alone, "", machine, stage=course, copied=copied if goes_on else None)

        fresh = partial(self.fresh, task)
        rewards = await through_stages(
            task, grading, machine, act, graded, pristine=fresh, timeout=limits.grading
        )
        return combined(grading, rewards, self.blobs)

    async def _solve(self, task: Task, solution: str, machine: Machine) -> None:
        """Act in the sandbox as an agent would: run the solution, a shell script."""
        await prepare(task, machine, self.settings.grading_seconds)
        if solution:
            await solve(task, machine, self._timeouts(task).grading)

    def _timeouts(self, task: Task) -> Timeouts:
        given = Timeouts(creation=self.settings.creation_seconds, grading=self.settings.grading_seconds)
        return as_published(task, Budget(), given)[1]

    def _log_end(self, reward: Reward) -> str:
        """The end of a check's log, where its verdict is one word; tests are named one by one instead."""
        if reward.tests or reward.log is None:
            return ""
        return ": " + self.blobs.get(reward.log).decode(errors="replace").strip()[-_LOG_END:]


class Prover(Protocol):
    """Proves the tasks of one kind."""

    async def __call__(self, task: Task, context: ProofContext) -> Verdict:
        """Reach the verdict on a task. Raises InfrastructureError: of a cause in UNFIT, the task is
        rejected for it."""


class Contradiction(Protocol):
    """Makes impossible variants of the tasks of one kind."""

    async def __call__(self, task: Task, context: ProofContext) -> Task | None:
        """The first variant of a task that is shown to be impossible; None where there is none. Raises
        InfrastructureError, but none of a cause in UNFIT."""


async def prove_whole(task: Task, context: ProofContext) -> Verdict:
    """The prover of tasks that are judged as a whole, by a check or a plug-in."""
    verdict = await _judged(task, context)
    if isinstance(verdict, Refuted):
        return verdict
    why = "a check, which may execute what the agent left, or a plug-in reaches the verdict"
    return msgspec.structs.replace(verdict, protected_why=why)


async def _judged(task: Task, context: ProofContext) -> Verdict:
    if checked_in(task.grading, "agent") == task.grading:  # there is no choice
        return await context.by_runs(task, judge_whole)
    if not task.gold_patch.strip():
        verdict = await context.by_runs(task, judge_whole)
        return _noted(verdict, "its check runs in the agent's sandbox")
    return await _in_safest_place(task, context)


async def _in_safest_place(task: Task, context: ProofContext) -> Verdict:
    """The verdict on a task with a known solution, with the check in the safest sandbox in which that
    passes."""
    why: list[str] = []
    places: tuple[CheckPlace, ...] = ("fresh", "stopped")
    for place in places:
        placed = msgspec.structs.replace(task, grading=checked_in(task.grading, place))
        try:
            verdict = await context.by_runs(placed, judge_whole)
        except InfrastructureError as error:
            if error.cause not in UNFIT:
                raise
            verdict = Refuted(reason=UNFIT[error.cause], detail=error.detail)
        if isinstance(verdict, Proven):
            return _noted(verdict, f"not proven {'; '.join(why)}" if why else "")
        why.append(f"with check_in = {place}: {verdict.detail[:_LOG_END]}")
    return _noted(
        await context.by_runs(task, judge_whole),
        f"its check runs in the agent's sandbox, beside its processes: not proven {'; '.join(why)}",
    )


def _noted(verdict: Verdict, note: str) -> Verdict:
    """The verdict with another sentence, where it is good."""
    if isinstance(verdict, Refuted) or not note:
        return verdict
    return msgspec.structs.replace(verdict, detail="; ".join(filter(None, (verdict.detail, note))))

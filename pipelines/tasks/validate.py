"""Proving tasks: the known solution must resolve a task and nothing at all must not, each time."""

import itertools
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, aclosing
from functools import partial

import msgspec

from orchard.injector.client import AsyncSandboxClient
from orchard.pipelines.domains.claw.drafts import Case, case_of
from orchard.pipelines.domains.claw.proof import Defect
from orchard.pipelines.domains.claw.proof import prove as bundles_proven
from orchard.pipelines.domains.gui.proof import by_playing, by_records, on_a_site
from orchard.pipelines.domains.swe.history import OVER, look
from orchard.pipelines.domains.swe.impossible import variants
from orchard.pipelines.domains.swe.other_releases import LIST, newer_releases
from orchard.pipelines.domains.swe.workshop import as_ready, open_sandbox
from orchard.pipelines.tasks.errors import TaskError
from orchard.pipelines.tasks.proof import Proven, prove
from orchard.schemas.campaigns import Budget, Timeouts
from orchard.schemas.claw import DOMAIN
from orchard.schemas.events import TaskRejected, TaskValidated
from orchard.schemas.outcomes import AbortCause, Reward
from orchard.schemas.tasks import SWETests, Task, graded_in_place, task_hash
from orchard.storage.blobs import BlobStore
from orchard.workers.episode.budgets import as_published
from orchard.workers.episode.machine import Machine
from orchard.workers.episode.networks import asked, refusal
from orchard.workers.episode.preparation import prepare, solve
from orchard.workers.episode.sandboxes import SandboxMachine
from orchard.workers.episode.settings import TaskNetwork
from orchard.workers.failures import InfrastructureError
from orchard.workers.graders import grade
from orchard.workers.graders.controls import Controls

UNFIT = {
    AbortCause.IMAGE_MISSING: "image_missing",
    AbortCause.GRADER_FAILED: "no_verdict",
    AbortCause.TASK_BROKEN: "task_broken",
    AbortCause.INVALID_REQUEST: "invalid",
    AbortCause.SANDBOX_OUT_OF_MEMORY: "out_of_memory",
}
"""Failures that a task causes itself, and the reason it is rejected for; any other is raised."""

LEFT = frozenset({AbortCause.IMAGE_UNAVAILABLE, AbortCause.SANDBOX_REFUSED})
"""Failures that say nothing of a task, and need not concern the others: it stays unproven."""

FOUND = "/tmp/orchard-found"
"""Where the look for solutions in reach writes what it finds."""

REACH_SHOWN = 1000
"""Characters of what is in reach, in a verdict."""

MOST_VARIANTS = 8
"""Of a task, tried until one is impossible."""


class ValidationSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How tasks are proven (configuration section `[validation]`)."""

    runs: int = 3
    """Gradings of the known solution, and as many of nothing."""
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


def provable(task: Task) -> bool:
    """Whether a verdict can be reached without a rollout: of worlds beside the sandbox only services and
    generated sites are known here."""
    return task.world is msgspec.UNSET or task.world.kind == DOMAIN or on_a_site(task)


class Validator:
    """Grades tasks in fresh sandboxes, exactly as a worker grades a rollout. With `play`, tasks on generated
    sites are played in Chromium, too. `task_network` is what workers give tasks that ask for a network."""

    def __init__(
        self,
        client: AsyncSandboxClient,
        blobs: BlobStore,
        settings: ValidationSettings | None = None,
        *,
        play: bool = False,
        task_network: TaskNetwork = "never",
    ) -> None:
        self.settings = settings or ValidationSettings()
        self._task_network = task_network
        self._controls = Controls()
        self._play_sites = play
        self._client = client
        self._blobs = blobs

    async def many(
        self,
        tasks: Iterable[Task],
        *,
        started: Callable[[Task], None] = lambda _: None,
        left: Callable[[Task, InfrastructureError], None] | None = None,
    ) -> AsyncIterator[Validation]:
        """The validation of each task as it is ready. Raises what `validate` raises, unless it is LEFT and
        `left` can be told of it."""

        async def judged(task: Task) -> Validation | None:
            try:
                return await self.validate(task)
            except InfrastructureError as error:
                if left is None or error.cause not in LEFT:
                    raise
                left(task, error)
                return None

        ready = as_ready(tasks, judged, concurrency=self.settings.concurrency, started=started)
        async with aclosing(ready):
            async for verdict in ready:
                if verdict is not None:
                    yield verdict

    async def validate(self, task: Task) -> Validation:
        """Prove or reject one task, by the rule of its kind (`prove`).

        Raises InfrastructureError when the machine, and not the task, is to blame, and TaskError for a task
        that asks for a network where none is given: without it nothing is shown.
        """
        started = time.monotonic()
        if (why := refusal(task, self._task_network)) is not None:
            raise TaskError(why)
        solution = task.gold_patch if task.gold_patch.strip() else ""
        if on_a_site(task):
            return await self._on_its_site(task)
        if isinstance(task.grading, SWETests) and not solution:
            return _rejected(task, "no_gold_patch", "without a known solution nothing can be proven")
        try:
            case = case_of(task)
        except ValueError as error:
            return _rejected(task, UNFIT[AbortCause.INVALID_REQUEST], str(error))
        if case is not None:
            return await self._by_its_bundle(task, case)
        try:
            seen = await self._solutions_in_reach(task)
        except InfrastructureError as error:
            if error.cause not in UNFIT:
                raise
            return _rejected(task, UNFIT[error.cause], error.detail)
        if seen:
            return _rejected(task, "solution_in_reach", "; ".join(seen)[:REACH_SHOWN])
        gold: list[Reward] = []
        empty: list[Reward] = []
        try:
            for number in range(self.settings.runs):
                if solution:
                    gold.append(await self._grade(task, solution, copies=number == 0))
                empty.append(await self._grade(task, ""))
        except InfrastructureError as error:
            if error.cause not in UNFIT:
                raise
            return _rejected(task, UNFIT[error.cause], error.detail)
        verdict = prove(task, gold, empty)
        if not isinstance(verdict, Proven):
            said = self._last_words(gold[0]) if verdict.reason == "gold_does_not_resolve" else ""
            return _rejected(task, verdict.reason, verdict.detail + said)
        without_canary = gold[0].without_canary if gold else None
        return Validation(
            original=task,
            task=verdict.task,
            dropped=verdict.dropped,
            event=TaskValidated(
                task_id=task.task_id,
                task_hash=task_hash(verdict.task),
                runs=self.settings.runs,
                seconds=time.monotonic() - started,
                without_canary=without_canary,
                detail=verdict.detail,
            ),
        )

    async def _on_its_site(self, task: Task) -> Validation:
        """The verdict on a task on a generated site (`orchard.pipelines.domains.gui.proof`)."""
        event = by_records(task)
        if self._play_sites and isinstance(event, TaskValidated):
            async with self._fresh(task) as machine:
                event = await by_playing(task, machine, self._blobs)
        return Validation(original=task, task=task, event=event)

    async def _by_its_bundle(self, task: Task, case: Case) -> Validation:
        """The verdict on a task of services: nothing is run but its test scripts, over bundles that are made
        here (`orchard.pipelines.domains.claw.proof`)."""
        started = time.monotonic()
        try:
            for number in range(self.settings.runs):
                async with self._fresh(task) as machine:
                    await bundles_proven(case, machine, number)
        except Defect as defect:
            return _rejected(task, defect.check.value, defect.detail)
        except InfrastructureError as error:
            if error.cause not in UNFIT:
                raise
            return _rejected(task, UNFIT[error.cause], error.detail)
        return Validation(
            original=task,
            task=task,
            event=TaskValidated(
                task_id=task.task_id,
                task_hash=task_hash(task),
                runs=self.settings.runs,
                seconds=time.monotonic() - started,
                detail=None if case.solution else "no solution is known; doing nothing does not pass",
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

    async def _solutions_in_reach(self, task: Task) -> list[str]:
        """What an agent could read the solution of a repository's task from in a fresh sandbox."""
        if not isinstance(task.grading, SWETests):
            return []
        seconds = self.settings.grading_seconds
        async with self._fresh(task) as machine:
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

    def _fresh(self, task: Task) -> AbstractAsyncContextManager[SandboxMachine]:
        return open_sandbox(
            self._client,
            task.image,
            purpose="validation",
            cpu=task.cpu,
            memory=task.memory,
            timeout=self._timeouts(task).creation,
            network=asked(task),
        )

    def _timeouts(self, task: Task) -> Timeouts:
        given = Timeouts(creation=self.settings.creation_seconds, grading=self.settings.grading_seconds)
        return as_published(task, Budget(), given)[1]

    async def _grade(self, task: Task, submission: str, *, copies: bool = True) -> Reward:
        fresh = partial(self._fresh, task)
        async with fresh() as machine:
            if graded_in_place(task.grading):
                await self._play(task, submission, machine)
                submission = ""
            return await grade(
                task,
                submission,
                machine,
                timeout=self._timeouts(task).grading,
                blobs=self._blobs,
                pristine=fresh,
                copies=copies,
                controls=self._controls,
            )

    def _last_words(self, reward: Reward) -> str:
        """The end of the log of a check, which says in one word why; tests are named one by one instead."""
        if reward.tests or reward.log is None:
            return ""
        return ": " + self._blobs.get(reward.log).decode(errors="replace").strip()[-300:]

    async def _play(self, task: Task, solution: str, machine: Machine) -> None:
        """Be the agent whose sandbox is judged: run the solution, a shell script, and leave."""
        await prepare(task, machine, self.settings.grading_seconds)
        if solution:
            await solve(task, machine, self._timeouts(task).grading)


def _rejected(task: Task, reason: str, detail: str) -> Validation:
    return Validation(
        original=task,
        task=task,
        event=TaskRejected(task_id=task.task_id, task_hash=task_hash(task), reason=reason, detail=detail),
    )

"""One attempt at one rollout: sandbox, harness, grade. Each fact is published when it is known."""

import asyncio
import itertools
import time
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import msgspec

from orchard.schemas.blobs import INLINE_LIMIT, BlobRef
from orchard.schemas.campaigns import Budget, RolloutRequest
from orchard.schemas.events import Event, RolloutAborted, RolloutFinished, RolloutStarted, make_event
from orchard.schemas.messages import Role
from orchard.schemas.outcomes import AbortCause, ExitStatus, Reward, RolloutStatus
from orchard.schemas.tasks import StageChecks, Task, TaskStage, graded_in_place
from orchard.streams.records import StoredEvent
from orchard.workers.attempts.attempt_sandboxes import AttemptSandboxes, Beginning
from orchard.workers.attempts.dependencies import AttemptDependencies
from orchard.workers.attempts.grading import AttemptGrading, penalize_hacks
from orchard.workers.attempts.reopen import facts_of
from orchard.workers.attempts.replay import ReplayState
from orchard.workers.attempts.task_reading import read_task
from orchard.workers.episode.budgets import as_published, time_before_checks, within
from orchard.workers.episode.message_tree import MessageTree
from orchard.workers.episode.networks import refusal
from orchard.workers.episode.patches import state_left_behind
from orchard.workers.episode.preparation import Course
from orchard.workers.episode.replay_record import replay_key
from orchard.workers.episode.sandboxes import SandboxMachine
from orchard.workers.episode.stages import stage_budget
from orchard.workers.episode.worlds import WorldContext, open_world
from orchard.workers.failures import (
    EndedUnderCommand,
    EndpointRests,
    InfrastructureError,
    LimitExceeded,
    SandboxEvicted,
    storing,
)
from orchard.workers.graders.stages import combined, through_stages
from orchard.workers.harnesses import fingerprint, planned_harness, version_of
from orchard.workers.harnesses.interface import Episode, Harness, HarnessResult
from orchard.workers.harnesses.programs.runner import ProgramHarness
from orchard.workers.judges.ruling import Judges
from orchard.workers.llm.errors import OutOfTime
from orchard.workers.masking import masked

NOT_GRADED = "not-graded"
"""Names the grader in a reward that needed none."""


class SandboxLost(Exception):
    """The agent ended its own sandbox: an outcome, with nothing left to grade. The message says how."""


class Attempt:
    """Runs once. `run` returns the finished payload or raises InfrastructureError or NewerTask."""

    def __init__(
        self,
        dependencies: AttemptDependencies,
        request: RolloutRequest,
        *,
        number: int,
        deliveries: int,
        beginning: Beginning | None = None,
    ) -> None:
        self._beginning = beginning
        self._dependencies = dependencies
        self.request = request
        self.number = number
        self._deliveries = deliveries
        self._published = 0
        self._started_at = datetime.now(UTC)
        self._clock = time.monotonic()
        self._began = 0.0
        """When `run` began, by the event loop's time."""
        self._trace = MessageTree(self.publish, dependencies.blobs)
        self._replay: ReplayState | None = None
        self._harness = planned_harness(request.harness, request.harness_version)
        self._budget, self._timeouts = request.budget, request.timeouts
        """The request's limits, until the task's definition replaces them."""
        self._sandboxes = AttemptSandboxes(dependencies, request, number, self.publish)
        self._grading = AttemptGrading(
            dependencies,
            request,
            self._sandboxes.open,
            replayable=self._harness.replayable,
            judges=Judges(dependencies.models, dependencies.judge, self.publish),
        )

    @property
    def memory(self) -> str:
        """Memory of its sandboxes; empty before the task is known, unless the request says it."""
        return self._sandboxes.memory

    @classmethod
    async def begin(
        cls,
        dependencies: AttemptDependencies,
        request: RolloutRequest,
        *,
        sequence: int,
        deliveries: int,
        before: StoredEvent | None = None,
        beginning: Beginning | None = None,
    ) -> "Attempt":
        """Takes the rollout's next attempt number and publishes `rollout.started` under it.

        `sequence` and `deliveries` are the request's on its queue; 0 and 1 if it is on none. `before` is the
        result of `Publisher.started`, if that was asked.
        """
        started = RolloutStarted(worker=dependencies.worker, request_sequence=sequence, deliveries=deliveries)

        number = await dependencies.publisher.start(
            request.rollout_id,
            request.attempt_base + deliveries,
            lambda number: _event(request, number, dependencies.worker, started, "started"),
            before,
        )
        return cls(dependencies, request, number=number, deliveries=deliveries, beginning=beginning)

    async def publish(self, data: msgspec.Struct) -> None:
        """Publishes one fact of this attempt; returns when the stream has stored it."""
        self._published += 1
        sequence = await self._dependencies.publisher.event(self.event(data, f"{self._published:05d}"))
        if self._replay is not None:
            await self._replay.note(data, sequence)

    def event(self, data: msgspec.Struct, name: str) -> Event:
        """Makes an event of this attempt; `name` is part of its id and tells it from the attempt's others."""
        return _event(self.request, self.number, self._dependencies.worker, data, name)

    async def run(self) -> RolloutFinished:
        """Runs the whole attempt, bounded by the outermost timeout: the request's, or what the task's own
        need."""
        self._began = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout_at(self._began + self._timeouts.rollout) as limit:
                task = await self._load_task()
                self._budget, self._timeouts = as_published(task, self._budget, self._timeouts)
                self._sandboxes.creation_seconds = self._timeouts.creation
                limit.reschedule(self._began + self._timeouts.rollout)
                return await self._run(task)
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise InfrastructureError(
                AbortCause.ROLLOUT_TIMEOUT,
                f"the rollout was not over after {self._timeouts.rollout:g} s, more than all its inner "
                "limits: raise timeouts.rollout",
            ) from error
        except (asyncio.CancelledError, EndpointRests, SandboxEvicted):
            if self._replay is not None:
                await self._replay.absolve()
            raise

    async def _run(self, task: Task) -> RolloutFinished:
        self._sandboxes.set_task(task)
        if isinstance(self._harness, ProgramHarness):
            await self._sandboxes.lay(self._harness.program)
        async with AsyncExitStack() as stack:
            machine = await stack.enter_async_context(self._sandboxes.agents(task, self._beginning))
            try:
                await self._continue(task)
                if isinstance(task.grading, StageChecks):
                    result, reward = await self._through_stages(task, task.grading, machine)
                else:
                    result = await self._drive(task, machine, self._budget)
                    reward = None
                await self._trace.end_replay()
            except SandboxLost as lost:
                result = HarnessResult(
                    exit_status=ExitStatus.SANDBOX_LOST, submission="", leaf=self._trace.newest
                )
                reward = Reward(value=-1.0, resolved=False, grader=NOT_GRADED, detail=str(lost))
            if reward is None:
                if not graded_in_place(task.grading):
                    # The agent's machine is not trusted and not needed: make room before grading.
                    await stack.aclose()
                    machine = await stack.enter_async_context(self._sandboxes.open(task, "grading"))
                limit = self._timeouts.grading
                reward = await self._grading.reward(task, result.submission, machine, limit)
                reward = penalize_hacks(task, reward)
        await self.publish(reward)
        return await self._finished(result, reward)

    async def _load_task(self) -> Task:
        with storing(f"task {self.request.task.task_id}"):
            raw = await asyncio.to_thread(self._dependencies.blobs.get, self.request.task.blob)
        task = read_task(raw, self.request.task.task_id)
        if (why := refusal(task, self._dependencies.sandbox_settings.task_network)) is not None:
            raise InfrastructureError(AbortCause.INVALID_REQUEST, why)
        return task

    async def _continue(self, task: Task) -> None:
        """Takes over what the trace begins with: another rollout's messages, or those of a dead attempt."""
        beginning = self._beginning
        if beginning is None:
            if self.request.replay_attempts and self._harness.replayable:
                await self._inherit(self._harness)
            return
        apart = {"a world": task.world is not msgspec.UNSET, "stages": isinstance(task.grading, StageChecks)}
        apart["services"] = task.services is not msgspec.UNSET
        if what := next((what for what, has in apart.items() if has), None):
            raise InfrastructureError(
                AbortCause.INVALID_REQUEST,
                f"task {task.task_id} has {what}, whose state cannot be restored: start at the task",
            )
        await self._trace.inherit(beginning.history, beginning.spent)

    async def _through_stages(
        self, task: Task, grading: StageChecks, machine: SandboxMachine
    ) -> tuple[HarnessResult, Reward]:
        """Lets the agent work on stage after stage, each in a conversation of its own. Raises as `_drive`."""
        results: list[HarnessResult] = []
        copies = itertools.count(1)

        async def act(alone: Task, stage: TaskStage) -> None:
            budget = stage_budget(stage, self._budget, self._trace.totals)
            checks = len(grading.stages) - len(results)
            results.append(await self._drive(alone, machine, budget, checks=checks))

        def copy() -> AbstractAsyncContextManager[SandboxMachine]:
            return self._sandboxes.copy(machine, f"stage-{next(copies)}")

        async def grade(alone: Task, course: Course, goes_on: bool) -> Reward:
            limit, copied = self._timeouts.grading, copy if goes_on else None
            return await self._grading.reward(alone, "", machine, limit, stage=course, copied=copied)

        rewards = await through_stages(
            task,
            grading,
            machine,
            act,
            grade,
            pristine=lambda other=None, /: self._sandboxes.open(other or task, f"set-up-{next(copies)}"),
            timeout=self._timeouts.creation,
        )
        cut = next(
            (each for each in results if each.exit_status.status is not RolloutStatus.COMPLETED), results[-1]
        )
        result = replace(results[-1], exit_status=cut.exit_status, submission="")
        return result, await asyncio.to_thread(combined, grading, rewards, self._dependencies.blobs)

    async def _drive(
        self, task: Task, machine: SandboxMachine, budget: Budget, checks: int = 1
    ) -> HarnessResult:
        """Lets the agent work; so many `checks` follow. Raises SandboxLost if what it ran ended its
        machine."""
        request, beginning, harness = self.request, self._beginning, self._harness
        if not isinstance(task.user, msgspec.UnsetType):
            machine = machine.for_user(task.user)
        context = WorldContext(
            task=task,
            machine=machine,
            seed=self._seed,
            name=self._name,
            publish=self.publish,
            blobs=self._dependencies.blobs,
            sandbox=lambda image, purpose: self._sandboxes.open(
                msgspec.structs.replace(task, image=image), purpose
            ),
            command_seconds=self._timeouts.command,
            shared=self._dependencies.shared,
        )
        loop = asyncio.get_running_loop()
        async with open_world(context) as world:
            budget = within(budget, self._timeouts)
            episode = Episode(
                task=task,
                machine=machine,
                model=self._dependencies.models,
                student=request.model,
                takeover=request.takeover,
                trace=self._trace,
                budget=world.bounded(budget) if world else budget,
                timeouts=self._timeouts,
                seconds=self._began + time_before_checks(self._timeouts, checks) - loop.time(),
                seed=self._seed,
                history=beginning.history if beginning else (),
                name=self._name,
                gateway=self._dependencies.gateway,
                world=world,
            )
            return await self._played(harness, episode)

    async def _played(self, harness: Harness, episode: Episode) -> HarnessResult:
        """Runs the harness and collects what is handed in. Raises as `_drive` does."""
        try:
            try:
                result = await harness.run(episode)
            except OutOfTime:
                result = await self._unanswered(episode)
            if episode.world is not None:
                messages = self._trace.messages(result.leaf)
                if messages and messages[-1]["role"] == Role.ASSISTANT.value:  # without words for endpoints
                    messages[-1]["content"] = self._trace.path(result.leaf)[-1].content
                result = replace(result, submission=await episode.world.hand_in(result.exit_status, messages))
            return result
        except LimitExceeded as error:
            raise SandboxLost(error.detail) from error
        except InfrastructureError as error:
            died = error.cause is AbortCause.SANDBOX_DIED and not isinstance(error, SandboxEvicted)
            if self._replay is None or not died:
                raise
            if not isinstance(error, EndedUnderCommand):
                await self._replay.distrust_last_answer()
            elif await self._replay.ended_again(self._trace.newest):
                raise SandboxLost(f"at the same command as in the attempt before: {error.detail}") from error
            raise

    async def _unanswered(self, episode: Episode) -> HarnessResult:
        """Returns the result of a run whose time was up while the model owed an answer: graded as it
        stands."""
        left = ""
        if episode.world is None:
            seconds = episode.timeouts.shutdown
            left = await state_left_behind(episode.machine, episode.task, timeout=seconds)
        return HarnessResult(exit_status=ExitStatus.UNANSWERED, submission=left, leaf=self._trace.newest)

    @property
    def _name(self) -> str:
        return f"{self.request.rollout_id}.{self.number}"

    @property
    def _seed(self) -> int:
        """The seed is the same in each attempt of a rollout, and different in each sample."""
        return int(self.request.rollout_id[:7], 16)

    async def _inherit(self, harness: Harness) -> None:
        """Replays what a dead attempt has recorded, and leaves a pointer for the next."""
        request, dependencies = self.request, self._dependencies
        asked = dependencies.models.asked(request.model.endpoint)
        if request.takeover is not None:
            asked["teacher"] = dependencies.models.asked(request.takeover.teacher_endpoint)
        key = replay_key(request, fingerprint(harness), asked)
        self._replay = ReplayState(
            dependencies.publisher.replay_pointers, request.rollout_id, self.number, key
        )
        if self.number > 1 and (record := await self._replay.claim(dependencies.blobs)) is not None:
            self._trace.replay(record)

    async def _finished(self, result: HarnessResult, reward: Reward) -> RolloutFinished:
        text, keys = masked(result.submission)
        blob = None
        if len(text) > INLINE_LIMIT // 4:
            blob = await self._put(text)
            text = ""
        facts = self._facts()
        facts["keys_masked"] += keys
        return RolloutFinished(
            **facts,
            status=result.exit_status.status,
            exit_status=result.exit_status,
            reward=reward.value,
            resolved=reward.resolved,
            submission=text,
            submission_blob=blob,
            leaf=result.leaf,
            protected=reward.protected,
        )

    async def _put(self, text: str) -> BlobRef:
        with storing("submission not stored"):
            return await asyncio.to_thread(self._dependencies.blobs.put, text.encode(), "text/x-diff")

    def aborted(self, cause: AbortCause, detail: str, failures: int) -> RolloutAborted:
        """Returns the terminal payload of a rollout that the infrastructure could not bring to an outcome."""
        return RolloutAborted(
            **self._facts(), cause=cause, detail=detail, failures=failures, status=RolloutStatus.ABORTED
        )

    def _facts(self) -> dict[str, Any]:
        """Returns the fields of RolloutFacts: turns are the path's, costs are this rollout's alone."""
        request, totals, replayed = self.request, self._trace.totals, self._trace.replayed
        own = replayed + self._trace.own
        layer, takeover = self._sandboxes.layer, request.takeover
        version, digest = (layer.version, layer.digest) if layer else version_of(self._harness)
        return {
            **facts_of(request),
            "model_kind": totals.model_kind or request.model.kind,
            "worker": self._dependencies.worker,
            "started_at": self._started_at,
            "seconds": time.monotonic() - self._clock,
            "turns": totals.turns,
            "llm_calls": own.calls,
            "prompt_tokens": own.prompt_tokens,
            "completion_tokens": own.completion_tokens,
            "cost_usd": own.cost_usd,
            "seconds_creating": self._sandboxes.seconds_creating,
            "seconds_llm": own.seconds_llm,
            "seconds_commands": own.seconds_commands,
            "seconds_waiting": own.seconds_waiting,
            "seconds_grading": self._grading.seconds,
            "deliveries": self._deliveries,
            "inherited_turns": replayed.turns,
            "inherited_tokens": None if replayed.uncounted else replayed.tokens,
            "inherited_cost_usd": replayed.cost_usd if replayed.turns else None,
            "keys_masked": self._trace.keys_masked,
            "harness_version": version,
            "harness_digest": digest,
            "teacher": takeover.teacher if takeover and totals.turns > takeover.after_turns else None,
        }


def _event(request: RolloutRequest, number: int, worker: str, data: msgspec.Struct, name: str) -> Event:
    return make_event(
        data,
        id=f"{request.rollout_id}.{number}.{name}",
        source=f"orchard/worker/{worker}",
        campaign=request.campaign,
        rollout_id=request.rollout_id,
        attempt=number,
        causation_id=f"{request.rollout_id}.requested",
    )

"""The trainer: takes groups from the log, trains, and hands each new policy to the server.

What makes a killed run exact: a step's checkpoint is written before its `policy.updated` event, and
holds the event's content. A trainer that starts finds its newest checkpoint, publishes the event if
the log lacks it, and resumes with the first group that no update names.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import numpy as np

from orchard.pipelines.models.directories import load_model, load_tokenizer, processor_of, save_model
from orchard.pipelines.rl.coordinator import RunError
from orchard.pipelines.rl.engines import Refused, ServingEngine
from orchard.pipelines.rl.feed import Feed, feed_subjects
from orchard.pipelines.rl.learner import Learner, NotFinite, StepFigures, Trained, sees
from orchard.pipelines.rl.plan import RunPlan
from orchard.pipelines.rl.policies import NEWEST, Newest, policy_directory, write_best, write_newest
from orchard.pipelines.rl.scoring import VERDICTS, TurnScores, run_rubrics
from orchard.pipelines.rl.sequences import NotSampled, TokenSequence
from orchard.pipelines.rl.settings import RlSettings, RouterReplay, settings_hash
from orchard.pipelines.rl.stepping import Chosen, Limits, RunStopped, Steps, unprotected
from orchard.pipelines.rl.teacher import TeacherScores, check_tokenizer
from orchard.pipelines.sft.checkpoints import Checkpoints, whole_weights
from orchard.pipelines.sft.picture_packs import eyes_of
from orchard.pipelines.sft.processes import Processes
from orchard.schemas.events import Event
from orchard.schemas.groups import GroupAssembled, GroupOutcome
from orchard.schemas.training import PolicyStep
from orchard.storage.blobs import BlobStore
from orchard.storage.reader import open_tables
from orchard.streams import names
from orchard.streams.connection import Connection
from orchard.streams.publisher import Publisher
from orchard.streams.reading import bounds
from orchard.streams.records import StoredEvent
from orchard.streams.replay import replay_batches
from orchard.streams.tasks import end
from orchard.workers.llm.scoring import ScoringEndpoint

SOURCE = "orchard/rl/trainer"
MERGED = "model"
"""Directory in `out` of the last policy of a run with adapters, merged into the model."""
LOOK_SECONDS = 5.0
"""Pause between two checks of which policy is served: a restarted engine has forgotten."""
REFUSED_POLICIES = 5
"""Times that an engine may refuse a policy before the run stops."""
REFUSED_IN_A_ROW = 3
"""Steps in a row without finite numbers before a run stops."""

log = logging.getLogger("orchard.rl.trainer")


class TrainerState(msgspec.Struct, frozen=True, kw_only=True):
    """The position of a run, in its checkpoints."""

    settings_hash: str
    step: int = 0
    """Optimizer steps done; the policy version that they made is the same number."""
    position: int = 0
    """Sequence of the last group that was considered."""
    groups: tuple[str, ...] = ()
    """Ids of the groups that the last step trained on."""
    left_out: tuple[str, ...] = ()
    """Rollouts of these groups that were too long, or had an ending that does not train."""
    fact: PolicyStep | None = None
    """The last step's event."""


class RlTrainer:
    """One run's trainer. Each of `engines` serves its policies; there may be none. `teacher` scores what they
    sampled, if the run's objective is to distill."""

    def __init__(
        self,
        settings: RlSettings,
        plan: RunPlan,
        connection: Connection,
        blobs: BlobStore,
        processes: Processes,
        *,
        engines: Sequence[ServingEngine],
        teacher: ScoringEndpoint | None = None,
    ) -> None:
        self.settings, self.plan = settings, plan
        self._out = Path(settings.out)
        self._connection = connection
        self._publisher = Publisher(connection)
        model = load_model(settings.model)
        self._processor = processor_of(model, settings.model)
        eyes = eyes_of(model, self._processor, blobs.read)
        self._sees = sees(eyes)
        self._feed = Feed(plan, blobs, self._check, routed=settings.router_replay is RouterReplay.ROLLOUT)
        limits = Limits(settings.staleness, settings.context, contrast=bool(settings.outcome_weight))
        self._scores = self._scoring(blobs)
        self._endpoint, self._restored = teacher, asyncio.Event()
        self._teacher: TeacherScores | None = None
        if settings.distill is not None:
            assert teacher is not None
            self._teacher = TeacherScores(
                *(plan.name, settings.distill, teacher, self._feed),
                *(self._now, blobs, self._publish),
            )
        self._steps = Steps(self._feed, limits, SOURCE, self._publish, self._ready)
        self._processes = processes
        self._engines = tuple(engines) if processes.first else ()
        self._newest: Newest | None = None
        """Policy that the engines are to serve: OUT may still name a policy of an earlier run."""
        self._best: int | None = -1
        """Policy version that OUT names as the best; -1: OUT may still name one of an earlier run."""
        self._refused: Counter[ServingEngine] = Counter()
        """Times in a row that each engine refused that policy."""
        self._tokenizer = load_tokenizer(settings.model)
        apart = settings.loss.kl and settings.lora is None
        reference = load_model(settings.model) if apart else None
        self._learner = Learner(settings, model, processes, reference, eyes)
        self._checkpoints = Checkpoints(
            self._out / "checkpoints", processes, settings.keep_checkpoints, TrainerState
        )
        self._state = TrainerState(settings_hash=settings_hash(settings))
        self._idle_since = time.monotonic()

    def _scoring(self, blobs: BlobStore) -> TurnScores | None:
        """Raises RunError where a task has no rubric."""
        if (process := self.settings.process) is None:
            return None
        with open_tables(blobs.url, views=["rubrics"]) as tables:
            rubrics = run_rubrics(tables, self.plan.tasks, process)
        return TurnScores(self.plan.name, process, rubrics, self._publisher)

    def _now(self) -> tuple[Steps, int]:
        return self._steps, self._state.step

    def _ready(self, group: GroupAssembled) -> bool:
        """Whether a group has all scores that it is to have."""
        judged = self._scores is None or self._scores.ready(group)
        return judged and (self._teacher is None or self._teacher.ready(group.group_id))

    def _fold(self, batch: list[StoredEvent]) -> None:
        self._feed.take(batch)
        if self._scores is not None:
            self._scores.take(batch)
        if self._teacher is not None:
            self._teacher.take(batch)

    async def _take(self, batch: list[StoredEvent]) -> None:
        """Apply events of the log, and have the turns of new groups scored."""
        self._fold(batch)
        if self._scores is not None and self._processes.first:
            await self._scores.ask(self._feed.waiting)

    @property
    def _subjects(self) -> list[str]:
        return [*feed_subjects(self.plan.name), *([VERDICTS] if self._scores is not None else [])]

    async def run(self, start: int) -> None:
        """Train until the plan's last step. `start` is the sequence of the run's first event.

        Raises RunError for a checkpoint of other settings or of another log, one that is older than the
        log's newest policy, and where a refused step left nothing to go back to; RunStopped where steps or
        policies are refused again and again.
        """
        tasks = {asyncio.create_task(self._train(start))}
        tasks |= {asyncio.create_task(self._keep_served(engine)) for engine in self._engines}
        if self._teacher is not None and self._processes.first:
            tasks.add(asyncio.create_task(self._score(self._teacher)))
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            await asyncio.gather(*map(end, tasks))

    async def _train(self, start: int) -> None:
        last = (await bounds(self._connection, names.EVENTS)).last
        async for batch in replay_batches(self._connection, start, subjects=self._subjects):
            self._fold(batch)
        await self._restore()
        self._restored.set()
        await self._announce()
        async for batch in self._batches(start, last):
            await self._take(batch)
            await self._name_best()
            while self._state.step < self.plan.steps:
                if self._feed.progress.evaluation_due:
                    break
                if not (chosen := await self._steps.choose(self._state.step)):
                    break
                await self._step(chosen)
            else:
                if self._feed.progress.evaluation_due:
                    continue
                while not await self._offer_all():
                    await asyncio.sleep(LOOK_SECONDS)
                return

    async def _score(self, teacher: TeacherScores) -> None:
        """Have groups scored by the teacher, once it is known which are, and that the teacher has the
        policy's tokenizer."""
        assert self._endpoint is not None
        try:
            await check_tokenizer(self._endpoint, self._tokenizer, self.settings.model, patient=True)
            await self._restored.wait()
            await teacher.run()
        finally:
            await self._endpoint.close()

    async def _batches(self, start: int, last: int) -> AsyncIterator[list[StoredEvent]]:
        """Yield an empty batch first, so that waiting groups are considered at once; then new events."""
        yield []
        async for batch in replay_batches(
            self._connection, max(start, last + 1), subjects=self._subjects, follow=True
        ):
            yield batch

    async def _restore(self) -> None:
        """Load the newest checkpoint, and publish its last step if the log lacks it."""
        newest = self._checkpoints.newest()
        version = self._feed.progress.version
        if newest is not None:
            if newest.settings_hash != self._state.settings_hash:
                raise RunError(
                    f"the checkpoint in {self._out} is of another configuration: choose another `out`, or "
                    "delete that directory"
                )
            await asyncio.to_thread(self._checkpoints.load, self._learner.model, [self._learner.optimizer])
            self._state = newest
        if version > self._state.step:
            raise RunError(
                f"the log has policy version {version} of run {self.plan.name!r}, the newest checkpoint in "
                f"{self._out} is of step {self._state.step}: restore it, or choose another name"
            )
        if version < self._state.step:
            known = all(name in self._feed.progress.groups for name in self._state.groups)
            if version < self._state.step - 1 or not known:
                raise RunError(
                    f"the newest checkpoint in {self._out} is of step {self._state.step}, the log has policy "
                    f"version {version} of run {self.plan.name!r}: it was made with another log, or this one "
                    "has lost its end: choose another `out`, or restore the log"
                )
            await self._publish_step()
        for name in (*self._feed.progress.trained, *self._feed.progress.dropped):
            self._feed.done_with(name)

    async def _step(self, chosen: list[Chosen]) -> None:
        waited = time.monotonic() - self._idle_since
        groups = [group for group, _ in chosen]
        solved = self._feed.progress.resolved({one.rollout_id for group in groups for one in group.members})
        scores = await self._teacher.of(chosen) if self._teacher else {}
        rollouts = [
            Trained(
                member.rollout_id,
                group.group_id,
                member.reward,
                member.rollout_id in solved,
                sequences,
                self._scores.of(member.rollout_id) if self._scores else (),
                scores.get(member.rollout_id, ()),
            )
            for group, rows in chosen
            for member, sequences in zip(group.members, rows, strict=True)
        ]
        version = self._state.step
        try:
            figures = await asyncio.to_thread(self._learner.step, version, rollouts)
        except NotFinite as error:
            await self._refuse(groups, error)
            return
        self._state = msgspec.structs.replace(
            self._state,
            step=version + 1,
            position=self._steps.position(groups),
            groups=tuple(group.group_id for group in groups),
            left_out=self._steps.left_out(groups),
            fact=self._fact(version, groups, rollouts, figures, waited),
        )
        await asyncio.to_thread(self._save)
        await self._publish_step()
        for group in groups:
            self._feed.done(group)
        if self._scores is not None:
            self._scores.forget(groups)
        if self._teacher is not None:
            self._teacher.forget(group.group_id for group in groups)
        self._steps.dropped = 0
        await self._announce()
        self._idle_since = time.monotonic()

    async def _refuse(self, groups: list[GroupAssembled], error: NotFinite) -> None:
        """Return to the policy before the step, for other groups. Raises RunStopped after several in a
        row, by the log; RunError where only a new start gets the policy back."""
        step = self._state.step + 1
        await self._steps.refuse(groups, f"step {step}: {error}")
        refused = self._feed.progress.refused // self.plan.prompts_per_step
        if refused >= REFUSED_IN_A_ROW:
            raise RunStopped(
                f"run {self.plan.name!r} stops at step {step}: {refused} steps in a row were refused, "
                f"the last as {error}: lower `lr`, or look at the dropped groups in the log"
            )
        if error.changed:
            if self._checkpoints.newest() is None:
                raise RunError(
                    f"step {step} of run {self.plan.name!r} is refused: {error}, and there is no checkpoint "
                    "yet: start the trainer again, from the model that the run began with"
                )
            await asyncio.to_thread(self._checkpoints.load, self._learner.model, [self._learner.optimizer])

    def _save(self) -> None:
        """Write the checkpoint before the event: the log may name only a policy that exists."""
        self._write_policy()
        self._checkpoints.save(self._learner.model, [self._learner.optimizer], self._state)

    def _write_policy(self) -> None:
        """Write the policy as a directory. All processes call it."""
        version = self._state.step
        state = whole_weights(self._learner.model, self._processes)
        if self._processes.first:
            place = policy_directory(self._out, version)
            place.parent.mkdir(parents=True, exist_ok=True)
            parts = {"tokenizer": self._tokenizer, "processor": self._processor}
            save_model(self._learner.model, place, state=state, **parts)
            if self.settings.lora is not None and version == self.plan.steps:
                save_model(load_model(place), self._out / MERGED, **parts)

    def _fact(
        self,
        version: int,
        groups: list[GroupAssembled],
        rollouts: list[Trained],
        figures: StepFigures,
        waited: float,
    ) -> PolicyStep:
        behind = [
            version - sampled
            for rollout in rollouts
            for sequence in rollout.sequences
            for sampled, trains in zip(sequence.versions, sequence.mask, strict=True)
            if trains
        ]
        generated = sum(group.generated for group in groups)
        return PolicyStep(
            run=self.plan.name,
            step=version + 1,
            version=version + 1,
            groups=len(groups),
            rollouts=len(rollouts),
            reward=sum(rollout.reward for rollout in rollouts) / len(rollouts),
            resolved=sum(rollout.resolved for rollout in rollouts) / len(rollouts),
            pass_rate=self._feed.progress.pass_rate(group.group_id for group in groups),
            generated=generated,
            aborted=sum(group.aborted for group in groups),
            balanced=sum(group.outcome is GroupOutcome.BALANCED for group in groups) / len(groups),
            dropped=self._steps.dropped,
            staleness=sum(behind) / len(behind),
            waited=waited,
            unprotected=unprotected(groups),
            **msgspec.structs.asdict(figures),
            **self._by_teacher(groups, rollouts),
        )

    def _by_teacher(self, groups: list[GroupAssembled], rollouts: list[Trained]) -> dict[str, Any]:
        """Figures of a step that was scored by a teacher."""
        if self._teacher is None:
            return {}
        facts = self._teacher.facts(group.group_id for group in groups)
        costs = [fact.teacher_cost_usd for fact in facts]
        pairs = [
            (np.asarray(sequence.logprobs)[np.flatnonzero(sequence.mask)], scores)
            for rollout in rollouts
            for sequence, scores in zip(rollout.sequences, rollout.teacher, strict=True)
        ]
        gaps = np.concatenate([sampled - scores for sampled, scores in pairs])
        return {
            "teacher_kl": float(gaps.mean()),
            "teacher_tokens": sum(fact.teacher_tokens for fact in facts),
            "teacher_cost_usd": sum(cost for cost in costs if cost is not None)
            if None not in costs
            else None,
        }

    async def _publish_step(self) -> None:
        """Publish the figures first: where the log has the update, it has these too."""
        state = self._state
        assert state.fact is not None
        await self._steps.tell(state.fact, f"{self.plan.name}.step.{state.step}")
        checkpoint = policy_directory(Path(), state.step).as_posix()
        await self._steps.update(state.step, state.groups, state.position, checkpoint, state.left_out)

    async def _publish(self, event: Event) -> int:
        """Publish from the first process alone; every process makes the same events."""
        return await self._publisher.event(event) if self._processes.first else 0

    def _check(self, row: TokenSequence) -> None:
        """Raise NotSampled for tokens that this run did not sample, or that the model cannot be shown;
        RunStopped where the first step already lacks the experts that are to be replayed."""
        if (newest := max(row.versions)) > self._state.step:
            raise NotSampled(
                f"a token names policy version {newest} and the run has made {self._state.step}: its engine "
                "served another run, or the run before it of the same name"
            )
        self._sees(row)
        try:
            self._learner.check_experts(row)
        except NotSampled as error:
            if self._state.step:
                raise
            raise RunStopped(
                f"run {self.plan.name!r} stops before its first step: {error}; what it sampled trains "
                "without, an engine that reports experts needs a run of another name"
            ) from error

    async def _announce(self) -> None:
        """Name the newest policy for a server that starts, and give it to running ones."""
        version = self._state.step
        if not version:
            await asyncio.to_thread(self._write_policy)  # an engine may hold another run's weights till then
        if not self._processes.first:
            return
        newest = Newest(version=version, path=str(policy_directory(self._out, version).absolute()))
        keep = max(self.settings.keep_policies, self.settings.staleness + 2)
        best = self._feed.progress.best
        await asyncio.to_thread(write_newest, self._out / NEWEST, newest, keep=keep, best=best)
        self._newest, self._refused = newest, Counter()
        await self._offer_all()

    async def _name_best(self) -> None:
        """Name the best of the evaluated policies, which stays on disk."""
        best = self._feed.progress.best
        if best != self._best and self._processes.first:
            await asyncio.to_thread(write_best, self._out, best)
            self._best = best

    async def _offer_all(self) -> bool:
        """Have all engines serve the newest policy, at the same time; False where one refuses it."""
        return all(await asyncio.gather(*(self._offer(engine) for engine in self._engines)))

    async def _offer(self, engine: ServingEngine) -> bool:
        """Have an engine serve the newest policy; False where it refuses it. One that is away gets it later.

        Raises RunStopped where it refuses the same policy again and again.
        """
        if (newest := self._newest) is None:
            return True
        try:
            await engine.take(newest)
        except Refused as error:
            log.warning("version %d is not served: %s", newest.version, error)
            self._refused[engine] += 1
            if (times := self._refused[engine]) >= REFUSED_POLICIES:
                raise RunStopped(
                    f"run {self.plan.name!r} stops: version {newest.version} was refused {times} times: "
                    f"{error}"
                ) from error
            return False
        except (aiohttp.ClientError, TimeoutError) as error:
            log.warning("version %d is not served yet: %s: %s", newest.version, type(error).__name__, error)
        else:
            self._refused[engine] = 0
        return True

    async def _keep_served(self, engine: ServingEngine) -> None:
        """Give the newest policy to an engine that serves other weights, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await self._offer(engine)

"""The synthesis run: steps on a queue, each artefact an event, accepted tasks in the registry.

A step is a request on the queue; its handler asks, checks, publishes the result, and offers the next
step. Killed anywhere, the same command resumes: what is done is in the log, what is not is on the
queue. Which slots are proposed, and which tasks are taken, depends on the seed and the answers, not on
how steps overlap.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from math import ceil
from typing import Any, ClassVar

import msgspec

from orchard.pipelines.domains.claw import prompts
from orchard.pipelines.domains.claw.drafts import (
    BadAnswer,
    Idea,
    TaskDraft,
    read_draft,
    read_idea,
    task_of,
    words_of,
    wrong,
)
from orchard.pipelines.domains.claw.proof import Defect, graded, prove
from orchard.pipelines.domains.claw.report import Report
from orchard.pipelines.tasks.registry import TaskRegistry
from orchard.pipelines.tasks.validate import Validation
from orchard.pipelines.values.continuations import run_to_outcome
from orchard.schemas.blobs import BlobRef
from orchard.schemas.campaigns import Budget, ModelSpec, RolloutRequest, TaskRef, Timeouts
from orchard.schemas.claw import BUNDLES, DOMAIN
from orchard.schemas.decoding import Unreadable, decode_whole
from orchard.schemas.events import RolloutFinished, TaskValidated, make_event, payload
from orchard.schemas.identity import digest, rollout_id
from orchard.schemas.queues import Queue
from orchard.schemas.requests import read_known
from orchard.schemas.subjects import EVENTS_PREFIX
from orchard.schemas.synthesis import Check, SynthesisAction, SynthesisRequest, SynthesisStep
from orchard.schemas.tasks import Task, task_hash
from orchard.storage.errors import StorageError
from orchard.streams.claims import Claims
from orchard.streams.connection import Connection
from orchard.streams.consumer import ClaimedRequest, Consumer, Interrupted, RetryPolicy
from orchard.streams.entries import FIRST, EntryAddress, QueueEntry, entry
from orchard.streams.errors import FAULTS, AwaitsEndpoint
from orchard.streams.replay import replay
from orchard.workers.attempts.deadletters import DeadLetters
from orchard.workers.attempts.dependencies import AttemptDependencies
from orchard.workers.episode.machine import Machine
from orchard.workers.episode.sandboxes import SandboxMachine, classified
from orchard.workers.failures import InfrastructureError
from orchard.workers.llm.answers import Completion
from orchard.workers.llm.errors import ContextLengthExceeded

log = logging.getLogger("orchard.synthesis")

REFINEMENTS = 2
"""Times that an author may repair a draft."""
MAX_FAILURES = 5
YIELD = 0.6
"""Share of proposals that are expected to be accepted; more are proposed where it was less."""
_ENDS = (SynthesisAction.ACCEPT, SynthesisAction.REJECT)


@dataclass(frozen=True, kw_only=True)
class SynthesisGoal:
    """The tasks that a run is to make."""

    run: str
    """Name of the run, and campaign of its events."""
    author: ModelSpec
    solver: ModelSpec
    tasks: int = 192
    seed: int = 0
    rollouts: int = 3
    """Rollouts of the solver for each task and harness."""
    harnesses: tuple[str, ...] = ("claw-react",)
    slots: int = 2
    """Steps that run at once."""
    most: int = 10
    """Proposals, at most, for each task that is wanted."""
    seconds: float = 600.0
    """Timeout of one call of the author."""


@dataclass
class _Slot:
    ended: SynthesisAction | None = None
    task: BlobRef | None = None
    proposed: BlobRef | None = None
    idea: BlobRef | None = None
    """The idea, once it has passed the filter."""
    text: str = ""
    """Text of the idea."""


@dataclass
class Run:
    """One run, in this process: it handles the requests of its queue."""

    retries: ClassVar = RetryPolicy(on=(InfrastructureError, StorageError), first=5.0, most=MAX_FAILURES)

    connection: Connection
    dependencies: AttemptDependencies
    wanted: SynthesisGoal
    told: Callable[[SynthesisStep], None] = lambda _: None
    _slots: dict[int, _Slot] = field(default_factory=dict)
    steps: list[SynthesisStep] = field(default_factory=list)
    """All finished steps, those of earlier processes too."""

    async def make(self, claims: Claims) -> list[Task]:
        """Run until enough tasks are accepted; returns them in the order of their slots, already in the
        registry. `claims` are of `queue_of` the run."""
        await self._recall()
        handlers = {claims.queue.kind: self}
        consumer = Consumer(claims, DeadLetters(self.connection), handlers, slots=self.wanted.slots)
        async with asyncio.TaskGroup() as group:
            group.create_task(consumer.run())
            while True:
                await self._settled()
                accepted = [
                    at for at, slot in sorted(self._slots.items()) if slot.ended is SynthesisAction.ACCEPT
                ]
                if len(accepted) >= self.wanted.tasks:
                    break
                first, left = len(self._slots), self.wanted.tasks - len(accepted)
                if first >= self.wanted.most * self.wanted.tasks:
                    log.warning("%d proposals gave %d tasks: given up", first, len(accepted))
                    break
                await self._propose(first, ceil(left / YIELD))
            consumer.drain()
        tasks = [await self._task(self._slots[at]) for at in accepted[: self.wanted.tasks]]
        registry = TaskRegistry(self.dependencies.publisher, self.dependencies.blobs)
        await registry.register(tasks)
        for task in tasks:
            proven = TaskValidated(
                task_id=task.task_id, task_hash=task_hash(task), runs=self.wanted.rollouts, seconds=0.0
            )
            await registry.record(Validation(original=task, task=task, event=proven))
        return tasks

    @property
    def report(self) -> Report:
        """The report over all finished steps."""
        return Report(self.steps)

    async def _recall(self) -> None:
        pattern = f"{EVENTS_PREFIX}.{self.wanted.run}.*.synthesis.step"
        async for stored in replay(self.connection, subjects=pattern):
            step = payload(stored.event) if stored.event else None
            if isinstance(step, SynthesisStep):
                await self._note(step)

    async def _note(self, step: SynthesisStep) -> None:
        self.steps.append(step)
        slot = self._slots.setdefault(step.slot, _Slot())
        if step.step is SynthesisAction.PROPOSE:
            slot.proposed = step.artefact
        if step.step is SynthesisAction.FILTER and step.check is None and slot.proposed is not None:
            idea = msgspec.convert((await self._get(slot.proposed))["read"], Idea)
            slot.idea, slot.text = slot.proposed, f"{idea.title}: {idea.goal}"
        if step.step in _ENDS:
            slot.ended, slot.task = step.step, step.artefact

    async def _settled(self) -> None:
        while any(slot.ended is None for slot in self._slots.values()):
            await asyncio.sleep(0.05)

    async def _propose(self, first: int, count: int) -> None:
        for at in range(first, first + count):
            self._slots[at] = _Slot()
        await self._offer(
            SynthesisRequest(
                run=self.wanted.run,
                seed=self.wanted.seed,
                step=SynthesisAction.PROPOSE,
                slot=first,
                count=count,
            )
        )

    # --- the queue ------------------------------------------------------------------------------

    def read(self, body: bytes) -> SynthesisRequest:
        return read_known(body, SynthesisRequest, "a synthesis request")

    def entry(self, request: SynthesisRequest, occasion: str) -> QueueEntry:
        return _entry(request, occasion)

    async def handle(self, delivery: ClaimedRequest[SynthesisRequest]) -> None:
        """Do one step. A slot whose step fails repeatedly is given up, or the run would never end."""
        request = delivery.request
        try:
            await delivery.run(self._step(request))
        except (AwaitsEndpoint, Interrupted, *FAULTS):
            raise
        except Exception as error:
            if isinstance(error, self.retries.on) and request.failures < MAX_FAILURES:
                raise
            log.error("slot %d of %s is given up", request.slot, request.run, exc_info=error)
            for at in range(request.slot, request.slot + request.count):
                slot = self._slots.setdefault(at, _Slot())
                if slot.ended is None and (request.step is not SynthesisAction.PROPOSE or slot.idea is None):
                    one = msgspec.structs.replace(request, slot=at)
                    await self._end(
                        one, SynthesisAction.REJECT, check=Check.INFRASTRUCTURE, detail=str(error)
                    )

    async def _step(self, request: SynthesisRequest) -> None:
        if request.step is SynthesisAction.PROPOSE:
            await self._proposed(request)
        elif self._slots.setdefault(request.slot, _Slot()).ended is not None:
            return  # this request has come before
        elif request.step is SynthesisAction.SOLVE:
            await self._solved(request)
        else:
            await self._written(request)

    async def _offer(self, request: SynthesisRequest) -> None:
        await self.dependencies.publisher.offer(_entry(request, FIRST))

    # --- the four steps -------------------------------------------------------------------------

    async def _proposed(self, request: SynthesisRequest) -> None:
        """Propose ideas one after the other, so that what counts as known does not depend on timing."""
        for at in range(request.slot, request.slot + request.count):
            one = msgspec.structs.replace(request, slot=at, count=1)
            slot = self._slots.setdefault(at, _Slot())
            if slot.ended is not None:
                continue  # this request has come before
            if slot.idea is not None:
                await self._offer(msgspec.structs.replace(one, step=SynthesisAction.WRITE, idea=slot.idea))
                continue
            known = [self._slots[each].text for each in range(at) if self._slots[each].text]
            asked = prompts.propose(request, at, known)
            answer = await self._ask(asked)
            try:
                idea = read_idea(answer.text)
            except BadAnswer as error:
                await self._tell(
                    one, SynthesisAction.PROPOSE, asked, answer, check=Check.UNREADABLE, detail=str(error)
                )
                await self._end(one, SynthesisAction.REJECT, check=Check.UNREADABLE, detail=str(error))
                continue
            fault = wrong(idea, [words_of(text) for text in known])
            label = idea.seeded_mistake
            artefact = await self._tell(
                one, SynthesisAction.PROPOSE, asked, answer, read=idea, seeded_mistake=label
            )
            check, detail = fault or (None, "")
            await self._publish(one, SynthesisAction.FILTER, check=check, detail=detail, seeded_mistake=label)
            if fault:
                await self._end(one, SynthesisAction.REJECT, check=check, detail=detail, seeded_mistake=label)
                continue
            await self._offer(msgspec.structs.replace(one, step=SynthesisAction.WRITE, idea=artefact))

    async def _written(self, request: SynthesisRequest) -> None:
        """Ask for a draft, written or refined, and prove it."""
        if request.step is SynthesisAction.WRITE:
            assert request.idea is not None
            idea = msgspec.convert((await self._get(request.idea))["read"], Idea)
            asked = prompts.write(request, idea)
        else:
            before = await self._get(request.draft) if request.draft else None
            draft = msgspec.convert(before["read"], TaskDraft) if before else None
            asked = prompts.refine(request, draft)
        answer = await self._ask(asked)
        try:
            draft = read_draft(answer.text)
        except BadAnswer as error:
            await self._tell(request, request.step, asked, answer, check=Check.UNREADABLE, detail=str(error))
            await self._defective(request, Defect(Check.UNREADABLE, str(error)), None, None)
            return
        label = draft.seeded_mistake
        artefact = await self._tell(request, request.step, asked, answer, read=draft, seeded_mistake=label)
        try:
            async with self._machine(request) as machine:
                caught = await prove(draft.case, machine, request.seed + request.slot)
        except Defect as defect:
            await self._publish(
                request, SynthesisAction.PROVE, check=defect.check, detail=defect.detail, seeded_mistake=label
            )
            await self._defective(request, defect, artefact, label)
            return
        await self._publish(
            request,
            SynthesisAction.PROVE,
            detail=f"{caught} wrong solutions are caught",
            seeded_mistake=label,
        )
        await self._offer(msgspec.structs.replace(request, step=SynthesisAction.SOLVE, draft=artefact))

    async def _solved(self, request: SynthesisRequest) -> None:
        """Start and grade the solver's rollouts: the task is accepted, or returns to the author."""
        assert request.draft is not None
        draft = msgspec.convert((await self._get(request.draft))["read"], TaskDraft)
        label = draft.seeded_mistake
        task = task_of(draft, {"seeded": "yes"} if self.wanted.author.name == "seeded-author" else {})
        blob = await self._put(task)
        runs = [
            await self._rollout(task, blob, harness, sample)
            for harness in self.wanted.harnesses
            for sample in range(self.wanted.rollouts)
        ]
        summary = [
            {"resolved": outcome.resolved, "reward": outcome.reward, "turns": outcome.turns}
            for outcome in runs
            if isinstance(outcome, RolloutFinished)
        ]
        try:
            await self._graded_again(
                request, draft, [run for run in runs if isinstance(run, RolloutFinished)]
            )
        except Defect as defect:
            await self._publish(
                request,
                SynthesisAction.SOLVE,
                check=defect.check,
                detail=defect.detail,
                artefact=await self._put({"rollouts": summary}),
                seeded_mistake=label,
            )
            await self._defective(request, defect, request.draft, label)
            return
        passed = sum((each["reward"] or 0.0) > 0 for each in summary)
        await self._publish(
            request,
            SynthesisAction.SOLVE,
            detail=f"{passed} of {len(runs)} rollouts pass",
            artefact=await self._put({"rollouts": summary}),
            model=self.wanted.solver.name,
            cost_usd=_sum([getattr(run, "cost_usd", None) for run in runs]),
            seeded_mistake=label,
        )
        await self._end(
            request, SynthesisAction.ACCEPT, artefact=blob, task_id=task.task_id, seeded_mistake=label
        )

    async def _graded_again(
        self, request: SynthesisRequest, draft: TaskDraft, runs: list[RolloutFinished]
    ) -> None:
        """Grade the rollouts again. Raises Defect where none is valid, or a grade changed."""
        bundles, rewards = [], []
        for run in runs:
            text = run.submission
            if run.submission_blob is not None:
                text = (await asyncio.to_thread(self.dependencies.blobs.get, run.submission_blob)).decode()
            try:
                bundle = decode_whole(BUNDLES, text.encode())
            except Unreadable:
                continue
            if any(not call.failed for call in bundle.audit):
                bundles.append(bundle)
                rewards.append((run.reward or 0.0) > 0)
        if not bundles:
            raise Defect(Check.NO_VALID_RUN, "no rollout of the solver got as far as one call that succeeded")
        async with self._machine(request) as machine:
            if await graded(draft.case.tests, bundles, machine) != rewards:
                raise Defect(Check.REPLAY_DIFFERS, "a rollout is graded differently when it is graded again")

    async def _defective(
        self, request: SynthesisRequest, defect: Defect, draft: BlobRef | None, label: str | None
    ) -> None:
        """Return the draft to the author, or end the slot."""
        if request.turn >= REFINEMENTS:
            await self._end(
                request,
                SynthesisAction.REJECT,
                check=defect.check,
                detail=defect.detail,
                seeded_mistake=label,
            )
            return
        await self._offer(
            msgspec.structs.replace(
                request,
                step=SynthesisAction.REFINE,
                turn=request.turn + 1,
                draft=draft,
                defect=defect.detail,
                failures=0,
            )
        )

    # --- asking and telling -----------------------------------------------------------------------

    async def _ask(self, messages: prompts.Messages) -> Completion:
        try:
            return await self.dependencies.models.complete(
                self.wanted.author, messages, [], seed=self.wanted.seed, timeout=self.wanted.seconds
            )
        except ContextLengthExceeded as error:
            return Completion(text=f"(the author's context is too small: {error})")

    async def _tell(
        self,
        request: SynthesisRequest,
        step: SynthesisAction,
        asked: prompts.Messages,
        answer: Completion,
        *,
        read: Idea | TaskDraft | None = None,
        **facts: Any,
    ) -> BlobRef:
        """Publish an answer of the author; the blob with prompt, answer and what was read from it."""
        artefact = await self._put({"messages": asked, "answer": answer.text, "read": read})
        await self._publish(
            request,
            step,
            artefact=artefact,
            model=self.wanted.author.name,
            model_kind=answer.model_kind,
            prompt_tokens=answer.usage.prompt_tokens,
            completion_tokens=answer.usage.completion_tokens,
            cost_usd=answer.cost_usd,
            seconds=answer.seconds,
            **facts,
        )
        return artefact

    async def _end(self, request: SynthesisRequest, step: SynthesisAction, **facts: Any) -> None:
        await self._publish(request, step, **facts)

    async def _publish(self, request: SynthesisRequest, step: SynthesisAction, **facts: Any) -> None:
        data = SynthesisStep(slot=request.slot, turn=request.turn, step=step, **facts)
        name = f"{request.run}.{request.slot}.{request.turn}.{step}"
        event = make_event(
            data,
            id=f"synthesis.{digest(name)}",
            source="orchard/synthesis",
            campaign=request.run,
            subject=f"synthesis/{request.run}/{request.slot}",
        )
        await self.dependencies.publisher.event(event)
        await self._note(data)
        self.told(data)

    async def _put(self, value: Any) -> BlobRef:
        raw = msgspec.json.encode(value)
        return await asyncio.to_thread(self.dependencies.blobs.put, raw, "application/json")

    async def _get(self, blob: BlobRef) -> Any:
        return msgspec.json.decode(await asyncio.to_thread(self.dependencies.blobs.get, blob))

    async def _task(self, slot: _Slot) -> Task:
        assert slot.task is not None
        return msgspec.json.decode(await asyncio.to_thread(self.dependencies.blobs.get, slot.task), type=Task)

    async def _rollout(self, task: Task, blob: BlobRef, harness: str, sample: int) -> Any:
        request = RolloutRequest(
            rollout_id=rollout_id(self.wanted.run, task.task_id, harness, self.wanted.solver.name, sample),
            campaign=self.wanted.run,
            task=TaskRef(task_id=task.task_id, source=task.source, repo=task.repo, blob=blob),
            harness=harness,
            model=self.wanted.solver,
            sample=sample,
            domain=DOMAIN,
            budget=Budget(steps=20, wall_seconds=300.0),
            timeouts=Timeouts(grading=300.0),
        )
        return await run_to_outcome(request, self.dependencies)

    @asynccontextmanager
    async def _machine(self, request: SynthesisRequest) -> AsyncIterator[Machine]:
        labels = {"campaign": request.run, "purpose": "proof"}
        with classified():
            sandbox = await self.dependencies.sandboxes.create_sandbox(
                "host", cpu="1", memory="512Mi", labels=labels, ttl_seconds=300.0, timeout=120.0
            )
        try:
            yield SandboxMachine(sandbox)
        finally:
            await asyncio.shield(_deleted(sandbox.delete))


async def _deleted(delete: Callable[[], Awaitable[None]]) -> None:
    try:
        await delete()
    except Exception as error:
        log.warning("a sandbox of a proof is left to its time-to-live: %s", error)


def queue_of(run: str) -> Queue:
    """The queue of a run: one for each, as a process works for one run alone."""
    return Queue(kind="synthesis", domain=DOMAIN, priority=run)


def _entry(request: SynthesisRequest, occasion: str) -> QueueEntry:
    key = digest([request.run, request.slot, request.turn, request.step])
    return entry(
        queue_of(request.run), EntryAddress(request.run, key), occasion, msgspec.json.encode(request)
    )


def _sum(costs: list[float | None]) -> float | None:
    known = [cost for cost in costs if cost is not None]
    return sum(known) if len(known) == len(costs) else None

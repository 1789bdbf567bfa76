"""The steps of a synthesis run that cost something, each a request on a queue: any worker does it.

Ask the author, prove a draft, have it solved: one request, one event. The event is the request's answer, and
one of all is accepted, so a worker that is killed costs the step that it was doing, and nobody pays twice for
an answer that is in the log.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from orchard.pipelines.domains.claw import prompts
from orchard.pipelines.domains.claw.drafts import BadAnswer, Idea, TaskDraft, read_draft, read_idea, task_of
from orchard.pipelines.domains.claw.proof import Defect, graded, prove
from orchard.pipelines.values.continuations import run_to_outcome
from orchard.schemas.blobs import BlobRef
from orchard.schemas.campaigns import Budget, ModelSpec, RolloutRequest, TaskRef, Timeouts
from orchard.schemas.claw import BUNDLES, DOMAIN
from orchard.schemas.decoding import Unreadable, decode_whole
from orchard.schemas.events import Event, RolloutAborted, RolloutFinished, done_payload, make_event
from orchard.schemas.identity import digest, rollout_id
from orchard.schemas.llm_calls import ModelKind
from orchard.schemas.queues import Queue
from orchard.schemas.requests import read_synthesis_request
from orchard.schemas.subjects import answering
from orchard.schemas.synthesis import Check, SynthesisAction, SynthesisRequest, SynthesisStep
from orchard.schemas.tasks import Task
from orchard.storage.blobs import BlobStore
from orchard.storage.errors import StorageError
from orchard.streams.consumer import ClaimedRequest, PutOff, RetryPolicy
from orchard.streams.entries import EntryAddress, QueueEntry, entry, successor
from orchard.streams.errors import OutcomeRefused
from orchard.workers.attempts.dependencies import AttemptDependencies
from orchard.workers.episode.machine import Machine
from orchard.workers.episode.sandboxes import SandboxMachine, classified
from orchard.workers.failures import InfrastructureError
from orchard.workers.llm.answers import Completion
from orchard.workers.llm.errors import ContextLengthExceeded

log = logging.getLogger("orchard.synthesis")

QUEUE = Queue(kind="synthesis", domain=DOMAIN)
"""Queue of all runs whose models any worker reaches."""
ELSEWHERE_SECONDS = 2.0
"""Delay before a request that was claimed where its endpoint is not configured can be claimed again."""


def queue_of(run: str, author: ModelSpec) -> Queue:
    """The queue of a run: one of its own where the seeded author writes, which the process of the run serves
    for itself."""
    return Queue(kind=QUEUE.kind, domain=DOMAIN, priority=run) if is_seeded(author) else QUEUE


def is_seeded(author: ModelSpec) -> bool:
    return author.kind is ModelKind.ORACLE


def step_key(run: str, slot: int, turn: int, step: SynthesisAction) -> str:
    """Key of a step, on the queue and among the answers; versions before decision 0138 had others."""
    return digest(["step", run, slot, turn, step])


def step_event(run: str, data: SynthesisStep) -> Event:
    event = make_event(
        data,
        id=f"synthesis.{digest(f'{run}.{data.slot}.{data.turn}.{data.step}')}",
        source="orchard/synthesis",
        campaign=run,
        subject=f"synthesis/{run}/{data.slot}",
    )
    cause = answering(QUEUE.kind, step_key(run, data.slot, data.turn, data.step))
    return msgspec.structs.replace(event, causation_id=cause)


def step_entry(request: SynthesisRequest, occasion: str, fence: int = 0) -> QueueEntry:
    key = step_key(request.run, request.slot, request.turn, request.step)
    queue = queue_of(request.run, request.author)
    return entry(queue, EntryAddress(request.run, key, fence), occasion, msgspec.json.encode(request))


def task_by(author: ModelSpec, draft: TaskDraft) -> Task:
    """The task of a draft; one of the seeded author says so."""
    return task_of(draft, {"seeded": "yes"} if is_seeded(author) else {})


class Artefacts:
    """What the author wrote, in the blobs of a run."""

    def __init__(self, blobs: BlobStore) -> None:
        self._blobs = blobs

    async def put(self, value: Any) -> BlobRef:
        raw = msgspec.json.encode(value)
        return await asyncio.to_thread(self._blobs.put, raw, "application/json")

    async def get(self, blob: BlobRef) -> Any:
        return msgspec.json.decode(await asyncio.to_thread(self._blobs.get, blob))

    async def idea(self, blob: BlobRef) -> Idea:
        """The idea in the artefact of a proposal."""
        return msgspec.convert((await self.get(blob))["read"], Idea)

    async def draft(self, blob: BlobRef) -> TaskDraft:
        """The draft in the artefact of WRITE or REFINE."""
        return msgspec.convert((await self.get(blob))["read"], TaskDraft)

    async def task(self, blob: BlobRef) -> Task:
        return msgspec.json.decode(await asyncio.to_thread(self._blobs.get, blob), type=Task)


class StepWorker:
    """Handles requests for a step."""

    retries = RetryPolicy(on=(InfrastructureError, StorageError), first=5.0, most=5)

    def __init__(self, dependencies: AttemptDependencies) -> None:
        self._dependencies = dependencies
        self._artefacts = Artefacts(dependencies.blobs)

    def read(self, body: bytes) -> SynthesisRequest:
        return read_synthesis_request(body)

    def entry(self, request: SynthesisRequest, occasion: str) -> QueueEntry:
        return step_entry(request, occasion)

    async def handle(self, delivery: ClaimedRequest[SynthesisRequest]) -> PutOff | None:
        """Do the step and publish it, unless it is done."""
        request, publisher = delivery.request, self._dependencies.publisher
        key = step_key(request.run, request.slot, request.turn, request.step)
        if await publisher.answer(QUEUE.kind, key) is not None:
            return None
        for endpoint in _endpoints(request):
            if not self._dependencies.models.has(endpoint):
                again = self.entry(request, successor(delivery.claim.message_id))
                return PutOff(again, ELSEWHERE_SECONDS, f"no endpoint {endpoint!r} here")
            if rest := await self._dependencies.models.resting(endpoint):
                raise rest
        step = await delivery.run(self._done(request))
        try:
            await publisher.terminal(step_event(request.run, step))
        except OutcomeRefused as refused:
            log.info("step %s of slot %d comes too late: %s", request.step, request.slot, refused)
        return None

    async def _done(self, request: SynthesisRequest) -> SynthesisStep:
        match request.step:
            case SynthesisAction.PROPOSE:
                return await self._proposed(request)
            case SynthesisAction.PROVE:
                return await self._proven(request)
            case SynthesisAction.SOLVE:
                return await self._solved(request)
        return await self._written(request)

    async def _proposed(self, request: SynthesisRequest) -> SynthesisStep:
        known = await self._artefacts.get(request.known) if request.known else []
        return await self._asked(request, prompts.propose(request, known), read_idea)

    async def _written(self, request: SynthesisRequest) -> SynthesisStep:
        if request.step is SynthesisAction.WRITE:
            assert request.idea is not None
            asked = prompts.write(request, await self._artefacts.idea(request.idea))
        else:
            draft = await self._artefacts.draft(request.draft) if request.draft else None
            asked = prompts.refine(request, draft)
        return await self._asked(request, asked, read_draft)

    async def _asked(
        self, request: SynthesisRequest, asked: prompts.Messages, read: Callable[[str], Idea | TaskDraft]
    ) -> SynthesisStep:
        """Ask the author; the step with an artefact of prompt, answer and what was read from it."""
        answer = await self._answer(request, asked)
        found: Idea | TaskDraft | None = None
        fault: dict[str, Any] = {}
        try:
            found = read(answer.text)
        except BadAnswer as error:
            fault = {"check": Check.UNREADABLE, "detail": str(error)}
        return _step(
            request,
            artefact=await self._artefacts.put({"messages": asked, "answer": answer.text, "read": found}),
            model=request.author.name,
            model_kind=answer.model_kind,
            prompt_tokens=answer.usage.prompt_tokens,
            completion_tokens=answer.usage.completion_tokens,
            cost_usd=answer.cost_usd,
            seconds=answer.seconds,
            seeded_mistake=found.seeded_mistake if found else None,
            **fault,
        )

    async def _answer(self, request: SynthesisRequest, messages: prompts.Messages) -> Completion:
        try:
            return await self._dependencies.models.complete(
                request.author, messages, [], seed=request.seed, timeout=request.timeout_seconds
            )
        except ContextLengthExceeded as error:
            return Completion(text=f"(the author's context is too small: {error})")

    async def _proven(self, request: SynthesisRequest) -> SynthesisStep:
        """Prove a draft without a model."""
        draft = await self._draft(request)
        try:
            async with self._machine(request) as machine:
                caught = await prove(draft.case, machine, request.seed + request.slot)
        except Defect as defect:
            return _step(
                request, check=defect.check, detail=defect.detail, seeded_mistake=draft.seeded_mistake
            )
        return _step(
            request, detail=f"{caught} wrong solutions are caught", seeded_mistake=draft.seeded_mistake
        )

    async def _solved(self, request: SynthesisRequest) -> SynthesisStep:
        """Run the solver's rollouts, and grade them again."""
        draft = await self._draft(request)
        task = task_by(request.author, draft)
        blob = await self._artefacts.put(task)
        outcomes = [
            await self._rollout(request, task, blob, harness, sample)
            for harness in request.harnesses
            for sample in range(request.rollouts)
        ]
        runs = [outcome for outcome in outcomes if isinstance(outcome, RolloutFinished)]
        summary = [{"resolved": run.resolved, "reward": run.reward, "turns": run.turns} for run in runs]
        artefact = await self._artefacts.put({"rollouts": summary})
        try:
            await self._graded_again(request, draft, runs)
        except Defect as defect:
            return _step(
                request,
                check=defect.check,
                detail=defect.detail,
                artefact=artefact,
                seeded_mistake=draft.seeded_mistake,
            )
        passed = sum((run.reward or 0.0) > 0 for run in runs)
        return _step(
            request,
            detail=f"{passed} of {len(outcomes)} rollouts pass",
            artefact=artefact,
            model=request.solver.name,
            cost_usd=_sum([getattr(outcome, "cost_usd", None) for outcome in outcomes]),
            seeded_mistake=draft.seeded_mistake,
        )

    async def _graded_again(
        self, request: SynthesisRequest, draft: TaskDraft, runs: list[RolloutFinished]
    ) -> None:
        """Grade the rollouts again. Raises Defect where none is valid, or a grade changed."""
        bundles, rewards = [], []
        for run in runs:
            text = run.submission
            if run.submission_blob is not None:
                text = (await asyncio.to_thread(self._dependencies.blobs.get, run.submission_blob)).decode()
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

    async def _rollout(
        self, request: SynthesisRequest, task: Task, blob: BlobRef, harness: str, sample: int
    ) -> RolloutFinished | RolloutAborted:
        """The outcome of a rollout: that in the log, where a worker that was killed has come so far."""
        wanted = RolloutRequest(
            rollout_id=rollout_id(request.run, task.task_id, harness, request.solver.name, sample),
            campaign=request.run,
            task=TaskRef(task_id=task.task_id, source=task.source, repo=task.repo, blob=blob),
            harness=harness,
            model=request.solver,
            sample=sample,
            domain=DOMAIN,
            budget=Budget(steps=20, wall_seconds=300.0),
            timeouts=Timeouts(grading=300.0),
        )
        known = await self._dependencies.publisher.outcome(wanted.rollout_id)
        data = done_payload(known.event) if known is not None else None
        if isinstance(data, RolloutFinished | RolloutAborted):
            return data
        return await run_to_outcome(wanted, self._dependencies)

    async def _draft(self, request: SynthesisRequest) -> TaskDraft:
        assert request.draft is not None
        return await self._artefacts.draft(request.draft)

    @asynccontextmanager
    async def _machine(self, request: SynthesisRequest) -> AsyncIterator[Machine]:
        labels = {"campaign": request.run, "purpose": "proof"}
        with classified():
            sandbox = await self._dependencies.sandboxes.create_sandbox(
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


def _endpoints(request: SynthesisRequest) -> list[str]:
    """Endpoints that the step needs."""
    match request.step:
        case SynthesisAction.PROVE:
            return []
        case SynthesisAction.SOLVE:
            return [request.solver.endpoint]
    return [request.author.endpoint]


def _step(request: SynthesisRequest, **facts: Any) -> SynthesisStep:
    return SynthesisStep(slot=request.slot, turn=request.turn, step=request.step, **facts)


def _sum(costs: list[float | None]) -> float | None:
    known = [cost for cost in costs if cost is not None]
    return sum(known) if len(known) == len(costs) else None


def step_worker(dependencies: AttemptDependencies) -> StepWorker:
    """The factory of the handler, for a worker."""
    return StepWorker(dependencies)

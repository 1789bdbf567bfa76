"""The synthesis run: what each slot needs next, from its events alone, and the process that offers it.

Steps that cost something are requests, which any worker does (`steps.py`). All else follows from the log: the
filter of ideas, the end of a slot, the next request. Killed anywhere, the same command resumes. Which slots
are proposed, and which tasks are taken, depends on the seed and the answers, not on how steps overlap.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from math import ceil

import msgspec

from orchard.pipelines.domains.claw.drafts import Idea, words_of, wrong
from orchard.pipelines.domains.claw.report import Report
from orchard.pipelines.domains.claw.steps import (
    QUEUE,
    Artefacts,
    step_entry,
    step_event,
    step_key,
    task_by,
)
from orchard.pipelines.tasks.registry import TaskRegistry
from orchard.pipelines.tasks.validate import Validation
from orchard.schemas.blobs import BlobRef
from orchard.schemas.campaigns import ModelSpec
from orchard.schemas.events import Event, TaskValidated, payload
from orchard.schemas.subjects import EVENTS_PREFIX
from orchard.schemas.synthesis import Check, SynthesisAction, SynthesisRequest, SynthesisStep
from orchard.schemas.tasks import Task, task_hash
from orchard.storage.blobs import BlobStore
from orchard.streams.answers import OfferedRequests, RequestAnswer, working
from orchard.streams.connection import Connection
from orchard.streams.consumer import Consumer
from orchard.streams.entries import QueueEntry
from orchard.streams.errors import OutcomeRefused
from orchard.streams.publisher import Publisher
from orchard.streams.replay import replay

log = logging.getLogger("orchard.synthesis")

REFINEMENTS = 2
"""Times that an author may repair a draft."""
YIELD = 0.6
"""Share of proposals that are expected to be accepted; more are proposed where it was less."""
_WRITTEN = (SynthesisAction.WRITE, SynthesisAction.REFINE)
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
    """Steps that run at once in the process of the run; other workers do more."""
    most: int = 10
    """Proposals, at most, for each task that is wanted."""
    seconds: float = 600.0
    """Timeout of one call of the author."""


@dataclass
class SynthesisSlot:
    """One proposal and what became of it."""

    steps: list[SynthesisStep] = field(default_factory=list)
    """In the order of the log."""
    idea: Idea | None = None
    """The idea that was proposed."""

    def take(self, step: SynthesisStep) -> bool:
        """Add a step; False for one that is there, or that comes after the end."""
        if self.end or any((one.turn, one.step) == (step.turn, step.step) for one in self.steps):
            return False
        self.steps.append(step)
        return True

    @property
    def end(self) -> SynthesisAction | None:
        """ACCEPT or REJECT; None for an open slot."""
        return self.steps[-1].step if self.steps and self.steps[-1].step in _ENDS else None

    @property
    def known(self) -> str:
        """Text of its idea, which later ones must not repeat; empty until it has passed the filter."""
        passed = any(one.step is SynthesisAction.FILTER and one.check is None for one in self.steps)
        return f"{self.idea.title}: {self.idea.goal}" if passed and self.idea else ""

    @property
    def draft(self) -> BlobRef | None:
        """The newest draft that can be read."""
        written = [one for one in self.steps if one.step in _WRITTEN and one.check is None]
        return written[-1].artefact if written else None


def slots_wanted(goal: SynthesisGoal, slots: Mapping[int, SynthesisSlot]) -> int:
    """Number of slots that are proposed: more, when all have ended and too few were accepted."""
    count = 0
    while True:
        ends = [slots[at].end if at in slots else None for at in range(count)]
        left = goal.tasks - ends.count(SynthesisAction.ACCEPT)
        if None in ends or left <= 0 or count >= goal.most * goal.tasks:
            return count
        count += ceil(left / YIELD)


def next_of(
    goal: SynthesisGoal, at: int, slot: SynthesisSlot, known: Sequence[str]
) -> SynthesisRequest | SynthesisStep | None:
    """What a slot needs next: a request, or a step that follows from what is known; None at its end. `known`
    are the ideas of the slots before. The caller adds what is in blobs."""
    last = slot.steps[-1] if slot.steps else None
    ask = partial(
        SynthesisRequest,
        run=goal.run,
        seed=goal.seed,
        slot=at,
        turn=last.turn if last else 0,
        author=goal.author,
        solver=goal.solver,
        rollouts=goal.rollouts,
        harnesses=goal.harnesses,
        timeout_seconds=goal.seconds,
    )
    if last is None:
        return ask(step=SynthesisAction.PROPOSE)
    say = partial(SynthesisStep, slot=at, turn=last.turn, seeded_mistake=last.seeded_mistake)
    proposing = last.step in (SynthesisAction.PROPOSE, SynthesisAction.FILTER)
    if last.check is not None and last.step not in _ENDS:
        if proposing or last.turn >= REFINEMENTS:
            return say(step=SynthesisAction.REJECT, check=last.check, detail=last.detail)
        draft = None if last.step in _WRITTEN else slot.draft
        return ask(step=SynthesisAction.REFINE, turn=last.turn + 1, draft=draft, defect=last.detail)
    match last.step:
        case SynthesisAction.PROPOSE:
            assert slot.idea is not None
            fault = wrong(slot.idea, [words_of(text) for text in known])
            check, detail = fault or (None, "")
            return say(step=SynthesisAction.FILTER, check=check, detail=detail)
        case SynthesisAction.FILTER:
            return ask(step=SynthesisAction.WRITE, idea=slot.steps[0].artefact)
        case SynthesisAction.WRITE | SynthesisAction.REFINE:
            return ask(step=SynthesisAction.PROVE, draft=slot.draft)
        case SynthesisAction.PROVE:
            return ask(step=SynthesisAction.SOLVE, draft=slot.draft)
        case SynthesisAction.SOLVE:
            return say(step=SynthesisAction.ACCEPT)
    return None


@dataclass
class Run:
    """Offers the steps of one run and waits for their answers; all it knows is in the log."""

    connection: Connection
    blobs: BlobStore
    wanted: SynthesisGoal
    told: Callable[[SynthesisStep], None] = lambda _: None
    """Told of each step, those of earlier processes too."""

    def __post_init__(self) -> None:
        self._publisher = Publisher(self.connection)
        self._artefacts = Artefacts(self.blobs)
        self._offered = OfferedRequests(self.connection, QUEUE.kind)
        self._requests: dict[str, SynthesisRequest] = {}
        self._slots: dict[int, SynthesisSlot] = {}

    async def make(self, consumer: Consumer) -> list[Task]:
        """Run until enough tasks are accepted; returns them in the order of their slots, already in the
        registry. `consumer` works on `queue_of` the run, as other workers may."""
        patterns = [
            f"{EVENTS_PREFIX}.answered.{QUEUE.kind}.>",
            f"{EVENTS_PREFIX}.{self.wanted.run}.*.synthesis.step",  # of versions before decision 0138
        ]
        async for stored in replay(self.connection, subjects=patterns):
            if stored.event is not None and stored.event.campaign == self.wanted.run:
                await self._take(stored.event)
        await self._advance()
        async with working(self._offered, consumer), aclosing(self._offered.answers()) as answers:
            async for answer in answers:
                await self._answered(answer)
                await self._advance()
        return await self._register()

    @property
    def report(self) -> Report:
        """The report over all finished steps."""
        return Report([step for slot in self._slots.values() for step in slot.steps])

    async def _take(self, event: Event) -> None:
        step = payload(event)
        if not isinstance(step, SynthesisStep):
            return
        slot = self._slots.setdefault(step.slot, SynthesisSlot())
        if not slot.take(step):
            return
        if step.step is SynthesisAction.PROPOSE and step.check is None and step.artefact is not None:
            slot.idea = await self._artefacts.idea(step.artefact)
        self.told(step)

    async def _advance(self) -> None:
        """Publish what follows from the log, and offer the steps that are needed next."""
        new: dict[str, SynthesisRequest] = {}
        at, known = 0, list[str]()
        count = slots_wanted(self.wanted, self._slots)
        while at < count:
            slot = self._slots.get(at, SynthesisSlot())
            found = next_of(self.wanted, at, slot, known)
            if isinstance(found, SynthesisStep):
                await self._publish(found)
                count = slots_wanted(self.wanted, self._slots)
                continue
            if found is not None:
                new[step_key(found.run, found.slot, found.turn, found.step)] = found
            if not slot.steps:
                break  # the ideas before it are what the author is told
            if slot.known:
                known.append(slot.known)
            at += 1
        await self._offer({key: one for key, one in new.items() if key not in self._requests}, known)

    async def _offer(self, requests: dict[str, SynthesisRequest], known: Sequence[str]) -> None:
        for key, one in requests.items():
            if one.step is SynthesisAction.PROPOSE and known:
                requests[key] = msgspec.structs.replace(one, known=await self._artefacts.put(known))
        self._requests |= requests

        def entry(key: str, fence: int, occasion: str) -> QueueEntry:
            return step_entry(requests[key], occasion, fence)

        if requests:
            await self._offered.offer(list(requests), entry)

    async def _answered(self, answer: RequestAnswer) -> None:
        """Take a step in. A slot whose step is a dead letter is given up, or the run would never end."""
        event, request = answer.event, self._requests[answer.key]
        if event is None and (stored := await self._publisher.answer(QUEUE.kind, answer.key)) is not None:
            event = stored.event  # it had come before the request was offered
        if event is not None:
            await self._take(event)
            return
        log.error("slot %d of %s is given up: %s", request.slot, request.run, answer.reason)
        await self._publish(
            SynthesisStep(
                slot=request.slot,
                turn=request.turn,
                step=SynthesisAction.REJECT,
                check=Check.INFRASTRUCTURE,
                detail=answer.reason,
            )
        )

    async def _publish(self, step: SynthesisStep) -> None:
        """Publish a step that costs nothing, unless another process of the run has."""
        if step.step is SynthesisAction.ACCEPT:
            blob = self._slots[step.slot].draft
            assert blob is not None
            task = task_by(self.wanted.author, await self._artefacts.draft(blob))
            step = msgspec.structs.replace(
                step, artefact=await self._artefacts.put(task), task_id=task.task_id
            )
        event = step_event(self.wanted.run, step)
        try:
            await self._publisher.terminal(event)
        except OutcomeRefused as refused:
            event = refused.event or event
        await self._take(event)

    async def _register(self) -> list[Task]:
        """Register the tasks that are taken, the first of those that were accepted."""
        accepted = [
            slot.steps[-1].artefact
            for _, slot in sorted(self._slots.items())
            if slot.end is SynthesisAction.ACCEPT
        ]
        if len(accepted) < self.wanted.tasks:
            log.warning("%d proposals gave %d tasks: given up", len(self._slots), len(accepted))
        tasks = [await self._artefacts.task(blob) for blob in accepted[: self.wanted.tasks] if blob]
        registry = TaskRegistry(self._publisher, self.blobs)
        await registry.register(tasks)
        for task in tasks:
            proven = TaskValidated(
                task_id=task.task_id, task_hash=task_hash(task), runs=self.wanted.rollouts, seconds=0.0
            )
            await registry.record(Validation(original=task, task=task, event=proven))
        return tasks

"""The coordinator: turns a run's finished rollouts into groups, and missing groups into rollout requests.

Its memory is the log. Killed anywhere, it folds the events again and resumes: a rollout's id follows
from its slot, a prompt has one decision by compare-and-set, and requests without an outcome are
offered again to the queue, which refuses duplicates.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from uuid import uuid4

import msgspec

from orchard.pipelines.campaigns.commands import requested_event
from orchard.pipelines.rl.bar import Assemble, Generate, GiveUp
from orchard.pipelines.rl.deciding import decide, skipped
from orchard.pipelines.rl.evaluating import Evaluator
from orchard.pipelines.rl.frugal import Grown, OneClass
from orchard.pipelines.rl.plan import RunPlan, plan_hash
from orchard.pipelines.rl.progress import RunProgress, SlotState
from orchard.schemas.events import Event, make_event, payload
from orchard.schemas.groups import (
    DropReason,
    GroupAssembled,
    GroupDropped,
    GroupOutcome,
    PromptFailed,
    PromptSkipped,
    RunStarted,
)
from orchard.schemas.outcomes import ExitStatus
from orchard.schemas.subjects import EVENTS_PREFIX, decided_subject, type_subjects
from orchard.storage.blobs import BlobStore
from orchard.streams import names
from orchard.streams.connection import Connection
from orchard.streams.enqueue import EnqueueResult
from orchard.streams.entries import FIRST, QueueEntry, rollout_entry
from orchard.streams.publisher import Publisher
from orchard.streams.reading import bounds, next_message
from orchard.streams.records import StoredEvent
from orchard.streams.replay import replay_batches
from orchard.workers.attempts.reopen import open_at, opened

SOURCE = "orchard/rl"
FULL_QUEUE_PAUSE = 1.0

log = logging.getLogger("orchard.rl")


class RunError(ValueError):
    """A run cannot be started or resumed; the message is one sentence."""

    exit_code = 1
    """Exit code of the command that it ends."""


async def begin(connection: Connection, blobs: BlobStore, plan: RunPlan) -> int:
    """Publish the run's start unless the log has it; returns the sequence its events begin at.

    Raises RunError when the name belongs to a run with another plan.
    """
    digest = plan_hash(plan)
    blob = await asyncio.to_thread(blobs.put, msgspec.json.encode(plan), "application/json")
    started = make_event(
        RunStarted(run=plan.name, plan=blob, plan_hash=digest, tasks=len(plan.tasks), method=plan.method),
        id=f"{plan.name}.run.started",
        source=SOURCE,
        campaign=plan.name,
    )
    await refuse_archived(connection, plan.name)
    known = await beginning(connection, plan.name)
    if known is None:
        return await Publisher(connection).event(started)
    if known[0].plan_hash != digest:
        raise RunError(
            f"run {plan.name!r} exists with another plan: choose another name, or repeat its settings"
        )
    return known[1]


async def beginning(connection: Connection, run: str) -> tuple[RunStarted, int] | None:
    """A run's start in the log, and its sequence. Raises RunError where it cannot be read."""
    for subject in type_subjects(run, "run.started"):
        if (first := await next_message(connection, names.EVENTS, 1, subject)) is not None:
            break
    else:
        return None
    stored = first.as_event
    started = payload(stored.event) if stored.event else None
    if not isinstance(started, RunStarted):
        raise RunError(f"the first event of run {run!r} cannot be read: choose another name")
    return started, first.sequence


async def refuse_archived(connection: Connection, run: str) -> None:
    """Raise RunError for a run whose events have left the stream: it would fold nothing and begin again."""
    subject = f"{EVENTS_PREFIX}.{run}.*.campaign.archived"
    if await next_message(connection, names.EVENTS, 1, subject) is not None:
        raise RunError(f"run {run!r} is finished and archived: choose another name")


def subjects(run: str) -> list[str]:
    """Subjects of the events that a run's progress is folded from."""
    types = ("rollout.requested", "group.dropped", "policy.updated", "policy.evaluated", "budget.raised")
    return [
        *(f"{EVENTS_PREFIX}.{run}.*.{kind}" for kind in types),
        f"{EVENTS_PREFIX}.done.>",
        decided_subject(run, "*"),
    ]


class Coordinator:
    """Drives one run until the trainer has had all its groups. Two at once do no harm, but double the
    work."""

    def __init__(
        self,
        connection: Connection,
        plan: RunPlan,
        served: Callable[[int], Awaitable[None]] | None = None,
        *,
        blobs: BlobStore | None = None,
    ) -> None:
        """`served` waits until the engine serves a policy version: rollouts are requested once it serves
        the log's newest. A plan with held-out tasks needs `blobs`."""
        self._served = served
        self.progress = RunProgress(plan)
        self._evaluator = None
        if plan.eval_every:
            assert blobs is not None
            self._evaluator = Evaluator(connection, blobs, self.progress, self._offer)
        self._plan = plan
        self._connection = connection
        self._publisher = Publisher(connection)
        self._look: set[int] = set()
        """Prompts with events since they were last decided."""
        self._seen = 0

    async def run(self, start: int) -> None:
        """Fold the log from sequence `start`, then follow it and act until the run is finished. Waits
        while the queue is full. Raises the errors of Publisher."""
        last = (await bounds(self._connection, names.EVENTS)).last
        async for batch in replay_batches(self._connection, start, subjects=subjects(self._plan.name)):
            self._fold(batch)
        await self._offer_open()
        await self._act()
        if self._finished:
            return
        async for batch in self._following(max(start, last + 1)):
            self._fold(batch)
            await self._act()
            if self._finished:
                return

    @property
    def _finished(self) -> bool:
        return self.progress.finished and not self.progress.evaluation_due

    def _following(self, start: int) -> AsyncIterator[list[StoredEvent]]:
        return replay_batches(self._connection, start, subjects=subjects(self._plan.name), follow=True)

    def _fold(self, batch: Iterable[StoredEvent]) -> None:
        for stored in batch:
            if stored.sequence > self._seen and stored.fact is not None:
                self._take(stored.fact, stored.sequence)
            self._seen = max(self._seen, stored.sequence)

    def _take(self, event: Event, sequence: int) -> None:
        if self._evaluator is not None:
            self._evaluator.apply(event)
        prompt = self.progress.apply(event, sequence)
        if prompt is not None:
            self._look.add(prompt)

    async def _act(self) -> None:
        """Decide what changed, drop what does not train, request what is missing."""
        while self._look:
            prompt = self._look.pop()
            if not self.progress.prompts[prompt].decided:
                await self._decide(prompt)
        if not self._plan.keep_degenerate:
            for group in self.progress.ready:
                if group.degenerate:
                    await self._drop(group)
        await self._raise_budget()
        if self._evaluator is not None:
            await self._evaluator.act(self._served)
        await self._begin_prompts()

    async def _raise_budget(self) -> None:
        """Raise the budget before any prompt with the new one is opened, so that all of its rollouts have
        the same."""
        raised = self.progress.raise_due()
        if raised is None:
            return
        log.info(
            "score %.3f after %.3f: %d steps from prompt %d on",
            *(raised.score, raised.before, raised.steps, raised.prompt),
        )
        event = make_event(
            raised, id=f"{self._plan.name}.budget.raised", source=SOURCE, campaign=self._plan.name
        )
        self.progress.apply(event, await self._publisher.event(event))

    async def _decide(self, prompt: int) -> None:
        match decide(self.progress, prompt):
            case Generate(slots=slots):
                await self._policy_served()
                for slot in slots:
                    await self._generate(prompt, slot)
            case Assemble() as group:
                await self._record(self._group(prompt, group), prompt)
            case (Grown() | OneClass()) as group, carried:
                await self._record(self._frugal_group(prompt, group, carried), prompt)
            case GiveUp(causes=causes):
                task = self._plan.task_of(prompt).task_id
                failure = PromptFailed(run=self._plan.name, prompt=prompt, task_id=task, causes=causes)
                log.warning("prompt %d (%s) fails: %s", prompt, task, ", ".join(causes))
                await self._record(failure, prompt)

    async def _policy_served(self) -> None:
        """Wait until the engine serves the newest policy, which samples the next rollouts."""
        if self._served is not None and not self.progress.finished:
            await self._served(self.progress.version)

    async def _generate(self, prompt: int, slot: int) -> None:
        place = self.progress.prompts[prompt].places.get(slot)
        if place is not None and place.outcomes:
            await self._reopen(prompt, slot, place)
            return
        await self._ask(prompt, slot)

    async def _ask(self, prompt: int, slot: int) -> None:
        """Request a slot's first rollout: first in the log, then in the queue, so that every outcome is
        of a rollout the log knows."""
        request = self.progress.request(prompt, slot)
        event = requested_event(request)
        self.progress.apply(event, await self._publisher.event(event))
        await self._offer([rollout_entry(request, FIRST)])

    async def _reopen(self, prompt: int, slot: int, place: SlotState) -> None:
        """Reopen a rollout without a reward: first in the log, because its sequence is the new fence."""
        again = await opened(
            self._publisher,
            [(self.progress.request(prompt, slot), await self._publisher.outcome(place.rollout_id))],
            reason=f"slot {slot} of prompt {prompt} is refilled",
            source=SOURCE,
            ended=() if self._plan.unanswered else (ExitStatus.UNANSWERED,),
        )
        if again:  # else somebody else has; the log will tell
            place.reopened.add(place.last)
        await self._offer([rollout_entry(request, FIRST) for request in again])

    async def _offer_open(self) -> None:
        """Offer all rollouts without an outcome that are on no queue: a coordinator may have died between
        the log and the queue."""
        occasion = f"restart-{uuid4().hex}"
        for number in self.progress.undecided:
            for slot, place in self.progress.prompts[number].places.items():
                if not place.running:
                    continue
                fence = open_at(await self._publisher.outcome(place.rollout_id))
                if fence is not None:
                    request = msgspec.structs.replace(self.progress.request(number, slot), fence=fence)
                    await self._offer([rollout_entry(request, occasion)])

    async def _offer(self, entries: Sequence[QueueEntry]) -> None:
        """Enqueue the entries that are on no queue; waits while the queue is full."""
        while entries:
            placed = await self._publisher.offer_absent(entries)
            entries = [
                one
                for one, answer in zip(entries, placed, strict=True)
                if answer.result is EnqueueResult.FULL
            ]
            if entries:
                await asyncio.sleep(FULL_QUEUE_PAUSE)

    def _group(self, prompt: int, group: Assemble) -> GroupAssembled:
        return self._assembled(
            prompt,
            group.outcome,
            [(prompt, slot) for slot in group.slots],
            positive=group.positive,
            degenerate=group.degenerate,
        )

    def _frugal_group(
        self, prompt: int, group: Grown | OneClass, carried: Sequence[tuple[int, int]]
    ) -> GroupAssembled:
        """`carried` are the slots that earlier prompts of the task left over, in the order of the
        decision."""
        grown = isinstance(group, Grown)
        own = [(prompt, slot) for slot in group.slots] if isinstance(group, Grown) else []
        taken = list(carried[: group.carried]) if isinstance(group, Grown) else []
        made = self._assembled(
            prompt,
            GroupOutcome.MIXED if grown else GroupOutcome.ONE_CLASS,
            [*own, *taken],
            positive=group.positive,
            degenerate=not grown,
        )
        return msgspec.structs.replace(
            made, reason=group.reason, gain=group.gain, rate=group.rate, carried=len(taken)
        )

    def _assembled(
        self,
        prompt: int,
        outcome: GroupOutcome,
        places: Iterable[tuple[int, int]],
        *,
        positive: int,
        degenerate: bool,
    ) -> GroupAssembled:
        tried = [
            rollout
            for place in self.progress.prompts[prompt].places.values()
            for rollout in place.outcomes.values()
        ]
        graded = [rollout for rollout in tried if rollout.reward is not None]
        known, chosen = self.progress, list(places)
        return GroupAssembled(
            run=self._plan.name,
            group_id=f"{self._plan.name}.{prompt}",
            prompt=prompt,
            task_id=self._plan.task_of(prompt).task_id,
            outcome=outcome,
            members=tuple(known.member(*place) for place in chosen),
            untrained=tuple(known.member(*place).rollout_id for place in chosen if not known.trains(*place)),
            positive=positive,
            degenerate=degenerate,
            generated=len(graded),
            aborted=len(tried) - len(graded),
            generated_tokens=sum(rollout.tokens or 0 for rollout in graded),
            protected=known.labels(chosen),
        )

    async def _record(self, data: GroupAssembled | PromptFailed | PromptSkipped, prompt: int) -> None:
        """Store the decision; where another coordinator was first, that decision holds."""
        event = make_event(
            data,
            id=f"{self._plan.name}.decided.{prompt}",
            source=SOURCE,
            campaign=self._plan.name,
            subject=f"prompts/{self._plan.name}/{prompt}",
        )
        other = await self._publisher.decision(event)
        standing = event if other is None else other.event
        if standing is not None:
            self.progress.apply(standing, 0)

    async def _drop(self, group: GroupAssembled) -> None:
        event = make_event(
            GroupDropped(run=self._plan.name, group_id=group.group_id, reason=DropReason.DEGENERATE),
            id=f"{group.group_id}.dropped",
            source=SOURCE,
            campaign=self._plan.name,
        )
        await self._publisher.event(event)
        self.progress.apply(event, 0)

    async def _begin_prompts(self) -> None:
        progress = self.progress
        opening = self._plan.prompts_to_open(
            trained=len(progress.trained),
            ready=len(progress.ready),
            undecided=len(progress.undecided),
            in_flight=progress.in_flight,
        )
        prompt = max(progress.prompts, default=-1) + 1
        while opening > 0:
            if (skip := skipped(progress, prompt)) is not None:
                await self._record(skip, prompt)
            else:
                await self._policy_served()
                for slot in range(self._plan.first):
                    await self._ask(prompt, slot)
                opening -= 1
            prompt += 1

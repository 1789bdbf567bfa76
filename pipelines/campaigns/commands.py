"""Campaigns as actions: submit, pause, resume, cancel. Each can be killed and run again.

Submitting and resuming are walks over the campaign's requests in a fixed order; the cursors live in the
campaign's key. The queue itself refuses a request that is queued or running, and the fence on the terminal
event lets one outcome through.
"""

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterable
from dataclasses import dataclass

import msgspec

from orchard.pipelines.campaigns.ending import abort, clear
from orchard.pipelines.campaigns.spending import how_to_go_on, pause_reason
from orchard.schemas.campaigns import (
    CAMPAIGN_MOVES,
    CampaignRecord,
    CampaignSpec,
    CampaignState,
    RolloutRequest,
    check_cap,
    rollout_request,
    rollout_requests,
    spec_hash,
)
from orchard.schemas.events import CampaignSubmitted, Event, make_event
from orchard.schemas.requests import check_limits
from orchard.storage.blobs import BlobStore
from orchard.storage.spending import Spent, spent_now
from orchard.streams.campaigns import CampaignBook, CampaignEntry, state_changed
from orchard.streams.connection import Connection
from orchard.streams.enqueue import EnqueueResult
from orchard.streams.entries import FIRST, QueueEntry, in_round, rollout_entry
from orchard.streams.event_streams import usable_streams
from orchard.streams.publisher import Publisher
from orchard.streams.queued import running_now
from orchard.workers.attempts.reopen import open_at, opened
from orchard.workers.harnesses import built_in_names, get_harness, version_of

BATCH = 500
SOURCE = "orchard/campaigns"
FULL_QUEUE_PAUSE = 1.0


class CampaignError(ValueError):
    pass


class OtherPlan(CampaignError):
    """The campaign's name is taken by one with other tasks or settings."""


@dataclass(frozen=True)
class OfferProgress:
    """Progress of a submit or resume: `done` of `total` rollouts considered, `offered` of them enqueued."""

    done: int
    total: int
    offered: int
    waiting: bool = False
    """The queue is full: workers must catch up first."""


class Campaigns:
    """The actions, over one connection and one blob store."""

    def __init__(self, connection: Connection, blobs: BlobStore, submitter: str = "") -> None:
        """Makes the actions of a user; new campaigns have the `submitter`."""
        self._connection = connection
        self._publisher = Publisher(connection)
        self._book = CampaignBook(connection)
        self._blobs = blobs
        self._submitter = submitter

    async def submit(self, spec: CampaignSpec, *, planned: int | None = None) -> AsyncIterator[OfferProgress]:
        """Offer every rollout of `spec` that was not offered yet; yields after each batch. `planned` is the
        number of rollouts that later calls of `grow` bring it to; None: its own.

        Raises CampaignError when the name is taken by another plan, or the campaign is not running.
        """
        known = await self._book.get(spec.name)
        spec = await self._as_planned(spec, known)
        record, revision = await self._open(spec, known, planned)
        offered = record.offered
        yield OfferProgress(offered, spec.size, 0)
        for batch in _batches(rollout_requests(spec, offered)):
            await self._publisher.events([requested_event(request) for request in batch])
            async for _, full in self._offer([rollout_entry(request, FIRST) for request in batch]):
                yield OfferProgress(offered, spec.size, offered - record.offered, waiting=full)
            offered += len(batch)
            current = msgspec.structs.replace(record, offered=offered)
            revision = await self._book.update(spec.name, current, revision)
            yield OfferProgress(offered, spec.size, offered - record.offered)

    async def grow(self, spec: CampaignSpec, *, planned: int | None = None) -> AsyncIterator[OfferProgress]:
        """Submit `spec`, or add the tasks that it has beyond those of the campaign of its name; yields as
        `submit` does, which has `planned`. A call after a kill goes on.

        Raises CampaignError as `submit` does, also where `spec` differs in more than further tasks.
        """
        known = await self._book.get(spec.name)
        spec = await self._as_planned(spec, known)
        if known is None or (known[0].spec_hash == spec_hash(spec) and known[0].resumed is None):
            async for step in self.submit(spec, planned=planned):
                yield step
            return
        record, revision = known
        _check_running(spec.name, record)
        if record.spec_hash != spec_hash(spec):
            before = await self._spec(record)
            added = spec.tasks[len(before.tasks) :]
            if not added or msgspec.structs.replace(before, tasks=(*before.tasks, *added)) != spec:
                raise _other_plan(spec.name)
            _check_distinct(spec)
            blob = await asyncio.to_thread(self._blobs.put, msgspec.json.encode(spec), "application/json")
            record = msgspec.structs.replace(
                record,
                spec=blob,
                spec_hash=spec_hash(spec),
                size=spec.size,
                offered=0,
                resumed=0,
                rounds=record.rounds + 1,
                planned=planned,
            )
            revision = await self._book.update(spec.name, record, revision)
        if record.resumed == 0:
            await self._publisher.event(submitted_event(spec, record))
        async for step in self._offer_open(spec.name, record, revision, aborted=False):
            yield step

    async def _as_planned(self, spec: CampaignSpec, known: tuple[CampaignRecord, int] | None) -> CampaignSpec:
        """A plan keeps the team, the versions of harnesses and the event streams that it was made with."""
        if known is None:
            streams = await usable_streams(self._connection)
            return msgspec.structs.replace(
                spec, harness_versions=planned_versions(spec), event_streams=streams
            )
        plan = await self._spec(known[0])
        return msgspec.structs.replace(
            spec,
            harness_versions=plan.harness_versions,
            team=plan.team,
            event_streams=plan.event_streams,
        )

    async def _open(
        self, spec: CampaignSpec, known: tuple[CampaignRecord, int] | None, planned: int | None
    ) -> tuple[CampaignRecord, int]:
        if known is None:
            _check_distinct(spec)
        for model in spec.models:
            try:
                check_limits(rollout_request(spec, (0, spec.tasks[0], spec.harnesses[0], model)))
            except ValueError as error:
                raise CampaignError(str(error)) from error
        digest = spec_hash(spec)
        blob = await asyncio.to_thread(self._blobs.put, msgspec.json.encode(spec), "application/json")
        if known is None:
            record = CampaignRecord(
                spec=blob,
                spec_hash=digest,
                size=spec.size,
                queue=spec.queue.consumer,
                max_cost_usd=spec.max_cost_usd,
                submitter=self._submitter,
                team=spec.team,
                planned=planned,
            )
            known = record, await self._book.create(spec.name, record)
        record, revision = known
        if record.spec_hash != digest:
            raise _other_plan(spec.name)
        _check_running(spec.name, record)
        if record.planned != planned:
            record = msgspec.structs.replace(record, planned=planned)
            revision = await self._book.update(spec.name, record, revision)
        if record.offered == 0:
            await self._publisher.event(submitted_event(spec, record))
        return record, revision

    async def _offer(
        self, entries: list[QueueEntry], reopened: Collection[str] = ()
    ) -> AsyncIterator[tuple[int, bool]]:
        """Enqueue those that are in no queue; yields how many so far and whether the queue is full, at
        last (how many, False). No earlier entry can be that of a rollout that was `reopened`: one that is
        delayed was claimed and put off at once."""
        stored = 0
        while True:
            placed = await self._publisher.offer_absent(entries)
            stored += sum(
                one.result is EnqueueResult.STORED
                or (one.result is EnqueueResult.OCCUPIED and entry.address.key in reopened)
                for entry, one in zip(entries, placed, strict=True)
            )
            entries = [
                entry for entry, one in zip(entries, placed, strict=True) if one.result is EnqueueResult.FULL
            ]
            yield stored, bool(entries)
            if not entries:
                return
            await asyncio.sleep(FULL_QUEUE_PAUSE)

    async def pause(self, name: str) -> None:
        """Stop starting rollouts; running ones finish. Requests stay queued until a worker that claims
        one releases it."""
        await self._move(name, CampaignState.PAUSED)

    async def cancel(self, name: str) -> AsyncIterator[OfferProgress]:
        """Stop at once: workers interrupt the running attempts and end their rollouts; all others abort
        here with cause cancelled, and their requests leave the queue. A call after a kill resumes.
        `reconciling` ends what a dead worker held."""
        record = await self._move(name, CampaignState.CANCELLED)
        spec = await self._spec(record)
        running = await running_now(self._connection, name)
        done = ended = 0
        for batch in _batches(itertools.islice(rollout_requests(spec), record.offered)):
            waiting = [request for request in batch if request.rollout_id not in running]
            ended += await abort(self._publisher, waiting, SOURCE)
            done += len(batch)
            yield OfferProgress(done, record.offered, ended)
        await clear(self._connection, self._publisher, name)

    async def resume(
        self, name: str, *, aborted: bool = True, max_cost_usd: float | None = None
    ) -> AsyncIterator[OfferProgress]:
        """Resume: offer every open rollout that is in no queue, and with `aborted` reopen what
        infrastructure aborted. Rollouts with an outcome are never touched, queued and running ones are
        left alone. A call after a kill resumes. `max_cost_usd` is the cap from now on, 0 for none;
        None leaves it. Calls so far whose cost is not known are let pass. Raises CampaignError where
        the campaign has cost as much already, StorageError."""
        record, revision = await self._begin_resume(name, max_cost_usd)
        async for step in self._offer_open(name, record, revision, aborted=aborted):
            yield step

    async def _offer_open(
        self, name: str, record: CampaignRecord, revision: int, *, aborted: bool
    ) -> AsyncIterator[OfferProgress]:
        """Offer every open rollout that is in no queue, from `record.resumed` on."""
        spec = await self._spec(record)
        done = first = record.resumed or 0
        offered = 0
        # A submit that was killed has requests the queue never saw, and the log neither.
        for batch in _batches(rollout_requests(spec, first)):
            unknown = batch[max(record.offered - done, 0) :]
            await self._publisher.events([requested_event(request) for request in unknown])
            stored = 0
            entries, reopened = await self._wanted(batch, aborted, record.rounds)
            async for stored, full in self._offer(entries, reopened):
                yield OfferProgress(done, spec.size, offered + stored, waiting=full)
            done += len(batch)
            offered += stored
            at = msgspec.structs.replace(record, resumed=done, offered=max(record.offered, done))
            revision = await self._book.update(name, at, revision)
            yield OfferProgress(done, spec.size, offered)
        over = msgspec.structs.replace(record, resumed=None, offered=spec.size)
        await self._book.update(name, over, revision)

    async def _begin_resume(self, name: str, max_cost_usd: float | None) -> tuple[CampaignRecord, int]:
        """Set the campaign running: in a new round from its first rollout on, or in the round that was
        killed."""
        record, revision = await self._find(name)
        if record.state is CampaignState.ARCHIVED:
            raise CampaignError(_archived(name))
        cap = record.max_cost_usd if max_cost_usd is None else max_cost_usd or None
        try:
            check_cap(cap)
        except ValueError as error:
            raise CampaignError(str(error)) from error
        spent = await self._spent(name) if cap is not None else Spent()
        unpriced = max(spent.unpriced, record.unpriced or 0) or None
        capped = msgspec.structs.replace(record, max_cost_usd=cap, unpriced=unpriced)
        if over := pause_reason(capped, spent):
            raise CampaignError(
                f"campaign {name!r} stays as it is, because {over}: `orchard resume {name} --max-cost USD` "
                "goes on with a higher cap"
            )
        if capped == record and record.state is CampaignState.RUNNING and record.resumed is not None:
            return record, revision
        await self._move(name, CampaignState.RUNNING, resumed=0, max_cost_usd=cap, unpriced=unpriced)
        return await self._find(name)

    async def _spent(self, name: str) -> Spent:
        return await spent_now(self._connection, self._blobs.url, name)

    async def _wanted(
        self, batch: list[RolloutRequest], aborted: bool, rounds: int
    ) -> tuple[list[QueueEntry], set[str]]:
        """Entries for those of the batch that are open or, with `aborted`, are opened again by this, and the
        ids of the latter."""
        newest = await self._publisher.outcomes([request.rollout_id for request in batch])
        again = await opened(
            self._publisher,
            [
                (request, last)
                for request, last in zip(batch, newest, strict=True)
                if aborted or open_at(last) is not None
            ],
            reason=f"resumed, round {rounds}",
            source=SOURCE,
        )
        ended = {one.rollout_id for one, last in zip(batch, newest, strict=True) if open_at(last) is None}
        return [rollout_entry(request, in_round(rounds)) for request in again], ended

    async def _spec(self, record: CampaignRecord) -> CampaignSpec:
        raw = await asyncio.to_thread(self._blobs.get, record.spec)
        return msgspec.json.decode(raw, type=CampaignSpec)

    async def _find(self, name: str) -> tuple[CampaignRecord, int]:
        known = await self._book.get(name)
        if known is None:
            raise CampaignError(f"there is no campaign {name!r}: `orchard status` lists them")
        return known

    async def _move(
        self, name: str, state: CampaignState, resumed: int | None = None, **changes: float | int | None
    ) -> CampaignRecord:
        """Change the state and these fields by compare-and-set; a move that CAMPAIGN_MOVES does not
        permit raises. With `resumed` a new round begins."""
        record, revision = await self._find(name)
        if record.state is CampaignState.ARCHIVED:
            raise CampaignError(_archived(name))
        if state is not record.state and state not in CAMPAIGN_MOVES[record.state]:
            raise CampaignError(f"campaign {name!r} is {record.state} and cannot become {state}")
        rounds = record.rounds + (0 if resumed is None else 1)
        reason = record.reason if state is record.state else None
        moved = msgspec.structs.replace(
            record, state=state, rounds=rounds, resumed=resumed, reason=reason, **changes
        )
        revision = await self._book.update(name, moved, revision)
        await self._publisher.event(state_changed(CampaignEntry(name, moved, revision), record.state, SOURCE))
        return moved


def planned_versions(spec: CampaignSpec) -> dict[str, str]:
    """Versions of the harnesses that have one, as installed here. Raises UnknownHarness."""
    names = set(spec.harnesses) & set(built_in_names())
    versions = {name: version_of(get_harness(name))[0] for name in names}
    return {name: version for name, version in versions.items() if version is not None}


def _check_distinct(spec: CampaignSpec) -> None:
    """Raise CampaignError where two slots would be one rollout."""
    for what, names in (
        ("task", [task.task_id for task in spec.tasks]),
        ("harness", spec.harnesses),
        ("model", [model.name for model in spec.models]),
    ):
        if twice := [name for name, count in Counter(names).items() if count > 1]:
            raise CampaignError(
                f"the {what} {twice[0]!r} is in campaign {spec.name!r} twice, and its rollouts would be the "
                "same ones: name it once, and take --samples for more, or another campaign"
            )


def _other_plan(name: str) -> OtherPlan:
    return OtherPlan(f"campaign {name!r} exists with another plan: choose another name or repeat its options")


def _check_running(name: str, record: CampaignRecord) -> None:
    """Raise CampaignError for a campaign that offers nothing now."""
    if record.state is CampaignState.ARCHIVED:
        raise CampaignError(_archived(name))
    if record.reason:
        then = how_to_go_on(name, record.reason)
        raise CampaignError(f"campaign {name!r} is {record.state}, because {record.reason}: {then}")
    if record.state is not CampaignState.RUNNING:
        raise CampaignError(f"campaign {name!r} is {record.state}: use `orchard resume {name}`")


def _archived(name: str) -> str:
    return (
        f"campaign {name!r} is archived: `orchard log restore {name}` verifies its archive and pauses it, "
        f"then `orchard resume {name}` goes on"
    )


def submitted_event(spec: CampaignSpec, record: CampaignRecord) -> Event:
    plan = CampaignSubmitted(
        spec=record.spec,
        spec_hash=record.spec_hash,
        size=record.size,
        tasks=len(spec.tasks),
        harnesses=spec.harnesses,
        models=tuple(model.name for model in spec.models),
        samples=spec.samples,
        submitter=record.submitter or None,
        team=spec.team,
    )
    event_id = f"{spec.name}.submitted.{record.spec_hash}"
    return make_event(plan, id=event_id, source=SOURCE, campaign=spec.name)


def requested_event(request: RolloutRequest) -> Event:
    """The request as an event of the log; the queue holds another copy."""
    return make_event(
        request,
        id=f"{request.rollout_id}.requested",
        source=SOURCE,
        campaign=request.campaign,
        rollout_id=request.rollout_id,
    )


def _batches(requests: Iterable[RolloutRequest]) -> Iterable[list[RolloutRequest]]:
    iterator = iter(requests)
    return iter(lambda: list(itertools.islice(iterator, BATCH)), [])

"""Campaigns as actions: submit, pause, resume, cancel. Each can be killed and run again.

Submitting is a walk over the campaign's requests in a fixed order; the cursor lives in the campaign's key.
Publishing a request again is recognized by its message id, and where that window has passed, the fence on
the terminal event still lets one outcome through.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass

import msgspec

from orchard.schemas.campaigns import (
    CAMPAIGN_MOVES,
    CampaignRecord,
    CampaignSpec,
    CampaignState,
    RolloutRequest,
    rollout_requests,
    spec_hash,
)
from orchard.schemas.events import (
    CampaignStateChanged,
    CampaignSubmitted,
    Event,
    RolloutAborted,
    RolloutFinished,
    RolloutReopened,
    UnreadablePayload,
    cause_to_reopen,
    make_event,
    outcome_in,
)
from orchard.storage.blobs import BlobStore
from orchard.streams.campaigns import CampaignBook
from orchard.streams.connection import Connection
from orchard.streams.errors import QueueFull
from orchard.streams.publisher import Publisher
from orchard.streams.settings import Queue

BATCH = 500
SOURCE = "orchard/campaigns"
FULL_QUEUE_PAUSE = 1.0


class CampaignError(ValueError):
    """Something the user can mend, in one sentence."""


class OtherPlan(CampaignError):
    """A name that is taken by a campaign of other tasks or settings."""


@dataclass(frozen=True)
class Progress:
    """How far a submit or resume is: `done` of `total` rollouts looked at, `offered` put on the queue."""

    done: int
    total: int
    offered: int
    waiting: bool = False
    """The queue is full: workers must catch up first."""


class Campaigns:
    """The actions, over one connection and one blob store."""

    def __init__(self, connection: Connection, blobs: BlobStore) -> None:
        self._publisher = Publisher(connection)
        self._book = CampaignBook(connection)
        self._blobs = blobs

    async def submit(self, spec: CampaignSpec) -> AsyncIterator[Progress]:
        """Offer every rollout of `spec` that was not offered yet; yields after each batch.

        Raises CampaignError when the name is taken by another plan, or the campaign is not running.
        """
        record, revision = await self._open(spec)
        offered = record.offered
        yield Progress(offered, spec.size, 0)
        for batch in _batches(rollout_requests(spec, offered)):
            await self._publisher.events([requested_event(request) for request in batch])
            async for full in self._offer([(request.rollout_id, request) for request in batch]):
                yield Progress(offered, spec.size, offered - record.offered, waiting=full)
            offered += len(batch)
            current = msgspec.structs.replace(record, offered=offered)
            revision = await self._book.update(spec.name, current, revision)
            yield Progress(offered, spec.size, offered - record.offered)

    async def _open(self, spec: CampaignSpec) -> tuple[CampaignRecord, int]:
        digest = spec_hash(spec)
        blob = await asyncio.to_thread(self._blobs.put, msgspec.json.encode(spec), "application/json")
        known = await self._book.get(spec.name)
        if known is None:
            record = CampaignRecord(spec=blob, spec_hash=digest, size=spec.size)
            known = record, await self._book.create(spec.name, record)
        record, revision = known
        if record.spec_hash != digest:
            raise OtherPlan(
                f"campaign {spec.name!r} exists with another plan: choose another --name or repeat its flags"
            )
        if record.state is not CampaignState.RUNNING:
            raise CampaignError(f"campaign {spec.name!r} is {record.state}: use `orchard resume {spec.name}`")
        submitted = CampaignSubmitted(
            spec=blob,
            spec_hash=digest,
            size=spec.size,
            tasks=len(spec.tasks),
            harnesses=spec.harnesses,
            models=tuple(model.name for model in spec.models),
            samples=spec.samples,
        )
        if record.offered == 0:
            await self._publisher.event(
                make_event(submitted, id=f"{spec.name}.submitted.{digest}", source=SOURCE, campaign=spec.name)
            )
        return record, revision

    async def _offer(self, batch: list[tuple[str, RolloutRequest]]) -> AsyncIterator[bool]:
        """Put requests on the queue, all confirmed at the end; yields True each time the queue is full."""
        left = batch
        while left:
            results = await asyncio.gather(
                *(self._request(message_id, request) for message_id, request in left), return_exceptions=True
            )
            failed = [error for error in results if isinstance(error, BaseException)]
            for error in failed:
                if not isinstance(error, QueueFull):
                    raise error
            left = [item for item, result in zip(left, results, strict=True) if isinstance(result, QueueFull)]
            if left:
                yield True
                await asyncio.sleep(FULL_QUEUE_PAUSE)

    async def _request(self, message_id: str, request: RolloutRequest) -> int:
        queue = Queue(kind="rollout", domain=request.domain, priority=request.priority)
        return await self._publisher.request(queue, message_id, msgspec.json.encode(request))

    async def pause(self, name: str) -> None:
        """Stop starting rollouts; the ones that run are finished."""
        await self._move(name, CampaignState.PAUSED)

    async def cancel(self, name: str) -> None:
        """Stop at once: running attempts are interrupted, waiting rollouts abort with cause cancelled."""
        await self._move(name, CampaignState.CANCELLED)

    async def resume(
        self, name: str, *, aborted: bool = True, every_open: bool = False
    ) -> AsyncIterator[Progress]:
        """Go on: offer again what a pause parked, and with `aborted` reopen what infrastructure aborted, or
        what has an outcome that cannot be read.

        `every_open` offers each rollout without an outcome again even if the campaign was running all the
        time: for a work queue that was lost. Rollouts with an outcome are never touched.
        """
        record, _ = await self._find(name)
        was_running = record.state is CampaignState.RUNNING
        record = await self._move(name, CampaignState.RUNNING, new_round=True)
        spec = msgspec.json.decode(await asyncio.to_thread(self._blobs.get, record.spec), type=CampaignSpec)
        done = offered = 0
        # A submit that was killed has requests the queue never saw, running or not.
        for batch in _batches(rollout_requests(spec)):
            last = await asyncio.gather(*(self._publisher.outcome(item.rollout_id) for item in batch))
            again: list[tuple[str, RolloutRequest]] = []
            for index, (request, stored) in enumerate(zip(batch, last, strict=True), start=done):
                never_offered = index >= record.offered
                if stored is None:
                    wanted = every_open or never_offered or not was_running
                    fence = 0
                else:
                    data = outcome_in(stored.event)
                    wanted, fence = True, stored.sequence  # reopened by a resume that died before offering
                    if isinstance(data, RolloutFinished):
                        wanted = False
                    elif not isinstance(data, RolloutReopened):
                        wanted = aborted
                        if wanted:
                            fence = await self._reopen(request, stored.sequence, data, record.rounds)
                if wanted:
                    renewed = msgspec.structs.replace(request, fence=fence)
                    again.append((f"{request.rollout_id}.round{record.rounds}", renewed))
            await self._publisher.events(
                [
                    requested_event(item)
                    for index, item in enumerate(batch, start=done)
                    if index >= record.offered
                ]
            )
            async for full in self._offer(again):
                yield Progress(done, spec.size, offered, waiting=full)
            done += len(batch)
            offered += len(again)
            yield Progress(done, spec.size, offered)
        await self._set_offered(name, spec.size)

    async def _reopen(
        self, request: RolloutRequest, sequence: int, data: RolloutAborted | UnreadablePayload, rounds: int
    ) -> int:
        event = make_event(
            RolloutReopened(
                superseded_sequence=sequence,
                cause=cause_to_reopen(data),
                reason=f"resumed, round {rounds}",
            ),
            id=f"{request.rollout_id}.reopened.{sequence}",
            source=SOURCE,
            campaign=request.campaign,
            rollout_id=request.rollout_id,
        )
        return await self._publisher.reopen(event, expected=sequence)

    async def _find(self, name: str) -> tuple[CampaignRecord, int]:
        known = await self._book.get(name)
        if known is None:
            raise CampaignError(f"there is no campaign {name!r}: `orchard status` lists them")
        return known

    async def _move(self, name: str, state: CampaignState, *, new_round: bool = False) -> CampaignRecord:
        """Change the state by compare-and-set; a move that CAMPAIGN_MOVES does not permit raises."""
        record, revision = await self._find(name)
        if state is not record.state and state not in CAMPAIGN_MOVES[record.state]:
            raise CampaignError(f"campaign {name!r} is {record.state} and cannot become {state}")
        rounds = record.rounds + (1 if new_round else 0)
        moved = msgspec.structs.replace(record, state=state, rounds=rounds)
        revision = await self._book.update(name, moved, revision)
        await self._publisher.event(
            make_event(
                CampaignStateChanged(state=state, previous=record.state, revision=revision),
                id=f"{name}.state.{revision}",
                source=SOURCE,
                campaign=name,
            )
        )
        return moved

    async def _set_offered(self, name: str, offered: int) -> None:
        record, revision = await self._find(name)
        await self._book.update(name, msgspec.structs.replace(record, offered=offered), revision)


def requested_event(request: RolloutRequest) -> Event:
    """The request as a fact in the log, beside the one on the queue."""
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

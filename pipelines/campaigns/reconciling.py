"""The reconciler: every open rollout of a running campaign stands in a queue, or it is offered again; of a
cancelled one none does.

Nothing should ever be found here: a find is a fault that nobody reported, and counts as an alarm
(`rollout.reconciled`). A pass lists the queues by subject and looks up the outcomes of only those rollouts
that stand in none and were not known to be over. A request moves between queues, so a rollout must be missing
in two passes and in a last look of its own.
"""

import asyncio
import logging
from array import array
from collections.abc import AsyncIterator, Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import uuid4

import msgspec

from orchard.pipelines.campaigns.ending import abort, open_in_queues
from orchard.schemas.campaigns import (
    CampaignRecord,
    CampaignSpec,
    CampaignState,
    RolloutRequest,
    rollout_ids,
    rollout_request,
    rollout_requests,
    slot_at,
)
from orchard.schemas.events import Event, RolloutReconciled, make_event
from orchard.schemas.identity import spread
from orchard.schemas.positions import Position
from orchard.schemas.subjects import EVENTS_PREFIX
from orchard.storage.blobs import BlobStore
from orchard.storage.errors import StorageError
from orchard.streams.campaigns import CampaignBook
from orchard.streams.connection import Connection
from orchard.streams.enqueue import EnqueueResult
from orchard.streams.entries import rollout_entry
from orchard.streams.event_streams import log_end, next_event
from orchard.streams.publisher import Publisher
from orchard.streams.queued import SHARDS, is_queued, listed_by_shard
from orchard.workers.attempts.reopen import open_at

log = logging.getLogger("orchard.reconciler")

PAUSE_SECONDS = 20.0
"""Pause between two passes: longer than a request takes from one queue to another."""
_AT_ONCE = 1000
_OFFERED_AT_ONCE = 500
_SUSPECTS = 10_000
"""Suspects of one campaign in one pass: where a whole queue was lost, later passes find the rest."""
_ID_BYTES = 12
REQUEUED = f"{EVENTS_PREFIX}.*.*.request.requeued"
SOURCE = "orchard/steward"


class Ledger:
    """The rollouts of one campaign in the order of its plan, and whether each is known to be over: 16
    bytes and a bit each."""

    def __init__(self, streams: int = 1) -> None:
        """`streams` are those that the campaign's events are spread over."""
        self._streams = streams
        self._ids = {shard: bytearray() for shard in SHARDS}
        self._places = {shard: array("I") for shard in SHARDS}
        self._over = bytearray()
        self.size = 0
        self.open = 0

    def add(self, rollout: str) -> None:
        shard = rollout[:2]
        self._ids[shard] += bytes.fromhex(rollout[: 2 * _ID_BYTES])
        self._places[shard].append(self.size)
        if self.size % 8 == 0:
            self._over.append(0)
        self.size += 1
        self.open += 1

    def open_in(self, shard: str, limit: int) -> dict[str, int]:
        """The open rollouts of a shard among the first `limit` of the plan, with their places in it."""
        ids = self._ids[shard]
        return {
            spread(ids[number * _ID_BYTES : (number + 1) * _ID_BYTES].hex(), self._streams): place
            for number, place in enumerate(self._places[shard])
            if place < limit and not self._over[place >> 3] >> (place & 7) & 1
        }

    def end(self, place: int) -> None:
        if not self._over[place >> 3] >> (place & 7) & 1:
            self._over[place >> 3] |= 1 << (place & 7)
            self.open -= 1


def reconcilable(record: CampaignRecord) -> int:
    """How many rollouts, in the order of the plan, must have a request now: not those that a submit or a
    resume has yet to offer, and none of a campaign that does not run."""
    if record.state is not CampaignState.RUNNING:
        return 0
    return record.reached


def missing(open_: Mapping[str, int], listed: Collection[str]) -> list[str]:
    """The open rollouts that are in no queue."""
    return [rollout for rollout in open_ if rollout not in listed]


class Suspect(NamedTuple):
    """An open rollout that is in no queue: its index in the plan, and the fence of its opening."""

    place: int
    rollout_id: str
    fence: int


def twice(before: Collection[Suspect], now: Collection[Suspect]) -> list[Suspect]:
    """The suspects of both passes at the same fence, in the order of the plan."""
    return sorted(set(before) & set(now))


@dataclass
class _Campaign:
    """What the reconciler remembers of a campaign between two passes."""

    rounds: int
    offered: int
    ledger: Ledger | None
    """None: every rollout was over."""
    suspects: list[Suspect] = field(default_factory=list)


class Reconciler:
    """Looks at every running campaign in turn. Any number of these may run; the queue refuses doubles."""

    def __init__(self, connection: Connection, blobs: BlobStore) -> None:
        self._connection = connection
        self._publisher = Publisher(connection)
        self._book = CampaignBook(connection)
        self._blobs = blobs
        self._known: dict[str, _Campaign] = {}
        self._held: dict[str, set[str]] = {}
        """Open rollouts of cancelled campaigns that were queued in the last pass."""
        self._heard: Position | None = None
        """Position in the log up to which events of requeued dead letters were read."""
        self._lost = asyncio.Event()
        connection.on_loss(self._lost.set)

    async def run(self, pause: float = PAUSE_SECONDS) -> None:
        """Run passes until cancelled; raises StreamsError."""
        while True:
            await self.look()
            await asyncio.sleep(pause)

    async def look(self) -> int:
        """Run one pass over all running campaigns; returns how many rollouts were offered again."""
        if self._lost.is_set():
            # A server that comes back may have lost outcomes, and give their sequences to other events.
            self._lost.clear()
            self._known, self._held, self._heard = {}, {}, None
        book = {name: record for name, (record, _) in (await self._book.list()).items()}
        self._known = {name: one for name, one in self._known.items() if name in book}
        await self._forget_requeued()
        offered = 0
        for name, record in book.items():
            try:
                if reconcilable(record):
                    offered += await self._look_at(name, record)
                elif record.state is CampaignState.CANCELLED:
                    await self._end(name, record)
            except (StorageError, msgspec.DecodeError) as error:
                log.warning("campaign %s cannot be reconciled, its plan cannot be read: %s", name, error)
        self._held = {name: held for name, held in self._held.items() if name in book}
        return offered

    async def _end(self, name: str, record: CampaignRecord) -> None:
        """End those rollouts of a cancelled campaign that were open and queued in the last pass already:
        a living worker has ended its own by now. A worker that claims such a request later releases
        it."""
        before, now = (
            self._held.pop(name, set()),
            await open_in_queues(self._connection, self._publisher, name),
        )
        if now:
            self._held[name] = now
        if held := before & now:
            plan = rollout_requests(await self._spec(record))
            ended = await abort(self._publisher, [one for one in plan if one.rollout_id in held], SOURCE)
            log.warning("%d rollouts of the cancelled campaign %s had no worker: ended", ended, name)

    async def _forget_requeued(self) -> None:
        """Look afresh at campaigns that had a dead letter requeued: its rollout is open again, though the
        campaign was not resumed. The stream's leader is asked: a replica may lack one that it has."""
        heard, last = self._heard, await log_end(self._connection)
        for stream in range(len(last) if heard is not None else 0):
            at = heard.last(stream) if heard is not None else 0
            while requeued := await next_event(self._connection, at + 1, REQUEUED):
                self._known.pop(requeued.subject.split(".")[2], None)
                at = requeued.sequence
            last = last.with_last(max(at, last.last(stream)))
        self._heard = last

    async def _look_at(self, name: str, record: CampaignRecord) -> int:
        known = await self._remembered(name, record)
        ledger = known.ledger
        if ledger is None:
            return 0
        before, known.suspects = known.suspects, []
        async for shard, listed in listed_by_shard(self._connection, name):
            open_ = ledger.open_in(shard, reconcilable(record))
            lost = missing(open_, listed)[: max(_SUSPECTS - len(known.suspects), 0)]
            for rollout, newest in zip(lost, await self._publisher.outcomes(lost), strict=True):
                fence = open_at(newest)
                if fence is None:
                    ledger.end(open_[rollout])
                else:
                    known.suspects.append(Suspect(open_[rollout], rollout, fence))
        if not ledger.open and record.offered == record.size:
            known.ledger = None
        candidates = twice(before, known.suspects)
        return await self._offer(name, record, candidates) if candidates else 0

    async def _remembered(self, name: str, record: CampaignRecord) -> _Campaign:
        """What is known of the campaign; nothing after it was resumed or grew."""
        known = self._known.get(name)
        same = known is not None and known.rounds == record.rounds
        if known is not None and same and (known.ledger is not None or known.offered == record.offered):
            known.offered = record.offered
            return known
        spec = await self._spec(record)
        ledger = Ledger(spec.event_streams)
        async for rollout in _plan(spec):
            ledger.add(rollout)
        known = self._known[name] = _Campaign(record.rounds, record.offered, ledger)
        return known

    async def _offer(self, name: str, record: CampaignRecord, candidates: list[Suspect]) -> int:
        """Offer again those that a last look finds open and in no queue; returns how many."""
        spec = await self._spec(record)
        offered = 0
        for start in range(0, len(candidates), _OFFERED_AT_ONCE):
            some = candidates[start : start + _OFFERED_AT_ONCE]
            now = await self._book.get(name)
            if now is None or (now[0].state, now[0].rounds) != (record.state, record.rounds):
                break
            offered += await self._offer_some(spec, some)
        if offered:
            log.error("%d open rollouts of %s were on no queue: offered again", offered, name)
        return offered

    async def _offer_some(self, spec: CampaignSpec, some: list[Suspect]) -> int:
        nowhere = await asyncio.gather(*(self._nowhere(spec.name, one) for one in some))
        lost = [one for one, still in zip(some, nowhere, strict=True) if still]
        starts = await self._publisher.starts([one.rollout_id for one in lost])
        requests = []
        for one, started in zip(lost, starts, strict=True):
            base = (started.event.attempt or 0) if started and started.event else 0
            request = rollout_request(spec, slot_at(spec, one.place))
            requests.append(msgspec.structs.replace(request, fence=one.fence, attempt_base=base))
        occasion = f"reconciled-{uuid4().hex}"
        placed = await self._publisher.offer_absent([rollout_entry(one, occasion) for one in requests])
        again = [
            request
            for request, answer in zip(requests, placed, strict=True)
            if answer.result is EnqueueResult.STORED
        ]
        await self._publisher.events([_reconciled(request, occasion) for request in again])
        return len(again)

    async def _nowhere(self, name: str, one: Suspect) -> bool:
        """Whether the rollout is still open at this fence and in no queue, read from the stream leaders."""
        if await is_queued(self._connection, name, one.rollout_id):
            return False
        return open_at(await self._publisher.outcome(one.rollout_id)) == one.fence

    async def _spec(self, record: CampaignRecord) -> CampaignSpec:
        raw = await asyncio.to_thread(self._blobs.get, record.spec)
        return msgspec.json.decode(raw, type=CampaignSpec)


def _reconciled(request: RolloutRequest, occasion: str) -> Event:
    reason = "open, and neither queued nor running nor delayed"
    return make_event(
        RolloutReconciled(reason=reason, fence=request.fence),
        id=f"{request.rollout_id}.{occasion}",
        source=SOURCE,
        campaign=request.campaign,
        rollout_id=request.rollout_id,
    )


async def _plan(spec: CampaignSpec) -> AsyncIterator[str]:
    """Yield the rollout ids of a plan in order. A million take seconds, so other tasks run between."""
    for number, rollout in enumerate(rollout_ids(spec)):
        if number % _AT_ONCE == 0:
            await asyncio.sleep(0)
        yield rollout

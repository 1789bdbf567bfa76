"""Conservation: each requested rollout is in exactly one place, at any moment, also while everything runs.

Three readings are put together: the tables up to their position, the queues, then the stream after that
position. A request enters a queue after its event and leaves it after its outcome, so a rollout that has no
outcome at the end was either seen in a queue or moved meanwhile. Only those that were seen nowhere are looked
at again; one that stays nowhere although its campaign runs is a finding.
"""

import asyncio
from collections.abc import Collection, Iterable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from orchard.schemas.campaigns import CampaignRecord, CampaignSpec, CampaignState, rollout_ids
from orchard.schemas.events import DONE_TYPES
from orchard.schemas.positions import Position
from orchard.schemas.subjects import EVENTS_PREFIX
from orchard.storage.blobs import BlobStore
from orchard.storage.reader import open_tables, position
from orchard.streams.campaigns import CampaignBook
from orchard.streams.connection import Connection
from orchard.streams.publisher import Publisher
from orchard.streams.queued import Queued, is_queued, queued
from orchard.streams.replay import replay_batches
from orchard.workers.attempts.reopen import open_at

LOOKS = 3
"""Times that a rollout in no queue is looked up before it is a finding."""
PAUSE_SECONDS = 1.0
"""Pause between two of them: longer than a request takes from one queue to another."""
_UNQUEUED = frozenset({"measured"})
"""Campaigns whose rollouts never stand in a queue: the command that requests them runs them itself."""
_ONE_BY_ONE = 100
"""Suspects that are looked up each; more of them by listing the queues again."""
_NAMED = 5
"""Rollouts that a finding names."""


@dataclass
class Balance:
    """The requested rollouts of one campaign by where they are; an id is in one set at most."""

    campaign: str
    state: str = ""
    requested: int = 0
    accepted: int = 0
    aborted: int = 0
    open: set[str] = field(default_factory=set)
    """Requested and without an outcome: the union of the sets below."""
    waiting: set[str] = field(default_factory=set)
    delayed: set[str] = field(default_factory=set)
    running: set[str] = field(default_factory=set)
    parked: set[str] = field(default_factory=set)
    """Rollouts that no queue holds because the campaign is paused, cancelled or archived, or its command
    runs them itself."""
    unoffered: set[str] = field(default_factory=set)
    """Rollouts that a submit or resume has yet to enqueue."""
    missing: set[str] = field(default_factory=set)
    """Rollouts that are nowhere: each is a finding."""
    strangers: set[str] = field(default_factory=set)
    """Rollouts that have an outcome but were never requested."""

    def count(self, outcome: str, change: int) -> None:
        """Count an outcome, `accepted` or `aborted`, or take it back."""
        if outcome == "aborted":
            self.aborted += change
        else:
            self.accepted += change

    @property
    def holds(self) -> bool:
        """Whether each rollout is in exactly one place."""
        placed = (self.waiting, self.delayed, self.running, self.parked, self.unoffered)
        total = self.accepted + self.aborted + sum(map(len, placed))
        return self.requested == total and not self.missing and not self.strangers

    def findings(self) -> list[str]:
        """Sentences that each say what does not hold."""
        found = []
        if self.missing:
            found.append(
                f"campaign {self.campaign}: {_named(self.missing)} without an outcome and in no queue: "
                f"`orchard resume {self.campaign}` offers what is open"
            )
        if self.strangers:
            found.append(f"campaign {self.campaign}: {_named(self.strangers)} never requested: report this")
        if not found and not self.holds:
            found.append(
                f"campaign {self.campaign}: {self.requested} requested are not the sum of their places: "
                "`orchard store rebuild`, and check again"
            )
        return found


def _named(rollouts: Collection[str]) -> str:
    some = ", ".join(sorted(rollouts)[:_NAMED])
    more = f" and {len(rollouts) - _NAMED} more" if len(rollouts) > _NAMED else ""
    return f"rollout {some} is" if len(rollouts) == 1 else f"rollouts {some}{more} are"


class RolloutChange(NamedTuple):
    """A request or outcome in the stream: type of the event, campaign, rollout."""

    kind: str
    campaign: str
    rollout: str


OUTCOMES = {"rollout.finished": "accepted", "rollout.aborted": "aborted"}


def place(balance: Balance, in_queues: Queued, record: CampaignRecord | None) -> None:
    """Put the open rollouts of a campaign where they are; one that is in no queue is in `missing`, or where
    the campaign's state puts it."""
    balance.state = str(record.state) if record else ""
    balance.waiting = in_queues.waiting & balance.open
    balance.delayed = in_queues.delayed & balance.open
    balance.running = in_queues.running & balance.open
    nowhere = balance.open - in_queues.everything
    if balance.campaign in _UNQUEUED or (record is not None and record.state is not CampaignState.RUNNING):
        balance.parked = nowhere
    else:
        balance.missing = nowhere


_COUNTS = """
with requested as (select distinct campaign, rollout_id from tables.requests_all)
select coalesce(q.campaign, r.campaign), count(q.rollout_id),
       count(*) filter (r.status in ('completed', 'truncated') and q.rollout_id is not null),
       count(*) filter (r.status = 'aborted' and q.rollout_id is not null)
from requested q full join rollouts r on r.rollout_id = q.rollout_id group by 1
"""
_OPEN = """
select distinct q.campaign, q.rollout_id from tables.requests_all q
anti join rollouts r on r.rollout_id = q.rollout_id
"""
_UNREQUESTED = """
select r.campaign, r.rollout_id from rollouts r anti join tables.requests_all q on q.rollout_id = r.rollout_id
"""
_STATUS = "select rollout_id, status from rollouts where rollout_id in (select unnest($ids))"
_KNOWN = "select distinct rollout_id from tables.requests_all where rollout_id in (select unnest($ids))"


def balances_of_tables(store_url: str) -> list[Balance]:
    """Balances by the tables alone: every open rollout counts as parked, because no queue was read."""
    found, _ = _tables(store_url)
    for balance in found.values():
        balance.parked = balance.open
    return [balance for _, balance in sorted(found.items())]


async def balances(connection: Connection, store_url: str, blobs: BlobStore) -> list[Balance]:
    """The balance of every campaign that has rollouts, as of now."""
    audit = _Audit(connection, store_url, blobs)
    found = await audit.run()
    if any(balance.strangers for balance in found):  # their requests may have been archived meanwhile
        found = await audit.run()
    return found


class _Audit:
    def __init__(self, connection: Connection, store_url: str, blobs: BlobStore) -> None:
        self._connection, self._store_url, self._blobs = connection, store_url, blobs
        self._book = CampaignBook(connection)
        self._publisher = Publisher(connection)

    async def run(self) -> list[Balance]:
        found, reached = await asyncio.to_thread(_tables, self._store_url)
        book = {name: record for name, (record, _) in (await self._book.list()).items()}
        in_queues = {
            name: await queued(self._connection, name) for name in sorted(book.keys() | found.keys())
        }
        later = await self._later(reached)
        await asyncio.to_thread(_apply, self._store_url, reached, found, later)
        for name in sorted(book.keys() | found.keys()):
            balance = found.setdefault(name, Balance(name))
            place(balance, in_queues.get(name, Queued(set(), set(), set())), book.get(name))
            if balance.missing:
                await self._look_again(balance)
        return [
            balance
            for name, balance in sorted(found.items())
            if balance.requested or balance.strangers or name in book
        ]

    async def _later(self, reached: Position) -> list[RolloutChange]:
        """Requests and outcomes in the stream after the position `reached`, of each rollout in
        order."""
        kinds = {*DONE_TYPES, "rollout.requested"}
        subjects = [f"{EVENTS_PREFIX}.*.*.rollout.requested", f"{EVENTS_PREFIX}.done.>"]
        changes: list[RolloutChange] = []
        async with aclosing(replay_batches(self._connection, reached, subjects=subjects)) as batches:
            async for batch in batches:
                events = [one.event for one in batch if one.event is not None]
                changes += [
                    RolloutChange(event.type, event.campaign, event.rollout_id)
                    for event in events
                    if event.rollout_id and event.type in kinds
                ]
        return changes

    async def _look_again(self, balance: Balance) -> None:
        """Find the rollouts that were seen nowhere: moved, ended, or not offered yet; the rest stays
        missing."""
        for look in range(LOOKS):
            if look:
                await asyncio.sleep(PAUSE_SECONDS)
            known = await self._book.get(balance.campaign)
            record = known[0] if known else None
            balance.unoffered |= await self._unoffered(record, balance.missing)
            balance.missing -= balance.unoffered
            found = await self._in_a_queue(balance.campaign, balance.missing)
            balance.running |= found
            balance.missing -= found
            # Read after the queues: who leaves one has an outcome by then.
            left = sorted(balance.missing)
            for rollout, newest in zip(left, await self._publisher.outcomes(left), strict=True):
                if open_at(newest) is None:
                    balance.missing.discard(rollout)
                    balance.open.discard(rollout)
                    kind = newest.event.type if newest is not None and newest.event is not None else ""
                    balance.count(OUTCOMES.get(kind, "accepted"), 1)
            if record is not None and record.state is not CampaignState.RUNNING:
                balance.parked, balance.missing = balance.parked | balance.missing, set()
                balance.state = str(record.state)
            if not balance.missing:
                return

    async def _in_a_queue(self, campaign: str, suspects: Collection[str]) -> set[str]:
        if len(suspects) > _ONE_BY_ONE:
            return set(suspects) & (await queued(self._connection, campaign)).everything
        return {rollout for rollout in suspects if await is_queued(self._connection, campaign, rollout)}

    async def _unoffered(self, record: CampaignRecord | None, suspects: Collection[str]) -> set[str]:
        """The suspects that a submit or resume, under way or killed, has yet to enqueue."""
        if record is None or (record.offered >= record.size and record.resumed is None):
            return set()
        raw = await asyncio.to_thread(self._blobs.get, record.spec)
        spec = msgspec.json.decode(raw, type=CampaignSpec)
        return await asyncio.to_thread(set(suspects).intersection, rollout_ids(spec, record.reached))


def _tables(store_url: str) -> tuple[dict[str, Balance], Position]:
    """Counts and open rollouts of each campaign by the tables, and the position that these are whole up
    to."""
    reached = position(store_url)
    found: dict[str, Balance] = {}
    with open_tables(store_url, as_of=reached, views=f"{_COUNTS} {_OPEN} {_UNREQUESTED}") as tables:
        for campaign, requested, accepted, aborted in tables.execute(_COUNTS).fetchall():
            found[campaign] = Balance(campaign, "", requested, accepted, aborted)
        for campaign, rollout in tables.execute(_OPEN).fetchall():
            found[campaign].open.add(rollout)
        for campaign, rollout in tables.execute(_UNREQUESTED).fetchall():
            found[campaign].strangers.add(rollout)
    return found, reached


def _apply(
    store_url: str, reached: Position, found: dict[str, Balance], changes: list[RolloutChange]
) -> None:
    """Apply the changes after the tables' position."""
    ids = list({change.rollout for change in changes})
    with open_tables(store_url, as_of=reached, views=f"{_KNOWN} {_STATUS}") as tables:
        requested = {rollout for (rollout,) in tables.execute(_KNOWN, {"ids": ids}).fetchall()}
        status: dict[str, str] = dict(tables.execute(_STATUS, {"ids": ids}).fetchall())
    outcomes = {rollout: "aborted" if one == "aborted" else "accepted" for rollout, one in status.items()}
    apply_changes(found, changes, requested, outcomes)


def apply_changes(
    found: dict[str, Balance], changes: Iterable[RolloutChange], requested: set[str], outcomes: dict[str, str]
) -> None:
    """Apply changes in order. `requested` and `outcomes` (`accepted` or `aborted`) are what is known of
    these rollouts; both are brought up to date."""
    for kind, campaign, rollout in changes:
        balance = found.setdefault(campaign, Balance(campaign))
        if kind == "rollout.requested":
            if rollout in requested:
                continue
            requested.add(rollout)
            balance.requested += 1
            balance.strangers.discard(rollout)
            if rollout in outcomes:
                balance.count(outcomes[rollout], 1)
            else:
                balance.open.add(rollout)
        elif kind == "rollout.reopened":
            if (before := outcomes.pop(rollout, None)) is not None and rollout in requested:
                balance.count(before, -1)
                balance.open.add(rollout)
            balance.strangers.discard(rollout)
        elif rollout not in outcomes:
            outcomes[rollout] = OUTCOMES[kind]
            balance.open.discard(rollout)
            if rollout in requested:
                balance.count(OUTCOMES[kind], 1)
            else:
                balance.strangers.add(rollout)

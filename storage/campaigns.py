"""Restores lost entries of the campaign book from the log: plan, state, rounds, and number of requests."""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TypeVar

import msgspec

from orchard.schemas.campaigns import CampaignRecord, CampaignSpec, CampaignState
from orchard.schemas.decoding import Unreadable, decode
from orchard.schemas.events import CampaignStateChanged, CampaignSubmitted
from orchard.storage.blobs import BlobStore
from orchard.storage.reader import log_position, open_tables
from orchard.streams.campaigns import CampaignBook
from orchard.streams.connection import Connection

_SUBMITTED = "select campaign, payload from events where type = 'campaign.submitted' order by sequence"
_MOVES = "select payload from events where type = 'campaign.state_changed' and campaign = ? order by sequence"
_OFFERED = "select count(distinct rollout_id) from tables.requests_all where campaign = ?"
_PLANS = msgspec.json.Decoder(CampaignSubmitted)
_CHANGES = msgspec.json.Decoder(CampaignStateChanged)
T = TypeVar("T")
Book = dict[str, tuple[CampaignRecord, int]]


def _readable(decoder: "msgspec.json.Decoder[T]", payloads: Iterable[str]) -> Iterator[T]:
    """Yield the payloads that fit their type; others are in the log, but are no plan and no move."""
    for payload in payloads:
        with suppress(Unreadable):
            yield decode(decoder, payload.encode())


async def restore_campaigns(store_url: str, connection: Connection) -> list[str]:
    """Restore campaigns, and newer states of them, that only the tables know; returns their names.

    Any other campaign stays as it is in the book. Raises StorageError, also for a plan whose blob is missing,
    TopologyError, and CampaignConflict for one that is changed meanwhile.
    """
    book = CampaignBook(connection)
    lost = await asyncio.to_thread(_lost, store_url, await book.list())
    for name, (record, revision) in lost.items():
        if revision:
            await book.update(name, record, revision)
        else:
            await book.create(name, record)
    return list(lost)


def _lost(store_url: str, known: Book) -> Book:
    """Records of the campaigns that the book has lost, or has an older state of, with the book's revision
    or 0."""
    lost: Book = {}
    if not log_position(store_url):
        return lost
    with open_tables(store_url, views=f"{_SUBMITTED} {_MOVES} {_OFFERED}") as tables:
        submitted = tables.execute(_SUBMITTED).fetchall()
        plans = {name: plan for name, text in submitted for plan in _readable(_PLANS, [text])}
        for name, plan in plans.items():
            moves = list(_readable(_CHANGES, [text for (text,) in tables.execute(_MOVES, [name]).fetchall()]))
            if name not in known:
                offered = tables.execute(_OFFERED, [name]).fetchall()[0][0]
                lost[name] = _moved(_record(BlobStore(store_url), plan, offered), moves), 0
                continue
            record, revision = known[name]
            if moves and moves[-1].state is not record.state and moves[-1].revision > revision:
                lost[name] = _moved(record, moves), revision
    return lost


def _record(blobs: BlobStore, plan: CampaignSubmitted, offered: int) -> CampaignRecord:
    spec = msgspec.json.decode(blobs.get(plan.spec), type=CampaignSpec)
    return CampaignRecord(
        queue=spec.queue.consumer,
        spec=plan.spec,
        spec_hash=plan.spec_hash,
        size=plan.size,
        offered=min(offered, plan.size),
        max_cost_usd=spec.max_cost_usd,
        submitter=plan.submitter or "",
        team=spec.team,
    )


def _moved(record: CampaignRecord, moves: Sequence[CampaignStateChanged]) -> CampaignRecord:
    """Return the record after all changes of state in the log; no two rounds of a campaign have one
    number."""
    if not moves:
        return msgspec.structs.replace(record, state=CampaignState.RUNNING)
    rounds, last = sum(move.state is CampaignState.RUNNING for move in moves), moves[-1]
    return msgspec.structs.replace(
        record,
        state=last.state,
        rounds=max(record.rounds, rounds),
        max_cost_usd=last.max_cost_usd,
        reason=last.reason or None,
    )

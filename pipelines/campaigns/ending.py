"""Ends the rollouts of a cancelled campaign that no worker holds.

Outcomes are published under the fence of the rollout's opening, so ending one twice, or while a worker
ends it, does no harm.
"""

from collections.abc import Sequence

import msgspec

from orchard.schemas.campaigns import RolloutRequest
from orchard.streams import names
from orchard.streams.connection import Connection
from orchard.streams.entries import address_in
from orchard.streams.publisher import Publisher
from orchard.streams.queued import queued_by_shard, remove
from orchard.streams.reading import subjects
from orchard.workers.attempts.reopen import cancelled, open_at


async def abort(publisher: Publisher, requests: Sequence[RolloutRequest], source: str) -> int:
    """Publish the outcome `cancelled` of those that are open; returns how many."""
    rollouts = [request.rollout_id for request in requests]
    newest = await publisher.outcomes(rollouts)
    starts = await publisher.starts(rollouts)
    events = [
        (cancelled(msgspec.structs.replace(request, fence=fence), started, source), fence)
        for request, last, started in zip(requests, newest, starts, strict=True)
        if (fence := open_at(last)) is not None
    ]
    return sum(stored is not None for stored in await publisher.guarded(events))


async def clear(connection: Connection, publisher: Publisher, campaign: str) -> None:
    """Remove the campaign's queued requests whose rollouts have an outcome."""
    async for shard, part in queued_by_shard(connection, campaign):
        rollouts = sorted(part.waiting | part.delayed)
        await remove(connection, campaign, shard, await _over(publisher, rollouts))


async def open_in_queues(connection: Connection, publisher: Publisher, campaign: str) -> set[str]:
    """The campaign's rollouts that are in a queue and have no outcome. Needs permission to list subjects
    alone, which every role has."""
    pattern = f"orchard.*.rollout.*.*.{campaign}.>"
    held = {
        spot.key
        for stream in (names.WORK, names.LATER)
        for subject in await subjects(connection, stream, pattern)
        if (spot := address_in(subject))
    }
    return held - set(await _over(publisher, sorted(held)))


async def _over(publisher: Publisher, rollouts: Sequence[str]) -> list[str]:
    newest = await publisher.outcomes(rollouts)
    return [one for one, last in zip(rollouts, newest, strict=True) if open_at(last) is None]

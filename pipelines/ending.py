"""The end of a cancelled campaign's rollouts: who has no worker gets an outcome here, and leaves the queue.

Outcomes are published under the fence of the rollout's opening, so whoever ends one twice, or beside a worker
that does so itself, harms nothing.
"""

from collections.abc import Collection, Iterable, Sequence

import msgspec

from orchard.schemas.campaigns import RolloutRequest
from orchard.streams.connection import Connection
from orchard.streams.publisher import Publisher
from orchard.streams.queued import queued, queued_by_shard, remove
from orchard.workers.openings import cancelled, open_at


async def abort(publisher: Publisher, requests: Sequence[RolloutRequest], source: str) -> int:
    """End those that are open, with cause cancelled; how many."""
    rollouts = [request.rollout_id for request in requests]
    newest = await publisher.outcomes(rollouts)
    starts = await publisher.starts(rollouts)
    events = [
        (cancelled(msgspec.structs.replace(request, fence=fence), started, source), fence)
        for request, last, started in zip(requests, newest, starts, strict=True)
        if (fence := open_at(last)) is not None
    ]
    return sum(stored is not None for stored in await publisher.guarded(events))


async def clear(
    connection: Connection, publisher: Publisher, campaign: str, held: Collection[str] = ()
) -> None:
    """Take what has an outcome off the queues: what waits there, and of what was delivered, `held`."""
    async for shard, part in queued_by_shard(connection, campaign):
        rollouts = sorted(part.waiting | part.delayed | (part.running & set(held)))
        await remove(connection, campaign, shard, await _over(publisher, rollouts))


async def open_in_queues(connection: Connection, publisher: Publisher, campaign: str) -> set[str]:
    """Rollouts that stand in a queue and have no outcome."""
    rollouts = (await queued(connection, campaign)).everything
    return rollouts - set(await _over(publisher, sorted(rollouts)))


async def _over(publisher: Publisher, rollouts: Sequence[str]) -> list[str]:
    newest = await publisher.outcomes(rollouts)
    return [one for one, last in zip(rollouts, newest, strict=True) if open_at(last) is None]


async def end_held(
    connection: Connection,
    publisher: Publisher,
    campaign: str,
    plan: Iterable[RolloutRequest],
    held: Collection[str],
    source: str,
) -> int:
    """End those of a cancelled campaign that a worker held and has not ended itself; how many."""
    ended = await abort(publisher, [one for one in plan if one.rollout_id in held], source)
    await clear(connection, publisher, campaign, held)
    return ended

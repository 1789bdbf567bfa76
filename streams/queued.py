"""Lists the rollouts of a campaign that are queued, delayed or running at this moment, as the queues know it.

Subjects say it (decision 0012): entries are listed by subject, shard by shard, without reading a request. A
request that moves between WORK and LATER is in both for a moment, never in none; here it counts once.
"""

from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Sequence

import msgspec
from nats.js.api import ConsumerInfo

from orchard.schemas.identity import shard
from orchard.streams import names
from orchard.streams.batches import count_from, messages_of
from orchard.streams.connection import Connection
from orchard.streams.entries import address_in
from orchard.streams.reading import consumers, next_message, purge, subject_count, subjects

SHARDS = tuple(f"{number:02x}" for number in range(256))
_AT_ONCE = 50_000
"""Number of subjects of a stream up to which they are listed in one request instead of shard by shard."""


class Queued(msgspec.Struct, frozen=True):
    """Rollout ids by the state of their request; no id is in two of the sets."""

    waiting: set[str]
    """Requests on the work queue that were never claimed."""
    running: set[str]
    """Requests that are claimed, or were claimed once and are about to be delivered again or buried."""
    delayed: set[str]
    """Requests that wait for their time."""

    @property
    def everything(self) -> set[str]:
        return self.waiting | self.running | self.delayed


async def listed_by_shard(connection: Connection, campaign: str) -> AsyncIterator[tuple[str, set[str]]]:
    """Lists the campaign's rollouts that are in any queue, for each shard, `00` to `ff`.

    Bounded memory: one shard is a 256th of the campaign. The moment is not the same for all shards.
    """
    async for shard_, work, delayed in _parts(connection, campaign):
        yield shard_, work | delayed


async def queued_by_shard(connection: Connection, campaign: str) -> AsyncIterator[tuple[str, Queued]]:
    """Lists the rollouts as `listed_by_shard` does, by state."""
    running = _by_shard(await running_now(connection, campaign))
    async for shard_, work, delayed in _parts(connection, campaign):
        waiting = work - running[shard_]
        yield shard_, Queued(waiting, running[shard_], delayed - running[shard_] - waiting)


async def queued(connection: Connection, campaign: str) -> Queued:
    """Lists the rollouts of a whole campaign by state: some 100 bytes of memory for each rollout in a
    queue."""
    whole = Queued(set(), set(), set())
    async for _, part in queued_by_shard(connection, campaign):
        whole.waiting.update(part.waiting)
        whole.running.update(part.running)
        whole.delayed.update(part.delayed)
    return whole


async def running_now(
    connection: Connection, campaign: str, queues: Sequence[ConsumerInfo] | None = None
) -> set[str]:
    """Lists the rollouts whose entry was delivered: a consumer delivers in the order of sequences, so these
    are the ones up to the newest that it delivered. At most as many as the fleet has slots. `queues` are the
    consumers of WORK where the caller has them."""
    found = set()
    for pattern, delivered in _filters(await consumers(connection, names.WORK) if queues is None else queues):
        mine = f"{pattern.removesuffix('>')}{campaign}.>"
        async for batch in messages_of(connection, names.WORK, mine, up_to=delivered):
            found |= {address.key for message in batch if (address := address_in(message.subject))}
    return found


async def ahead_of(connection: Connection, campaign: str, queues: Sequence[ConsumerInfo]) -> int:
    """Counts the requests of other campaigns that are delivered before the campaign's first waiting one; 0
    where none of it waits. `queues` are the consumers of WORK."""
    found = 0
    for pattern, delivered in _filters(queues):
        mine = f"{pattern.removesuffix('>')}{campaign}.>"
        first = await next_message(connection, names.WORK, delivered + 1, mine)
        if first is not None:
            found += await count_from(connection, names.WORK, pattern, delivered + 1)
            found -= await count_from(connection, names.WORK, pattern, first.sequence)
    return found


async def remove(connection: Connection, campaign: str, part: str, rollout_ids: Sequence[str]) -> None:
    """Removes the requests of these rollouts of one shard from all queues; their outcomes are stored."""
    for stream in (names.WORK, names.LATER):
        patterns = [f"orchard.*.rollout.*.*.{campaign}.{part}.{rollout}.*" for rollout in rollout_ids]
        await purge(connection, stream, patterns)


async def is_queued(connection: Connection, campaign: str, rollout: str) -> bool:
    pattern = f"orchard.*.rollout.*.*.{campaign}.{shard(rollout)}.{rollout}.*"
    for stream in (names.LATER, names.WORK, names.LATER):
        if await subjects(connection, stream, pattern):
            return True
    return False


async def _parts(connection: Connection, campaign: str) -> AsyncIterator[tuple[str, set[str], set[str]]]:
    """Lists the rollouts on WORK and those in LATER, for each shard."""
    counts = [await subject_count(connection, stream) for stream in (names.WORK, names.LATER)]
    for part in ["*"] if max(counts) <= _AT_ONCE else SHARDS:
        before = await _listed(connection, names.LATER, campaign, part)
        work = _by_shard(await _listed(connection, names.WORK, campaign, part))
        # Asked again: it may have come from WORK since.
        delayed = _by_shard(before | await _listed(connection, names.LATER, campaign, part))
        for each in SHARDS if part == "*" else [part]:
            yield each, work[each], delayed[each]


async def _listed(connection: Connection, stream: str, campaign: str, part: str) -> set[str]:
    held = await subjects(connection, stream, f"orchard.*.rollout.*.*.{campaign}.{part}.>")
    return {address.key for subject in held if (address := address_in(subject))}


def _filters(queues: Iterable[ConsumerInfo]) -> list[tuple[str, int]]:
    """Patterns of the requests that queues deliver, each with the newest sequence that was delivered."""
    return [
        (pattern, info.delivered.stream_seq if info.delivered else 0)
        for info in queues
        for pattern in info.config.filter_subjects or []
        if pattern.endswith(".>")
    ]


def _by_shard(keys: Iterable[str]) -> defaultdict[str, set[str]]:
    parts: defaultdict[str, set[str]] = defaultdict(set)
    for key in keys:
        parts[shard(key)].add(key)
    return parts

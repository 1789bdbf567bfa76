"""Reads a run's groups for another trainer from its log: the groups that the run's own trainer would
train on."""

import sys
from collections.abc import AsyncIterator

from orchard.pipelines.rl.feed import Feed, feed_subjects
from orchard.pipelines.rl.plan import RunPlan
from orchard.pipelines.rl.sequences import NotSampled
from orchard.pipelines.rl.stepping import Chosen, Limits, dropped, oldest_version, refusal, without
from orchard.schemas.events import payload
from orchard.schemas.groups import DropReason, GroupAssembled, GroupDropped, PolicyUpdated
from orchard.schemas.subjects import EVENTS_PREFIX
from orchard.storage.blobs import BlobStore
from orchard.streams.connection import Connection
from orchard.streams.replay import replay, replay_batches


async def exported(
    connection: Connection, plan: RunPlan, start: int, blobs: BlobStore, *, whole: bool
) -> AsyncIterator[Chosen | GroupDropped]:
    """Yield the groups of a run whose events begin at sequence `start`, in order, or why one is skipped.

    Groups that the run's trainer dropped, or that any would, are skipped; members that it left out are
    left out. With `whole` a group that lost one is skipped. Raises StorageError where a blob cannot be
    read.
    """
    drops, left_out = await _judged(connection, plan.name, start)
    # Age and length are the trainer's to judge: the log says what it dropped and left out.
    limits = Limits(staleness=0, context=sys.maxsize, whole=whole)
    feed = Feed(plan, blobs)
    async for batch in replay_batches(connection, start, subjects=feed_subjects(plan.name)):
        for stored in batch:
            feed.take([stored])
            group = payload(stored.fact) if stored.fact else None
            if not isinstance(group, GroupAssembled) or group.group_id not in feed.progress.groups:
                continue  # given up, or only measured
            yield drops.get(group.group_id) or await _usable(feed, group, left_out, limits)
            feed.done(group)


async def _judged(connection: Connection, run: str, start: int) -> tuple[dict[str, GroupDropped], set[str]]:
    """Groups that the run's trainer dropped, by id, and the rollouts that it left out."""
    drops: dict[str, GroupDropped] = {}
    left_out: set[str] = set()
    subjects = [f"{EVENTS_PREFIX}.{run}.*.{kind}" for kind in ("group.dropped", "policy.updated")]
    async for stored in replay(connection, start, subjects=subjects):
        match payload(stored.fact) if stored.fact else None:
            case GroupDropped() as drop:
                drops.setdefault(drop.group_id, drop)
            case PolicyUpdated() as update:
                left_out |= set(update.left_out)
    return drops, left_out


async def _usable(
    feed: Feed, group: GroupAssembled, left_out: set[str], limits: Limits
) -> Chosen | GroupDropped:
    if group.degenerate and not feed.progress.plan.keep_degenerate:
        return dropped(group, DropReason.DEGENERATE, "all rewards are equal")
    try:
        left = without(group, await feed.sampled(group), left_out)
    except NotSampled as error:
        return dropped(group, DropReason.INCOMPLETE, str(error))
    size, oldest = feed.progress.plan.least_members, oldest_version(left[1])
    return refusal(group, left, limits, size=size, version=0, oldest=oldest) or left

"""Gives a run's groups to other trainers: all of them out of the log, or step by step, the same again for
the same step.

Each step's groups are in the log as `policy.updated`, which also tells the coordinator that they are
used. A trainer that goes back to a checkpoint and asks again is given the same, in the same order.
"""

import sys
from collections.abc import AsyncIterator, Iterable
from contextlib import aclosing

from orchard.pipelines.rl.coordinator import RunError
from orchard.pipelines.rl.feed import Feed, feed_subjects
from orchard.pipelines.rl.plan import RunPlan
from orchard.pipelines.rl.sequences import NotSampled
from orchard.pipelines.rl.stepping import (
    Chosen,
    Limits,
    Steps,
    dropped,
    fitting,
    oldest_version,
    refusal,
    without,
)
from orchard.schemas.events import payload
from orchard.schemas.groups import DropReason, GroupAssembled, GroupDropped, PolicyUpdated
from orchard.schemas.subjects import EVENTS_PREFIX
from orchard.storage.blobs import BlobStore
from orchard.streams import names
from orchard.streams.connection import Connection
from orchard.streams.publisher import Publisher
from orchard.streams.reading import bounds
from orchard.streams.records import StoredEvent
from orchard.streams.replay import replay, replay_batches


async def exported(
    connection: Connection, plan: RunPlan, start: int, blobs: BlobStore, *, whole: bool
) -> AsyncIterator[Chosen | GroupDropped]:
    """Yield the groups of a run whose events begin at sequence `start`, in order, or why one is skipped.

    Groups that the run's trainer dropped, or that any would, are skipped; members that it left out, or whose
    ending does not train, are left out. With `whole` a group that lost one is skipped. Raises StorageError
    where a blob cannot be read.
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
        left = without(group, await feed.sampled(group), left_out | set(group.untrained))
    except NotSampled as error:
        return dropped(group, DropReason.INCOMPLETE, str(error))
    size, oldest = feed.progress.plan.least_members, oldest_version(left[1])
    return refusal(group, left, limits, size=size, version=0, oldest=oldest) or left


SOURCE = "orchard/rl/handing"


class ExternalTrainer:
    """The groups of one run. `start` is the sequence of the run's first event."""

    def __init__(self, plan: RunPlan, blobs: BlobStore, start: int, limits: Limits) -> None:
        """A group is as many versions behind as steps were handed out since it was assembled."""
        self.plan = plan
        self._feed = Feed(plan, blobs)
        self._next = start
        self._limits = limits
        self._updates: dict[int, tuple[int, PolicyUpdated]] = {}
        """Updates by version, each with its sequence in the log."""

    async def step(self, connection: Connection, number: int) -> list[Chosen]:
        """The groups of step `number`, counted from 0: `prompts_per_step` of them. Waits for them.

        Raises RunError for a step that the plan does not have, and the errors of Publisher.
        """
        if number >= self.plan.steps:
            raise RunError(
                f"step {number} was asked for and run {self.plan.name!r} has {self.plan.steps}: "
                "raise its `steps`"
            )
        subjects = feed_subjects(self.plan.name)
        last = (await bounds(connection, names.EVENTS)).last
        async for batch in replay_batches(connection, self._next, subjects=subjects):
            self._take(batch)
        self._next = max(self._next, last + 1)
        if known := self._updates.get(number + 1):
            groups = self._feed.progress.groups
            names_known = [name for name in known[1].groups if name in groups]
            return [
                fitting(groups[name], await self._feed.sampled(groups[name]), self._limits.context)
                for name in names_known
            ]
        self._forget(number)
        steps = Steps(self._feed, self._limits, SOURCE, Publisher(connection).event)
        if chosen := await self._choose(steps, number):
            return chosen
        async with aclosing(
            replay_batches(connection, self._next, subjects=subjects, follow=True)
        ) as following:
            async for batch in following:
                self._take(batch)
                if chosen := await self._choose(steps, number):
                    break
        return chosen

    def _take(self, batch: Iterable[StoredEvent]) -> None:
        for stored in batch:
            self._feed.take([stored])
            self._next = stored.sequence + 1
            if stored.event is None or stored.event.campaign != self.plan.name:
                continue
            update = payload(stored.event)
            if isinstance(update, PolicyUpdated):
                self._updates.setdefault(update.version, (stored.sequence, update))

    def _forget(self, number: int) -> None:
        """Drop the groups of earlier steps: the same trainer does not ask for them again."""
        for version in [version for version in self._updates if version <= number]:
            for name in self._updates[version][1].groups:
                self._feed.done_with(name)

    async def _choose(self, steps: Steps, number: int) -> list[Chosen]:
        """Choose a whole step's groups and publish the choice; none while there are too few."""
        chosen = await steps.choose(number, self._given_before)
        if chosen:
            groups = [group for group, _ in chosen]
            named = [group.group_id for group in groups]
            self._updates[number + 1] = await steps.update(
                number + 1, named, steps.position(groups), left_out=steps.left_out(groups)
            )
        return chosen

    def _given_before(self, group: GroupAssembled) -> int:
        """Steps that were handed out when the group was assembled. The versions that the other trainer's
        server reports may begin anew when it is restarted."""
        assembled = self._feed.sequences_of[group.group_id]
        return sum(sequence < assembled for sequence, _ in self._updates.values())

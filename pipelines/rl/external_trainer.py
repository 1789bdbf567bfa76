"""Groups for a trainer that is not ours: handed out step by step, the same again for the same step.

What a step was given is in the log as `policy.updated`, which also tells the coordinator that these groups
are used. A trainer that goes back to a checkpoint and asks again is given the same, in the same order.
"""

from collections.abc import Iterable
from contextlib import aclosing

from orchard.pipelines.rl.coordinator import RunError
from orchard.pipelines.rl.feed import Feed, feed_subjects, refusal
from orchard.pipelines.rl.plan import RunPlan
from orchard.pipelines.rl.sequences import NotSampled, TokenSequence
from orchard.schemas.events import make_event, payload
from orchard.schemas.groups import DropReason, GroupAssembled, GroupDropped, PolicyUpdated
from orchard.storage.blobs import BlobStore
from orchard.streams import names
from orchard.streams.connection import Connection
from orchard.streams.publisher import Publisher
from orchard.streams.reading import bounds
from orchard.streams.records import StoredEvent
from orchard.streams.replay import replay_batches

SOURCE = "orchard/rl/handing"

Handed = tuple[GroupAssembled, list[list[TokenSequence]]]
"""A group with the sequences of each member."""


class ExternalTrainer:
    """What one run hands out. `start` is the sequence of the run's first event."""

    def __init__(
        self,
        plan: RunPlan,
        blobs: BlobStore,
        start: int,
        *,
        staleness: int,
        context: int,
        one_sequence: bool,
    ) -> None:
        """`staleness`: steps that may be given out between a group's assembly and its use. `context`: tokens
        of the longest sequence. `one_sequence`: drop groups of which a member is several sequences."""
        self.plan = plan
        self._feed = Feed(plan, blobs)
        self._next = start
        self._staleness, self._context, self._one_sequence = staleness, context, one_sequence
        self._updates: dict[int, tuple[int, PolicyUpdated]] = {}
        """By version, with its sequence in the log."""

    async def step(self, connection: Connection, number: int) -> list[Handed]:
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
            return [(groups[name], await self._feed.sampled(groups[name])) for name in names_known]
        self._forget(number)
        publisher = Publisher(connection)
        if chosen := await self._choose(publisher, number):
            return chosen
        async with aclosing(
            replay_batches(connection, self._next, subjects=subjects, follow=True)
        ) as following:
            async for batch in following:
                self._take(batch)
                if chosen := await self._choose(publisher, number):
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
        """What earlier steps were given is not asked for again by the same trainer."""
        for version in [version for version in self._updates if version <= number]:
            for name in self._updates[version][1].groups:
                self._feed.done_with(name)

    async def _choose(self, publisher: Publisher, number: int) -> list[Handed]:
        """A whole step's groups, noted in the log as given out; none while there are too few."""
        if len(self._feed.waiting) < self.plan.prompts_per_step:
            return []
        found: list[Handed] = []
        for group in self._feed.waiting:
            rows = await self._usable(publisher, group, number)
            if rows is not None:
                found.append((group, rows))
            if len(found) == self.plan.prompts_per_step:
                await self._note(publisher, number, [group for group, _ in found])
                return found
        return []

    async def _usable(
        self, publisher: Publisher, group: GroupAssembled, number: int
    ) -> list[list[TokenSequence]] | None:
        """The sequences of a group's members; None for a group that is dropped, with a reason in the log."""
        try:
            rows = await self._feed.sampled(group)
        except NotSampled as error:
            await self._drop(publisher, _incomplete(group, str(error)))
            return None
        if self._one_sequence and (member := _split(group, rows)) is not None:
            text = f"rollout {member} is more than one sequence, as its harness rewrote history"
            await self._drop(publisher, _incomplete(group, text))
            return None
        assembled = self._feed.sequences_of[group.group_id]
        drop = refusal(
            group,
            rows,
            size=self.plan.bar.size,
            version=number,
            # The versions that the other trainer's server reports may begin anew when it is started again.
            oldest=sum(sequence < assembled for sequence, _ in self._updates.values()),
            staleness=self._staleness,
            context=self._context,
        )
        if drop is not None:
            await self._drop(publisher, drop)
            return None
        return rows

    async def _note(self, publisher: Publisher, number: int, groups: list[GroupAssembled]) -> None:
        update = PolicyUpdated(
            run=self.plan.name,
            version=number + 1,
            step=number + 1,
            groups=tuple(group.group_id for group in groups),
            position=max(self._feed.sequences_of[group.group_id] for group in groups),
        )
        await self._publish(publisher, update, f"{self.plan.name}.policy.{number + 1}")

    async def _drop(self, publisher: Publisher, drop: GroupDropped) -> None:
        await self._publish(publisher, drop, f"{drop.group_id}.dropped")
        self._feed.done_with(drop.group_id)

    async def _publish(self, publisher: Publisher, data: PolicyUpdated | GroupDropped, name: str) -> None:
        event = make_event(data, id=name, source=SOURCE, campaign=self.plan.name)
        sequence = await publisher.event(event)
        self._feed.progress.apply(event, sequence)
        if isinstance(data, PolicyUpdated):
            self._updates.setdefault(data.version, (sequence, data))


def _split(group: GroupAssembled, rows: list[list[TokenSequence]]) -> str | None:
    """The first member that is not one sequence."""
    return next(
        (member.rollout_id for member, own in zip(group.members, rows, strict=True) if len(own) != 1), None
    )


def _incomplete(group: GroupAssembled, detail: str) -> GroupDropped:
    return GroupDropped(run=group.run, group_id=group.group_id, reason=DropReason.INCOMPLETE, detail=detail)

"""The steps of a run, the same for every trainer: which groups one trains on, and the events it publishes."""

import logging
from collections.abc import Awaitable, Callable, Container, Iterable
from typing import NamedTuple

import msgspec

from orchard.pipelines.rl.coordinator import RunError
from orchard.pipelines.rl.feed import Feed
from orchard.pipelines.rl.sequences import NotSampled, TokenSequence
from orchard.schemas.events import Event, make_event
from orchard.schemas.groups import DropReason, GroupAssembled, GroupDropped, PolicyUpdated
from orchard.schemas.protection import Protected, is_at_least

Rows = list[list[TokenSequence]]
Chosen = tuple[GroupAssembled, Rows]
"""A group with the sequences of each member."""

log = logging.getLogger("orchard.rl")


class RunStopped(RunError):
    """The trainer ends the run: started again, it would fail the same way."""

    exit_code = 4


def fitting(group: GroupAssembled, rows: Rows, context: int) -> Chosen:
    """A group without the members whose ending does not train and those that have a sequence of more than
    `context` tokens: the others train, with advantages among themselves."""
    unfit = {
        member.rollout_id
        for member, own in zip(group.members, rows, strict=True)
        if member.rollout_id in group.untrained or max(len(one.ids) for one in own) > context
    }
    return without(group, rows, unfit)


def without(group: GroupAssembled, rows: Rows, left_out: Container[str]) -> Chosen:
    pairs = zip(group.members, rows, strict=True)
    kept = [(member, own) for member, own in pairs if member.rollout_id not in left_out]
    members = tuple(member for member, _ in kept)
    return msgspec.structs.replace(group, members=members), [own for _, own in kept]


class Limits(NamedTuple):
    """Conditions that a group must meet to be trained on."""

    staleness: int
    """Maximum policy versions that it may be behind."""
    context: int
    """Maximum tokens of a sequence; a member with a longer one is left out."""
    whole: bool = False
    """Whether no member may be left out: the trainer takes groups of N."""
    one_sequence: bool = False
    """Whether each member must be one sequence, as where no harness rewrote history."""
    contrast: bool = True
    """Whether a group that lost members needs two rewards: not where outcomes weigh nothing."""


class Steps:
    """Takes the groups of one step after another from a feed."""

    def __init__(
        self,
        feed: Feed,
        limits: Limits,
        source: str,
        publish: Callable[[Event], Awaitable[int]],
        ready: Callable[[GroupAssembled], bool] = lambda _: True,
    ) -> None:
        """`publish` stores an event, from `source`, and returns its sequence. Groups are chosen in the order
        of the log, so one that is not `ready` is awaited."""
        self._ready = ready
        self.dropped = 0
        """Number of groups dropped; a trainer may reset it."""
        self._feed, self._limits, self._source, self._publish = feed, limits, source, publish

    async def choose(
        self, version: int, oldest: Callable[[GroupAssembled], int] | None = None
    ) -> list[Chosen]:
        """The groups that policy `version` trains on next; none while there are too few.

        A group that cannot be trained on is dropped, with a reason in the log. `oldest` is as in
        `refusal`; by default it reads the tokens' versions. Raises what `publish` raises.
        """
        prompts = self._feed.progress.plan.prompts_per_step
        waiting = self._feed.waiting
        found: list[Chosen] = []
        for group in waiting if len(waiting) >= prompts else []:
            if not self._ready(group):
                return []
            usable = await self.usable(group, version, oldest)
            if isinstance(usable, GroupDropped):
                await self.drop(usable)
                continue
            found.append(usable)
            if len(found) == prompts:
                return found
        return []

    async def usable(
        self, group: GroupAssembled, version: int, oldest: Callable[[GroupAssembled], int] | None = None
    ) -> Chosen | GroupDropped:
        """A group without the members that do not train, or why it is not trained on."""
        try:
            left = fitting(group, await self._feed.sampled(group), self._limits.context)
            await self._feed.check(left[1])
        except NotSampled as error:
            return dropped(group, DropReason.INCOMPLETE, str(error))
        since = oldest(group) if oldest else oldest_version(left[1])
        size = self._feed.progress.plan.least_members
        return refusal(group, left, self._limits, size=size, version=version, oldest=since) or left

    def position(self, groups: Iterable[GroupAssembled]) -> int:
        """The highest sequence of waiting groups in the log."""
        return max(self._feed.sequences_of[group.group_id] for group in groups)

    async def update(
        self,
        step: int,
        groups: Iterable[str],
        position: int,
        checkpoint: str = "",
        left_out: Iterable[str] = (),
    ) -> tuple[int, PolicyUpdated]:
        """Publish which groups a step took, counted from 1; returns the event's sequence and payload."""
        run = self._feed.progress.plan.name
        update = PolicyUpdated(
            run=run,
            version=step,
            step=step,
            groups=tuple(groups),
            position=position,
            checkpoint=checkpoint,
            left_out=tuple(left_out),
        )
        return await self.tell(update, f"{run}.policy.{step}"), update

    async def tell(self, data: msgspec.Struct, name: str) -> int:
        """Publish an event of the run and apply it; returns its sequence."""
        event = make_event(data, id=name, source=self._source, campaign=self._feed.progress.plan.name)
        sequence = await self._publish(event)
        self._feed.progress.apply(event, sequence)
        return sequence

    def left_out(self, groups: Iterable[GroupAssembled]) -> tuple[str, ...]:
        """Rollouts of the groups, as they were chosen, that were too long, or had an ending that
        does not train."""
        known = self._feed.progress.groups
        kept = {member.rollout_id for group in groups for member in group.members}
        all_members = (member.rollout_id for group in groups for member in known[group.group_id].members)
        return tuple(name for name in all_members if name not in kept)

    async def refuse(self, groups: Iterable[GroupAssembled], detail: str) -> None:
        """Drop groups whose step gave no finite numbers."""
        for group in groups:
            await self.drop(dropped(group, DropReason.NOT_FINITE, detail))

    async def drop(self, drop: GroupDropped) -> None:
        log.info("group %s is dropped: %s %s", drop.group_id, drop.reason, drop.detail)
        await self.tell(drop, f"{drop.group_id}.dropped")
        self._feed.done_with(drop.group_id)
        self.dropped += 1


def refusal(
    group: GroupAssembled, chosen: Chosen, limits: Limits, *, size: int, version: int, oldest: int
) -> GroupDropped | None:
    """Say why policy `version` does not train on what `fitting` left of a group, or None.

    `oldest` is the oldest policy version that sampled a token of that, below 0 where a token names
    none.
    """
    left, rows = chosen
    alike = limits.contrast and not group.degenerate and len({one.reward for one in left.members}) < 2
    least = 2 if limits.contrast else 1
    several = [member.rollout_id for member, own in zip(left.members, rows, strict=True) if len(own) != 1]
    incomplete, stale = DropReason.INCOMPLETE, DropReason.STALE
    found: list[tuple[bool, DropReason, str]] = [
        (len(group.members) < size, incomplete, f"{len(group.members)} of {size} members"),
        (
            limits.one_sequence and bool(several),
            incomplete,
            f"more than one sequence, as a harness rewrote history, in rollout {' '.join(several[:1])}",
        ),
        (
            len(left.members) < len(group.members) and (limits.whole or alike or len(left.members) < least),
            incomplete,
            f"{len(left.members)} of {len(group.members)} members have an ending that trains and sequences "
            "within `context`",
        ),
        (oldest < 0, incomplete, "a token names no policy version: have the server report it"),
        (
            version - oldest > limits.staleness,
            stale,
            f"sampled by version {oldest}, the policy is version {version}",
        ),
    ]
    return next((dropped(group, reason, detail) for holds, reason, detail in found if holds), None)


def oldest_version(rows: Rows) -> int:
    """The oldest policy version that sampled a token of a group; -1 where a token names none, or nothing
    was sampled."""
    return min(
        (
            version
            for sequences in rows
            for sequence in sequences
            for version, trains in zip(sequence.versions, sequence.mask, strict=True)
            if trains
        ),
        default=-1,
    )


def unprotected(groups: Iterable[GroupAssembled]) -> float:
    """Share of the groups' members whose reward has a label below `bit`, or none."""
    labels = [group.protected.get(member.rollout_id) for group in groups for member in group.members]
    return sum(not is_at_least(label, Protected.BIT) for label in labels) / len(labels)


def dropped(group: GroupAssembled, reason: DropReason, detail: str) -> GroupDropped:
    """The event of a group that is not trained on."""
    return GroupDropped(run=group.run, group_id=group.group_id, reason=reason, detail=detail)

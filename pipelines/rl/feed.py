"""Folds the log for the trainer: groups in order, with the tokens of their members.

No torch. Messages are kept while their rollout may still be chosen, and forgotten when its prompt is
decided without it or its group is done.
"""

import asyncio
from collections.abc import Callable, Iterable

from orchard.pipelines.rl.coordinator import subjects
from orchard.pipelines.rl.plan import RunPlan
from orchard.pipelines.rl.progress import RunProgress
from orchard.pipelines.rl.sequences import NotSampled, TokenSequence, sequences
from orchard.pipelines.trajectories.forests import training
from orchard.schemas.decoding import Unreadable
from orchard.schemas.events import Event, RolloutFinished, payload
from orchard.schemas.groups import (
    GroupAssembled,
    GroupDropped,
    GroupMember,
    GroupOutcome,
    PolicyUpdated,
    PromptFailed,
    PromptSkipped,
)
from orchard.schemas.llm_calls import CallKind, LLMCall
from orchard.schemas.messages import MessageNode, Role, RoutedExperts, TokenRecord
from orchard.schemas.subjects import EVENTS_PREFIX
from orchard.storage.blobs import BlobStore
from orchard.streams.records import StoredEvent
from orchard.workers.episode.large_messages import whole

Attempt = tuple[str, int]
"""A rollout's id and the number of its attempt."""


def feed_subjects(run: str) -> list[str]:
    kinds = ("message.appended", "llm.called", "group.scored")
    return [*subjects(run), *(f"{EVENTS_PREFIX}.{run}.*.{kind}" for kind in kinds)]


class Feed:
    """Folds events; yields the waiting groups, oldest first."""

    def __init__(
        self,
        plan: RunPlan,
        blobs: BlobStore,
        check: Callable[[TokenSequence], None] = lambda _: None,
        *,
        routed: bool = False,
    ) -> None:
        """`check` raises NotSampled for a sequence that cannot be trained on, such as for pictures that the
        model cannot be shown. `routed` is whether sequences are to have their tokens' experts."""
        self._routed = routed
        self.progress = RunProgress(plan)
        self._check = check
        self.sequences_of: dict[str, int] = {}
        """Stream sequence of each group that waits."""
        self._blobs = blobs
        self._messages: dict[Attempt, dict[str, MessageNode]] = {}
        self._parents: dict[Attempt, dict[str, str | None]] = {}
        """Parents of all messages, by node id."""
        self._leaves: dict[Attempt, str | None] = {}
        """Last messages by the outcomes; None in those that name none."""
        self._kinds: dict[Attempt, dict[str, CallKind]] = {}
        """Kinds of the calls that programs made, by the answer's node id; built-in harnesses have no
        entry."""
        self._shown: dict[str, dict[str, tuple[str, ...]]] = {}
        """Pictures in the prompt of each answer of a rollout, whichever attempt asked."""
        self._left: dict[int, int] = {}
        """Prompts that were given up, with the policy version then: a later group may have their rollouts."""
        self._settled: set[str] = set()
        """Rollouts that are in no waiting group and can join none."""

    def take(self, batch: Iterable[StoredEvent]) -> None:
        """Apply events of the log, in order."""
        for stored in batch:
            event = stored.fact
            if event is not None and event.campaign == self.progress.plan.name:
                self._take(event, stored.sequence)

    def _take(self, event: Event, sequence: int) -> None:
        if event.type == "message.appended":
            self._message(event)
            return
        if event.type == "llm.called":
            self._call(event)
            return
        self.progress.apply(event, sequence)
        match payload(event):
            case GroupAssembled(outcome=GroupOutcome.ONE_CLASS, prompt=prompt) | PromptSkipped(prompt=prompt):
                self._left.setdefault(prompt, self.progress.version)
            case GroupAssembled() as group:
                self.sequences_of.setdefault(group.group_id, sequence)
                self._settle(group.prompt, keep={member.rollout_id for member in group.members})
            case GroupDropped(group_id=name):
                self.done_with(name)
            case PromptFailed(prompt=prompt) if self.progress.plan.frugal is not None:
                self._left.setdefault(prompt, self.progress.version)
            case PromptFailed(prompt=prompt):
                self._settle(prompt, keep=set())
            case PolicyUpdated():
                self._settle_left()
            case RolloutFinished(leaf=leaf) if (rollout := event.rollout_id or "") not in self._settled:
                self._leaves[rollout, event.attempt or 0] = leaf

    def _message(self, event: Event) -> None:
        rollout = event.rollout_id or ""
        if rollout in self._settled:
            return
        node = payload(event)
        if not isinstance(node, MessageNode):
            return
        attempt = rollout, event.attempt or 0
        self._parents.setdefault(attempt, {}).setdefault(node.node_id, node.parent)
        if node.role is Role.ASSISTANT:
            self._messages.setdefault(attempt, {}).setdefault(node.node_id, node)

    def _call(self, event: Event) -> None:
        call, rollout = payload(event), event.rollout_id or ""
        if rollout in self._settled or not isinstance(call, LLMCall):
            return
        if call.images_shown:
            self._shown.setdefault(rollout, {})[call.node] = call.images_shown
        if call.call_kind is not None:
            self._kinds.setdefault((rollout, event.attempt or 0), {}).setdefault(call.node, call.call_kind)

    def _settle(self, prompt: int, keep: set[str]) -> None:
        places = self.progress.prompts[prompt].places.values()
        self._forget({place.rollout_id for place in places} - keep)

    def _settle_left(self) -> None:
        """Forget rollouts that are in no group and too old to join one. The coordinator may not yet know
        of the newest version, so rollouts are kept for one more than it may use."""
        frugal, version = self.progress.plan.frugal, self.progress.version
        waiting = {member.rollout_id for group in self.progress.ready for member in group.members}
        for prompt, then in list(self._left.items()):
            if frugal is None or version - then > frugal.reuse + 1:
                self._settle(prompt, keep=waiting)
                del self._left[prompt]

    def _forget(self, rollouts: set[str]) -> None:
        self._settled |= rollouts
        for memory in (self._messages, self._parents, self._leaves, self._kinds):
            for attempt in [attempt for attempt in memory if attempt[0] in rollouts]:
                del memory[attempt]
        for rollout in rollouts:
            self._shown.pop(rollout, None)

    @property
    def waiting(self) -> list[GroupAssembled]:
        """Groups neither trained on nor dropped, in the order of the log."""
        keep = self.progress.plan.keep_degenerate
        return [group for group in self.progress.ready if keep or not group.degenerate]

    async def sampled(self, group: GroupAssembled) -> list[list[TokenSequence]]:
        """The sequences of each member, not checked. Raises NotSampled where a member lacks the tokens it was
        sampled as, StorageError where a blob cannot be read."""
        found = []
        for member in group.members:
            nodes = self._training(member)
            records = [await self._record(node) for node in nodes]
            shown = self._shown.get(member.rollout_id, {})
            images = [shown.get(node.node_id, ()) for node in nodes]
            steps = self._steps(member)
            turns = [steps.get(node.node_id, -1) for node in nodes]
            rows = await asyncio.to_thread(sequences, records, images, turns, self._experts)
            if not rows:
                raise NotSampled(f"rollout {member.rollout_id} has no message of the policy")
            found.append(rows)
        return found

    async def check(self, members: Iterable[list[TokenSequence]]) -> None:
        """Raises NotSampled for a sequence that cannot be trained on."""
        for rows in members:
            for row in rows:
                await asyncio.to_thread(self._check, row)

    def _training(self, member: GroupMember) -> list[MessageNode]:
        """The answers that train; some answers of a program do not."""
        attempt = member.rollout_id, member.attempt
        nodes = self._messages.get(attempt, {})
        if (kinds := self._kinds.get(attempt)) is None:
            return list(nodes.values())
        counted = training(self._parents[attempt], kinds)
        return [node for name, node in nodes.items() if name in counted]

    def _steps(self, member: GroupMember) -> dict[str, int]:
        """Steps of the answers on the way to the rollout's last message, by node id, as its judges count
        them."""
        attempt = member.rollout_id, member.attempt
        nodes, parents = self._messages.get(attempt, {}), self._parents.get(attempt, {})
        at = self._leaves.get(attempt) or next(reversed(parents), None)
        path = []
        while at is not None and at in parents:
            if at in nodes:
                path.append(at)
            at = parents[at]
        return {name: step for step, name in enumerate(reversed(path))}

    @property
    def _experts(self) -> Callable[[RoutedExperts], bytes] | None:
        return (lambda experts: self._blobs.get(experts.blob)) if self._routed else None

    async def _record(self, node: MessageNode) -> TokenRecord:
        if node.rest_blob is not None:
            try:
                node = await asyncio.to_thread(whole, node, self._blobs)
            except Unreadable as error:
                raise NotSampled(f"message {node.node_id} cannot be read: {error}") from error
        return node.tokens or TokenRecord(ids=())

    def done_with(self, name: str) -> None:
        """Forget a group by its id; an unknown id changes nothing."""
        if name in self.progress.groups:
            self.done(self.progress.groups[name])

    def done(self, group: GroupAssembled) -> None:
        """Forget the messages of a group that was trained on or dropped."""
        self._forget({member.rollout_id for member in group.members})

"""The record that a dead attempt left in the log, for the attempt that replays it.

A node id is a hash over the whole path from the root. So "the recorded answer to this message" is a look-up,
and after the first message that differs from the record no look-up finds anything: the first difference needs
no rule of its own, however a harness branches.
"""

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from orchard.schemas.campaigns import RolloutRequest
from orchard.schemas.decoding import Unreadable
from orchard.schemas.events import payload
from orchard.schemas.identity import digest
from orchard.schemas.llm_calls import LLMCall
from orchard.schemas.messages import MessageNode, Role
from orchard.schemas.replay_pointers import ReplayPointer
from orchard.storage.blobs import BlobStore
from orchard.storage.errors import StorageError
from orchard.streams.errors import StreamsError
from orchard.streams.records import StoredEvent
from orchard.streams.replay_pointers import ReplayPointers
from orchard.workers.episode.large_messages import whole
from orchard.workers.llm.answers import Completion

log = logging.getLogger(__name__)

VOLATILE = ("attempt_base", "failures", "fence", "memory")
"""Fields of a request that say how often it was tried, not what is asked."""


@dataclass(frozen=True)
class RecordedAnswer:
    """A recorded message of the model, with the call that made it."""

    node: MessageNode
    call: LLMCall
    sequence: int
    """Sequence of the call in the event stream."""

    @property
    def completion(self) -> Completion:
        node, call = self.node, self.call
        return Completion(
            text=node.content,
            reasoning=node.reasoning,
            reasoning_field=call.reasoning_field or "",
            tool_calls=node.tool_calls,
            tokens=node.tokens,
            usage=call.usage,
            cost_usd=call.cost_usd,
            seconds=call.seconds or 0.0,
            seconds_waiting=call.seconds_waiting or 0.0,
            tries=call.tries,
            seed=call.seed,
            tools_left_out=call.tools_left_out,
            finish_reason=call.finish_reason,
            endpoint=call.endpoint,
            model=call.model,
            served_model=call.served_model,
            system_fingerprint=call.system_fingerprint,
            model_kind=call.model_kind,
        )


@dataclass
class ReplayRecord:
    """Whole messages of attempt `attempt`; `inherited_from` names the attempt that made each."""

    attempt: int = 0
    replay_key: str = ""
    nodes: dict[str, MessageNode] = field(default_factory=dict)
    answers: dict[str, list[RecordedAnswer]] = field(default_factory=dict)
    """Answers by the message they answer, in order."""
    results: dict[tuple[str, str], MessageNode] = field(default_factory=dict)
    """Results of commands by their parent and the call's id."""

    def take_answer(self, parent: str) -> RecordedAnswer | None:
        """Removes and returns the next recorded answer to `parent`: a branching harness samples several."""
        waiting = self.answers.get(parent)
        return waiting.pop(0) if waiting else None


def record_of(
    rollout_id: str, pointer: ReplayPointer, events: Iterable[StoredEvent], blobs: BlobStore
) -> ReplayRecord:
    """Builds the record that a replay pointer leads to. Events of other rollouts, which a stream that has
    lost its tail may hold under the same sequences, are left out. Raises StorageError for a blob that cannot
    be read."""
    record = ReplayRecord(attempt=pointer.attempt, replay_key=pointer.replay_key)
    calls: dict[str, tuple[LLMCall, int]] = {}
    for stored in events:
        mine = stored.event is not None and stored.event.rollout_id == rollout_id
        data = payload(stored.event) if stored.event and mine else None
        if isinstance(data, MessageNode):
            made_by = data.inherited_from or pointer.attempt
            node = msgspec.structs.replace(whole(data, blobs), inherited_from=made_by)
            record.nodes[node.node_id] = node
        elif isinstance(data, LLMCall):
            calls[data.node] = data, stored.sequence
            if data.answer is not None:
                node = msgspec.structs.replace(whole(data.answer, blobs), inherited_from=pointer.attempt)
                record.nodes.setdefault(data.node, node)
    for node in record.nodes.values():
        if node.role is Role.ASSISTANT and node.parent is not None and node.node_id in calls:
            record.answers.setdefault(node.parent, []).append(RecordedAnswer(node, *calls[node.node_id]))
        elif node.parent is not None and node.result is not None:
            record.results[node.parent, node.tool_call_id] = node
    return record


async def read_record(
    pointers: ReplayPointers, rollout_id: str, pointer: ReplayPointer, blobs: BlobStore
) -> ReplayRecord | None:
    """Reads a rollout's record, and its own events alone. None if they cannot be read, so that the attempt
    starts afresh."""
    try:
        events = await pointers.events(sorted(pointer.events))
        return await asyncio.to_thread(record_of, rollout_id, pointer, events, blobs)
    except (StreamsError, StorageError, Unreadable) as error:
        log.warning(
            "the record of attempt %d cannot be read, so nothing is replayed: %s", pointer.attempt, error
        )
        return None


def replay_key(request: RolloutRequest, harness: str, asked: dict[str, object]) -> str:
    """Digest of all that decides what a model is asked: the request, the fingerprint of its harness's code,
    and the configuration of its endpoint. Attempts with different keys share nothing."""
    wanted = {name: value for name, value in msgspec.to_builtins(request).items() if name not in VOLATILE}
    if request.takeover is None:
        del wanted["takeover"]  # keys of before there was one stay as they are
    return digest([wanted, harness, asked])

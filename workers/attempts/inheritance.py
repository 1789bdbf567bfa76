"""What an attempt inherits from one of the same rollout that died, and what it leaves to the next.

After each answer of the model an attempt leaves a trail: the sequences of its messages and calls in the log.
The attempt that follows its death reads these events, and no others, and its trace recalls them.

A record may be what kills: a command that ends its sandbox, or its worker. Where a sandbox ended under a
command, the trail says after which message. If that of the replay ends there too, the command did it: the
model's doing, and no reason for another try. A worker that dies can leave no word. So an attempt first marks
the trail, and takes the mark away when the record is behind it; who finds a marked trail starts afresh.
"""

import msgspec

from orchard.schemas.llm_calls import LLMCall
from orchard.schemas.messages import MessageNode
from orchard.schemas.replay_pointers import SEGMENT_EVENTS, ReplayPointer
from orchard.storage.blobs import BlobStore
from orchard.streams.replay_pointers import ReplayPointers
from orchard.workers.episode.records import Record, read_record

PROVEN_ANSWERS = 2
"""New answers after which a record is behind an attempt: what the first of them led to was executed."""


class Inheritance:
    """Of one attempt."""

    def __init__(self, trails: ReplayPointers, rollout_id: str, attempt: int, replay_key: str) -> None:
        """The key is that of `records.replay_key`."""
        self._trails = trails
        self._rollout_id = rollout_id
        self._attempt = attempt
        self._replay_key = replay_key
        self._events: list[int] = []
        self._segments = 0
        """How many of them, SEGMENT by SEGMENT, are sealed."""
        self._complete: list[int] = []
        """Events before the newest answer."""
        self._unacted = False
        """Whether nothing has followed the newest answer yet."""
        self._answer = ""
        """Node of the newest answer."""
        self._answers = 0
        self._replayed: ReplayPointer | None = None
        self._replays = 0
        self._calls: dict[str, int] = {}
        """Sequences of the recorded calls, by the node each made."""

    async def claim(self, blobs: BlobStore) -> Record | None:
        """The record to replay, marked as being replayed; None where there is none, where it belongs to
        another key, and where a replay of it has failed before."""
        trail = await self._trails.find(self._rollout_id)
        if trail is None or trail.replay_key != self._replay_key or trail.replays:
            return None
        record = await read_record(self._trails, self._rollout_id, trail, blobs)
        if record is None or not record.answers:
            return None
        self._calls = {
            answer.node.node_id: answer.sequence for several in record.answers.values() for answer in several
        }
        self._replayed, self._replays = trail, 1
        await self._trails.leave(self._rollout_id, msgspec.structs.replace(trail, replays=self._replays))
        return record

    async def note(self, data: msgspec.Struct, sequence: int) -> None:
        """Take notice of an event of this attempt that is stored under `sequence`."""
        if isinstance(data, LLMCall):
            self._complete = list(self._events)
            self._answer = data.node
            self._events.append(sequence)
            self._unacted = True
            self._answers += 1
            await self._leave()
        elif isinstance(data, MessageNode):
            self._events.append(sequence)
            self._unacted = self._unacted and data.node_id == self._answer
            if (call := self._calls.get(data.node_id)) is not None:
                self._events.append(call)

    async def distrust_last_answer(self) -> None:
        """The sandbox was gone. Where it was so at the first command of the newest answer, leave that answer
        out: executed again, it might do the same to the next sandbox."""
        if self._unacted:
            self._events, self._unacted = self._complete, False
            await self._leave()

    async def ended_again(self, newest: str) -> bool:
        """The sandbox ended under the command that follows the message `newest`: whether the one of the
        attempt before had ended there, too. If not, leave word for the next attempt."""
        if self._replayed is not None and self._replayed.died_at == newest:
            return True
        await self._leave(died_at=newest)
        return False

    async def absolve(self) -> None:
        """The attempt was interrupted, as by a worker that drains or an endpoint that rests: the record is
        not to blame."""
        if self._replayed is not None and self._replays:
            self._replays = 0
            if self._answers:
                await self._leave()
            else:
                await self._trails.leave(self._rollout_id, self._replayed)

    async def _leave(self, died_at: str = "") -> None:
        """The newest SEGMENT events at the least stay out of segments: the last answer may be taken back."""
        while len(self._events) >= (self._segments + 2) * SEGMENT_EVENTS:
            start = self._segments * SEGMENT_EVENTS
            sealed = self._events[start : start + SEGMENT_EVENTS]
            await self._trails.seal(self._rollout_id, self._attempt, self._segments, sealed)
            self._segments += 1
        await self._trails.leave(
            self._rollout_id,
            ReplayPointer(
                attempt=self._attempt,
                replay_key=self._replay_key,
                events=tuple(self._events),
                replays=self._replays if self._answers < PROVEN_ANSWERS else 0,
                died_at=died_at,
                segments=self._segments,
            ),
        )

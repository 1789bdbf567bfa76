"""Decides what an attempt replays of an earlier one of the same rollout, and leaves a pointer for the next.

After each answer of the model an attempt stores a replay pointer: the sequences of its messages and calls in
the log. The attempt after its death reads these events alone, and its message tree recalls them.

Replaying can itself be fatal: a command ends its sandbox, or its worker. If a sandbox ends under a command,
the pointer names the message before it. If the replay's sandbox ends there too, the command did it: that is
the model's doing, and no reason to try again. A worker that dies can write nothing. So an attempt marks the
pointer before it replays and removes the mark when it has got past the record; an attempt that finds a marked
pointer starts afresh.
"""

import msgspec

from orchard.schemas.llm_calls import LLMCall
from orchard.schemas.messages import MessageNode
from orchard.schemas.replay_pointers import SEGMENT_EVENTS, ReplayPointer
from orchard.storage.blobs import BlobStore
from orchard.streams.replay_pointers import ReplayPointers
from orchard.workers.episode.replay_record import ReplayRecord, read_record

PROVEN_ANSWERS = 2
"""New answers after which an attempt has got past the record: the commands of the first one were executed."""


class ReplayState:
    """The replay pointers of one attempt: the one it replays and the one it leaves."""

    def __init__(self, pointers: ReplayPointers, rollout_id: str, attempt: int, replay_key: str) -> None:
        """`replay_key` is that of `replay_record.replay_key`."""
        self._pointers = pointers
        self._rollout_id = rollout_id
        self._attempt = attempt
        self._replay_key = replay_key
        self._events: list[int] = []
        self._segments = 0
        """Number of sealed segments of SEGMENT_EVENTS events each."""
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

    async def claim(self, blobs: BlobStore) -> ReplayRecord | None:
        """Returns the record to replay and marks it as being replayed. None if there is none, if it has
        another key, or if a replay of it has failed before."""
        pointer = await self._pointers.find(self._rollout_id)
        if pointer is None or pointer.replay_key != self._replay_key or pointer.replays:
            return None
        record = await read_record(self._pointers, self._rollout_id, pointer, blobs)
        if record is None or not record.answers:
            return None
        self._calls = {
            answer.node.node_id: answer.sequence for several in record.answers.values() for answer in several
        }
        self._replayed, self._replays = pointer, 1
        await self._pointers.leave(self._rollout_id, msgspec.structs.replace(pointer, replays=self._replays))
        return record

    async def note(self, data: msgspec.Struct, sequence: int) -> None:
        """Adds an event of this attempt, stored under `sequence`."""
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
        """Leaves the newest answer out if the sandbox was lost at its first command: executed again, it might
        do the same to the next sandbox."""
        if self._unacted:
            self._events, self._unacted = self._complete, False
            await self._leave()

    async def ended_again(self, newest: str) -> bool:
        """Returns whether the sandbox ended under the command after message `newest` as it did in the attempt
        before. If not, tells the next attempt of it."""
        if self._replayed is not None and self._replayed.died_at == newest:
            return True
        await self._leave(died_at=newest)
        return False

    async def absolve(self) -> None:
        """Removes the mark after an interruption, as by a draining worker or a resting endpoint: the record
        is not to blame."""
        if self._replayed is not None and self._replays:
            self._replays = 0
            if self._answers:
                await self._leave()
            else:
                await self._pointers.leave(self._rollout_id, self._replayed)

    async def _leave(self, died_at: str = "") -> None:
        """Stores the pointer. At least the newest SEGMENT_EVENTS events stay out of segments: the last answer
        may be taken back."""
        while len(self._events) >= (self._segments + 2) * SEGMENT_EVENTS:
            start = self._segments * SEGMENT_EVENTS
            sealed = self._events[start : start + SEGMENT_EVENTS]
            await self._pointers.seal(self._rollout_id, self._attempt, self._segments, sealed)
            self._segments += 1
        await self._pointers.leave(
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

"""Publishing events and requests: deterministic ids, confirmed, repeated over lost connections."""

from collections.abc import Callable, Sequence
from uuid import uuid4

from orchard.schemas.events import (
    Event,
    annotated_subject,
    done_subject,
    encode_event,
    event_subject,
    started_subject,
)
from orchard.streams import names
from orchard.streams.confirmed import Message, store, store_all
from orchard.streams.connection import Connection
from orchard.streams.errors import OutcomeRefused, StreamsError, WrongSequence
from orchard.streams.later import delayed
from orchard.streams.reading import last_message, next_message
from orchard.streams.records import StoredEvent, StoredMessage, stored_event
from orchard.streams.settings import Queue


class Publisher:
    """Publishes over one connection. Every method returns only what the server has stored.

    All raise MessageTooLarge before anything is sent, TopologyError when the stream is missing,
    NatsUnreachable when `patience` ends, and StoreRefused when the stream cannot take the message.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def event(self, event: Event) -> int:
        """Store one event; its sequence, the first one's when it was stored already."""
        return await store(self._connection, _message(event))

    async def events(self, events: Sequence[Event]) -> list[int]:
        """Store events in their order, pipelined; their sequences."""
        return await store_all(self._connection, [_message(event) for event in events])

    async def start(self, rollout_id: str, at_least: int, make: Callable[[int], Event]) -> int:
        """Take the next attempt number of a rollout and store its `rollout.started`; the number.

        `make` makes the event for a number. The server's count of deliveries is only a lower bound
        (`at_least`): a killed server forgets the last deliveries and counts them twice. So the number is
        taken in the log, by compare-and-set on the rollout's `started` subject, and nobody else has it.
        """
        subject = started_subject(rollout_id)
        while True:
            newest = await self._last(subject)
            sequence, attempt = 0, 0
            if newest is not None:
                sequence, attempt = newest.sequence, await self._latest_attempt(subject, newest)
            number = max(attempt + 1, at_least)
            message = _message(make(number))._replace(id=uuid4().hex, expected=sequence)
            try:
                await store(self._connection, message)
            except WrongSequence:
                follower = await self._follower(subject, sequence)
                if follower is None or follower.raw != message.payload:
                    continue  # another claim of this rollout took the number
            return number

    async def terminal(self, event: Event, fence: int = 0) -> int:
        """Store a rollout's terminal event unless another was accepted; its sequence.

        `fence` is the last sequence that the rollout's `done` subject must have: 0, or that of the event
        that reopened it. An event that is stored already, by its id, counts as stored now. Raises
        OutcomeRefused with the accepted event.
        """
        return await self._guarded(event, fence)

    async def reopen(self, event: Event, expected: int) -> int:
        """Store `rollout.reopened` over the aborted event at sequence `expected`; raises as `terminal`."""
        return await self._guarded(event, expected)

    async def decision(self, event: Event) -> StoredEvent | None:
        """Store the decision about a prompt unless there is one; the other one, None when ours stands."""
        try:
            await self._guarded(event, 0)
        except OutcomeRefused as refused:
            return refused.accepted
        return None

    async def request(self, queue: Queue, message_id: str, body: bytes, delay: float = 0.0) -> int:
        """Put a request on a queue, now or in `delay` seconds; its sequence in the stream that holds it.

        Raises QueueFull when the work stream is at its limit; nothing was stored then.
        """
        if delay > 0:
            return await store(self._connection, delayed(queue, message_id, body, delay))
        return await store(self._connection, work_message(queue, message_id, body))

    async def requests(self, queue: Queue, requests: Sequence[tuple[str, bytes]]) -> list[int]:
        """Put many (message id, body) pairs on a queue in their order, pipelined; raises as `request`."""
        return await store_all(self._connection, [work_message(queue, name, body) for name, body in requests])

    async def outcome(self, rollout_id: str) -> StoredEvent | None:
        """The newest event on a rollout's `done` subject: terminal, reopened, or None."""
        return await self._last(done_subject(rollout_id))

    async def annotation(self, event_id: str) -> StoredEvent | None:
        """The annotation, its failure, or the measurement that is stored under this event id, or None."""
        return await self._last(annotated_subject(event_id))

    async def _guarded(self, event: Event, expected: int) -> int:
        message = _message(event)._replace(expected=expected)
        try:
            return await store(self._connection, message)
        except WrongSequence as refusal:
            follower = await self._follower(message.subject, expected)
            if follower is not None and follower.event is not None and follower.event.id == event.id:
                return follower.sequence
            accepted = await self._last(message.subject)
            if accepted is None:
                raise StreamsError(
                    f"{message.subject} is empty but sequence {expected} was expected: its events were purged"
                ) from refusal
            raise OutcomeRefused(accepted) from refusal

    async def _last(self, subject: str) -> StoredEvent | None:
        return _stored(await last_message(self._connection, names.EVENTS, subject))

    async def _latest_attempt(self, subject: str, newest: StoredEvent) -> int:
        """The highest number taken so far: the newest event's, or one of those before if it names none."""
        if newest.event is not None and newest.event.attempt is not None:
            return newest.event.attempt
        attempt = 0
        found = await self._follower(subject, 0)
        while found is not None:
            attempt = max(attempt, (found.event and found.event.attempt) or 0)
            found = await self._follower(subject, found.sequence)
        return attempt

    async def _follower(self, subject: str, sequence: int) -> StoredEvent | None:
        """What was stored on a subject next after `sequence`: ones own event, if it was accepted though the
        answer was lost, even where others have followed since."""
        return _stored(await next_message(self._connection, names.EVENTS, sequence + 1, subject))


def work_message(queue: Queue, message_id: str, body: bytes) -> Message:
    """A request that can be claimed at once."""
    return Message(subject=queue.subject, payload=body, id=message_id)


def _message(event: Event) -> Message:
    return Message(subject=event_subject(event), payload=encode_event(event), id=event.id)


def _stored(message: StoredMessage | None) -> StoredEvent | None:
    if message is None:
        return None
    return stored_event(message.sequence, message.subject, message.time, message.data)

"""Publishing events and requests: deterministic ids, confirmed, repeated over lost connections."""

from collections.abc import Callable, Sequence
from uuid import uuid4

from orchard.schemas.events import Event, encode_event
from orchard.schemas.positions import sequence_in
from orchard.schemas.subjects import (
    annotated_subject,
    answered_subject,
    done_subject,
    event_stream,
    event_subject,
    started_subject,
)
from orchard.streams import names
from orchard.streams.batches import last_messages
from orchard.streams.connection import Connection
from orchard.streams.enqueue import Enqueued, EnqueueResult, enqueue, enqueue_all, enqueue_later, work_message
from orchard.streams.entries import EntryAddress, QueueEntry, address_in
from orchard.streams.errors import OutcomeRefused, QueueFull, StreamsError, WrongSequence
from orchard.streams.event_streams import last_event, last_events, next_event
from orchard.streams.publish import OutgoingMessage, PublishRetry, Unavailable, results_of, store, store_all
from orchard.streams.reading import delete_message
from orchard.streams.records import StoredEvent
from orchard.streams.replay_pointers import ReplayPointers


class Publisher:
    """Publishes over one connection. Every method returns only what the server has stored.

    All raise MessageTooLarge before anything is sent, TopologyError when the stream is missing,
    NatsUnreachable when `patience` ends, and StoreRefused when the stream cannot take the message.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.replay_pointers = ReplayPointers(connection)

    async def event(self, event: Event) -> int:
        """Stores one event; returns its sequence, that of the first one when it was stored already."""
        return await store(self._connection, _message(event))

    async def events(self, events: Sequence[Event]) -> list[int]:
        """Stores events in their order, pipelined; returns their sequences."""
        return await store_all(self._connection, [_message(event) for event in events])

    async def start(
        self, rollout_id: str, at_least: int, make: Callable[[int], Event], newest: StoredEvent | None = None
    ) -> int:
        """Takes the next attempt number of a rollout and stores its `rollout.started`; returns the number.

        `make` makes the event for a number; `newest` is the answer of `started`, if it was asked: without, or
        when it is old, it is asked here. The server's count of deliveries is only a lower bound
        (`at_least`): a killed server forgets the last deliveries and counts them twice. So the number is
        taken in the log, by compare-and-set on the rollout's `started` subject, and nobody else has it.
        """
        subject = started_subject(rollout_id)
        while True:
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
                    newest = await self._last(subject)
                    continue  # another claim of this rollout took the number
            return number

    async def terminal(self, event: Event, fence: int = 0) -> int:
        """Stores a rollout's terminal event, or the answer to a request, unless another was accepted.

        Returns its sequence. `fence` is the last sequence that its subject must have: 0, or that of the event
        that reopened the rollout, or of the answer to the request before. An event that is stored already, by
        its id, counts as stored now. Raises OutcomeRefused with the accepted event.
        """
        return await self._guarded(event, fence)

    async def decision(self, event: Event) -> StoredEvent | None:
        """Stores the decision about a prompt unless there is one; returns the other one, None when this one
        stands."""
        try:
            await self._guarded(event, 0)
        except OutcomeRefused as refused:
            return refused.accepted
        return None

    async def offer(self, entry: QueueEntry, delay: float = 0.0) -> Enqueued:
        """Puts a request on its queue, now or in `delay` seconds by the server's clock.

        Raises QueueFull when the work stream is at its limit, nothing was stored then, and NameReused.
        """
        if delay > 0:
            return await enqueue_later(self._connection, entry, delay)
        placed = await enqueue(self._connection, names.WORK, work_message(entry))
        if placed.result is EnqueueResult.FULL:
            raise QueueFull(
                "the work stream is full (maximum messages exceeded): wait until requests are done, or raise "
                "nats.work_max_messages"
            )
        return placed

    async def offer_all(self, entries: Sequence[QueueEntry]) -> list[Enqueued]:
        """Puts many requests on their queues, pipelined; returns the result of each. Raises NameReused."""
        return await enqueue_all(self._connection, names.WORK, [work_message(entry) for entry in entries])

    async def offer_absent(self, entries: Sequence[QueueEntry]) -> list[Enqueued]:
        """Puts requests on their queues as `offer_all` does, unless they are delayed: those are OCCUPIED too.

        An entry that WORK accepts can only collide with a delayed one: a retry is stored in LATER before its
        old entry is acknowledged. So LATER is looked at again afterwards, and the new entry withdrawn.
        """
        before = await self._delayed(entries)
        placed = dict.fromkeys(range(len(entries)), Enqueued(EnqueueResult.OCCUPIED))
        free = [number for number, one in enumerate(entries) if one.address not in before]
        placed |= zip(free, await self.offer_all([entries[number] for number in free]), strict=True)
        new = [number for number in free if placed[number].result is EnqueueResult.STORED]
        after = await self._delayed([entries[number] for number in new])
        for number in new:
            if entries[number].address in after:
                await delete_message(self._connection, names.WORK, placed[number].sequence)
                placed[number] = Enqueued(EnqueueResult.OCCUPIED)
        return list(placed.values())

    async def _delayed(self, entries: Sequence[QueueEntry]) -> set[EntryAddress]:
        subjects = [subject for one in entries for subject in (one.later_subject, one.due_subject)]
        found = await last_messages(self._connection, names.LATER, subjects)
        return {address for subject in found if (address := address_in(subject))}

    async def outcomes(self, rollout_ids: Sequence[str]) -> list[StoredEvent | None]:
        """Reads the outcomes of many rollouts. In a cluster the newest may be missing: the fence guards what
        follows."""
        return await self._last_of([done_subject(rollout) for rollout in rollout_ids])

    async def starts(self, rollout_ids: Sequence[str]) -> list[StoredEvent | None]:
        """Reads the newest `rollout.started` of each rollout, as `outcomes` reads them."""
        return await self._last_of([started_subject(rollout) for rollout in rollout_ids])

    async def guarded(self, events: Sequence[tuple[Event, int]]) -> list[int | None]:
        """Stores terminal or reopening events, each over the sequence it expects, pipelined.

        Returns the sequence of each, None where another event stands there: as `terminal`, but a refusal is
        an answer.
        """
        messages = [_message(event)._replace(expected=expected) for event, expected in events]
        stored: list[int | None] = []
        for (event, expected), result in zip(
            events, await results_of(self._connection, messages), strict=True
        ):
            if result.refusal is None:
                stored.append(result.sequence)
                continue
            try:
                stored.append(await self._guarded(event, expected))
            except OutcomeRefused:
                stored.append(None)
        return stored

    async def outcome(self, rollout_id: str) -> StoredEvent | None:
        """Reads the newest event on a rollout's `done` subject: terminal, reopened, or None."""
        return await self._last(done_subject(rollout_id))

    async def started(self, rollout_id: str) -> StoredEvent | None:
        """Reads the newest `rollout.started` of a rollout, for `start`."""
        return await self._last(started_subject(rollout_id))

    async def annotation(self, event_id: str) -> StoredEvent | None:
        """Reads the annotation, its failure, or the measurement that is stored under this event id, or
        None."""
        return await self._last(annotated_subject(event_id))

    async def answer(self, kind: str, key: str) -> StoredEvent | None:
        """The newest answer to requests of a kind with this key, or None."""
        return await self._last(answered_subject(kind, key))

    async def _guarded(self, event: Event, expected: int) -> int:
        message, subject = _message(event)._replace(expected=expected), event_subject(event)
        retry = PublishRetry(self._connection)
        while True:
            try:
                return await store(self._connection, message)
            except WrongSequence as refusal:
                follower = await self._follower(subject, expected)
                if follower is not None and follower.event is not None and follower.event.id == event.id:
                    return follower.sequence
                accepted = await self._last(subject)
                if accepted is None and expected:
                    raise StreamsError(
                        f"{subject} is empty but sequence {expected} was expected: its events were purged"
                    ) from refusal
                if accepted is not None and accepted.sequence != expected:
                    raise OutcomeRefused(accepted) from refusal
            # A cluster's leader refuses by what it has taken in and not stored, which may be lost with it.
            retry.problem = Unavailable(
                "JetStream refused the compare-and-set although the last sequence matches"
            )
            await retry.pause(subject)

    async def _last(self, subject: str) -> StoredEvent | None:
        found = await last_event(self._connection, subject)
        return found.as_event if found else None

    async def _last_of(self, subjects: Sequence[str]) -> list[StoredEvent | None]:
        found = await last_events(self._connection, subjects)
        return [found[subject].as_event if subject in found else None for subject in subjects]

    async def _latest_attempt(self, subject: str, newest: StoredEvent) -> int:
        """Reads the highest number taken so far: the newest event's, or one of those before if it names
        none."""
        if newest.event is not None and newest.event.attempt is not None:
            return newest.event.attempt
        attempt = 0
        found = await self._follower(subject, 0)
        while found is not None:
            attempt = max(attempt, (found.event and found.event.attempt) or 0)
            found = await self._follower(subject, found.sequence)
        return attempt

    async def _follower(self, subject: str, sequence: int) -> StoredEvent | None:
        """Reads the message that was stored on a subject next after `sequence`: one's own event, if it was
        accepted though the answer was lost, even where others have followed since."""
        start = max(sequence, sequence_in(event_stream(subject, None), 0)) + 1
        found = await next_event(self._connection, start, subject)
        return found.as_event if found else None


def _message(event: Event) -> OutgoingMessage:
    subject = event_subject(event)
    stored = names.stored_subject(subject, event_stream(subject, event.rollout_id))
    return OutgoingMessage(subject=stored, payload=encode_event(event), id=event.id)

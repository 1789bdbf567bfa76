"""Dead letters: requests that left the queue without an outcome, kept with the evidence, requeued on demand.

The server's advisories are captured by a stream, so none is missed while nobody listens; a sweep finds what
left no advisory. Every step is idempotent and the request itself is deleted last, so any number of handlers
may run and be killed anywhere.
"""

import asyncio
import logging
from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

import msgspec
from nats.js.api import ConsumerInfo

from orchard.schemas.campaigns import RolloutRequest
from orchard.schemas.decoding import Unreadable, decode
from orchard.schemas.events import (
    Event,
    RequestDeadLettered,
    RequestRequeued,
    RolloutAborted,
    RolloutReopened,
    UnreadablePayload,
    cause_to_reopen,
    make_event,
    outcome_in,
)
from orchard.schemas.outcomes import AbortCause
from orchard.schemas.requests import InvalidRequest, read_rollout_request
from orchard.streams import names
from orchard.streams.attempts import attempt_number, reopened
from orchard.streams.connection import Connection
from orchard.streams.deadletter_codec import Dead, DeadLetter, letter, read_letter
from orchard.streams.entries import entry, place_in, rollout_entry
from orchard.streams.errors import FAULTS, NotRequeued, OutcomeRefused
from orchard.streams.outcomes import aborted
from orchard.streams.placing import Placed, Verdict
from orchard.streams.publish import Message, store
from orchard.streams.publisher import Publisher
from orchard.streams.pull import ACK, Puller, settle
from orchard.streams.reading import delete_message, last_message, message_at, next_message, subjects
from orchard.streams.records import StoredEvent, StoredMessage
from orchard.streams.settings import Queue

log = logging.getLogger(__name__)

SWEEP_SECONDS = 60.0
_RECHECK_SECONDS = 1.0
_PULL_SECONDS = 30.0


class Advisory(msgspec.Struct, frozen=True):
    """What we read of the server's notices (io.nats.jetstream.advisory.v1.max_deliver and .terminated)."""

    type: str
    stream: str
    consumer: str
    stream_seq: int
    timestamp: datetime
    deliveries: int = 0
    reason: str = ""

    @property
    def why(self) -> str:
        """The reason as dead letters give it."""
        return f"terminated: {self.reason}" if self.type.endswith(".terminated") else "max_deliver"


_ADVISORIES = msgspec.json.Decoder(Advisory)


class Requeued(msgspec.Struct, frozen=True, kw_only=True):
    """A dead letter that is on the queue again."""

    queue: Queue
    sequence: int
    """In the work stream."""
    request: RolloutRequest | None
    """As it was put back; None for requests of another kind."""


class DeadLetters:
    """Handles dead letters, and lists, shows and requeues them."""

    def __init__(self, connection: Connection, source: str = "orchard/dead-letters") -> None:
        self._connection = connection
        self._publisher = Publisher(connection)
        self._source = source

    async def run(self) -> None:
        """Handle advisories as they come and sweep every minute, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow_advisories())
            tasks.create_task(self._sweep_for_ever())

    async def sweep_once(self) -> int:
        """Bury requests that are past max_deliver without an advisory; how many.

        The server does not say which messages are claimed. Delivered while no claim is open, or below the
        acknowledgement floor, a message is neither waiting nor claimed, so in a busy queue this may wait
        until open claims have ended. It may be one whose acknowledgement is being carried out just now, so
        it is looked at twice.
        """
        suspects: list[tuple[str, StoredMessage]] = []
        for queue in await _queues(self._connection):
            found = await self._up_to(queue)
            if found and await _held(self._connection, queue) > queue.open:
                suspects += [(queue.consumer, message) for message in found]
        if not suspects:
            return 0
        await asyncio.sleep(_RECHECK_SECONDS)
        buried = 0
        for consumer, message in suspects:
            if await message_at(self._connection, names.WORK, message.sequence) != message:
                continue
            try:
                deliveries = self._connection.settings.max_deliver
                await self.bury(message.sequence, consumer, "swept", deliveries)
            except FAULTS:
                raise
            except Exception:
                log.exception("request %d cannot be buried", message.sequence)
            else:
                buried += 1
        return buried

    async def _up_to(self, queue: "_QueueState") -> list[StoredMessage]:
        """The messages of a queue up to the sequence below which nothing is open."""
        found = []
        for pattern in queue.filters:
            message = await next_message(self._connection, names.WORK, 1, pattern)
            while message is not None and message.sequence <= queue.settled:
                found.append(message)
                message = await next_message(self._connection, names.WORK, message.sequence + 1, pattern)
        return found

    async def get(self, sequence: int) -> DeadLetter | None:
        """The dead letter with this sequence, None when there is none."""
        found = await message_at(self._connection, names.DEAD, sequence)
        return None if found is None else read_letter(found)

    async def requeue(self, sequence: int, reason: str = "") -> Requeued:
        """Put a dead letter's request back on its queue and drop the letter.

        A rollout's attempts go on above all earlier ones. If its dead-lettering is its outcome, the rollout
        is reopened and the request fenced by that. Raises NotRequeued when there is no such letter or the
        rollout has another outcome or another request, QueueFull as `Publisher.request`.
        """
        dead = await self.get(sequence)
        if dead is None:
            raise NotRequeued(f"there is no dead letter {sequence}: `orchard dead list` shows them")
        try:
            queue = Queue.of_subject(dead.subject)
            request = read_rollout_request(dead.body) if queue.kind == "rollout" else None
        except InvalidRequest as error:
            if error.rollout is not None:
                raise NotRequeued(f"dead letter {sequence} cannot be carried out: {error}") from error
            request = None  # whoever claims it says again why it is none
        except ValueError as error:
            raise NotRequeued(f"dead letter {sequence} has no queue to go to: {error}") from error
        occasion = f"requeued-{sequence}"
        spot = place_in(dead.subject)
        if request is not None:
            request = await self._reopen(request, dead, reason)
            placed = await self._publisher.offer(rollout_entry(request, occasion))
        elif spot is not None:
            placed = await self._publisher.offer(entry(queue, spot, occasion, dead.body))
        else:
            again = Message(dead.subject, dead.body, f"{occasion}-{dead.message_id}")
            placed = Placed(Verdict.STORED, await store(self._connection, again))
        if placed.verdict is Verdict.OCCUPIED:
            raise NotRequeued(f"another request of dead letter {sequence} is queued or running: look again")
        stored = placed.sequence
        await self._publisher.event(
            make_event(
                RequestRequeued(dead_sequence=sequence, reason=reason),
                id=f"requeued-{sequence}-{stored}",
                source=self._source,
                campaign=campaign_of(queue, request),
                rollout_id=request.rollout_id if request else None,
            )
        )
        await delete_message(self._connection, names.DEAD, sequence)
        return Requeued(queue=queue, sequence=stored, request=request)

    async def list(self) -> Sequence[DeadLetter]:
        """All dead letters, oldest first."""
        letters: list[DeadLetter] = []
        found = await next_message(self._connection, names.DEAD, 1, names.DEAD_SUBJECTS)
        while found is not None:
            letters.append(read_letter(found))
            found = await next_message(self._connection, names.DEAD, found.sequence + 1, names.DEAD_SUBJECTS)
        return letters

    async def _follow_advisories(self) -> None:
        puller = Puller(self._connection, names.ADVISORIES, names.ADVISORY_CONSUMER)
        try:
            while True:
                message = await puller.pull(_PULL_SECONDS)
                if message is None:
                    continue
                try:
                    await self._notice(decode(_ADVISORIES, message.data))
                except Unreadable as error:
                    log.error("an advisory of a form this version does not know is dropped: %s", error)
                except FAULTS:
                    raise
                except Exception:
                    # The sweep tries again every minute; meanwhile the others are buried.
                    log.exception("the request of an advisory cannot be buried: %s", message.data[:500])
                await settle(self._connection, message.reply, ACK)
        finally:
            await puller.close()

    async def _sweep_for_ever(self) -> None:
        while True:
            await self.sweep_once()
            await asyncio.sleep(SWEEP_SECONDS)

    async def _notice(self, advisory: Advisory) -> None:
        """Bury what the server gave up. A work stream that lost its tail may have given the sequence to
        another message since, which is younger than the notice."""
        request = await message_at(self._connection, names.WORK, advisory.stream_seq)
        if request is None or request.time > advisory.timestamp:
            log.info("request %d (%s) is off the queue already", advisory.stream_seq, advisory.why)
            return
        await self.bury(advisory.stream_seq, advisory.consumer, advisory.why, advisory.deliveries)

    async def bury(self, sequence: int, consumer: str, reason: str, deliveries: int) -> None:
        """Record that request `sequence` is dead, and then take it off the queue."""
        message = await message_at(self._connection, names.WORK, sequence)
        if message is None:
            return
        dead = Dead(
            sequence=sequence,
            subject=message.subject,
            message_id=message.headers.get(names.MESSAGE_ID, ""),
            body=message.data,
        )
        await self.keep(dead, consumer, reason, deliveries)
        await delete_message(self._connection, names.WORK, sequence)

    async def keep(self, dead: Dead, consumer: str, reason: str, deliveries: int) -> None:
        """Record that a request is dead: outcome, letter, event. It is still on the queue afterwards.

        A request whose rollout has an outcome is not dead but done: its last step, the acknowledgement, is
        all that was missing.
        """
        kept = await last_message(self._connection, names.DEAD, names.dead_subject(dead.stream, dead.name))
        if kept is not None:
            written = read_letter(kept)
            reason, deliveries = written.reason, written.deliveries
        queue = Queue.of_subject(dead.subject)
        request = read_request(queue, dead.body)
        ended = request is None or await self._abort(request, dead, reason, deliveries)
        if kept is not None:
            await self._announce(queue, request, dead, kept.sequence, consumer, reason, deliveries)
        elif ended:
            message = letter(dead, consumer=consumer, reason=reason, deliveries=deliveries)
            stored = await store(self._connection, message)
            await self._announce(queue, request, dead, stored, consumer, reason, deliveries)

    async def _abort(self, request: RolloutRequest, dead: Dead, reason: str, deliveries: int) -> bool:
        """End the rollout, so that its campaign can end; False when it has another outcome already."""
        exhausted = not reason.startswith("terminated")
        cause = AbortCause.ATTEMPTS_EXHAUSTED if exhausted else AbortCause.INVALID_REQUEST
        event = make_event(
            aborted(request, cause, f"dead letter: {reason}", deliveries),
            id=f"dead-{dead.name}-aborted",
            source=self._source,
            campaign=request.campaign,
            rollout_id=request.rollout_id,
            attempt=attempt_number(request.attempt_base, deliveries),
        )
        try:
            await self._publisher.terminal(event, request.fence)
        except OutcomeRefused as refusal:
            log.info("dead request %d: %s", dead.sequence, refusal)
            return False
        return True

    async def _announce(
        self,
        queue: Queue,
        request: RolloutRequest | None,
        dead: Dead,
        dead_sequence: int,
        consumer: str,
        reason: str,
        deliveries: int,
    ) -> None:
        log.warning(
            "request %s of %s is dead letter %d: %s", dead.name, queue.consumer, dead_sequence, reason
        )
        await self._publisher.event(
            make_event(
                RequestDeadLettered(
                    stream=dead.stream,
                    sequence=dead.sequence,
                    consumer=consumer,
                    reason=reason,
                    deliveries=deliveries,
                    dead_sequence=dead_sequence,
                ),
                id=f"dead-{dead.name}",
                source=self._source,
                campaign=campaign_of(queue, request),
                rollout_id=request.rollout_id if request else None,
                attempt=attempt_number(request.attempt_base, deliveries) if request else None,
            )
        )

    async def _reopen(self, request: RolloutRequest, dead: DeadLetter, reason: str) -> RolloutRequest:
        """The request for another round, its rollout open again."""
        newest = await self._publisher.outcome(request.rollout_id)
        fence, last_attempt = 0, 0
        if newest is not None:
            event, outcome = newest.event, outcome_in(newest.event)
            fence, last_attempt = newest.sequence, (event and event.attempt) or 0
            if isinstance(outcome, RolloutAborted | UnreadablePayload):
                again = self._reopening(request, outcome, newest, reason)
                try:
                    fence = await self._publisher.reopen(again, newest.sequence)
                except OutcomeRefused as refusal:
                    raise NotRequeued(
                        f"rollout {request.rollout_id} changed meanwhile ({refusal}): look again"
                    ) from refusal
            elif event is None or not event.id.startswith(_REOPENED):
                raise NotRequeued(
                    f"rollout {request.rollout_id} has {event and event.type} already: "
                    f"dead letter {dead.sequence} needs no requeue"
                )
        max_deliver = self._connection.settings.max_deliver
        return reopened(request, dead.deliveries, max_deliver, fence, last_attempt)

    def _reopening(
        self,
        request: RolloutRequest,
        outcome: RolloutAborted | UnreadablePayload,
        stored: StoredEvent,
        reason: str,
    ) -> Event:
        return make_event(
            RolloutReopened(
                superseded_sequence=stored.sequence,
                cause=cause_to_reopen(outcome),
                reason=reason or "requeued",
            ),
            id=f"{_REOPENED}{request.rollout_id}-{stored.sequence}",
            source=self._source,
            campaign=request.campaign,
            rollout_id=request.rollout_id,
            attempt=stored.event.attempt if stored.event else None,
        )


class _QueueState(NamedTuple):
    """What the server says of one queue's consumer."""

    consumer: str
    filters: list[str]
    settled: int
    """Sequence up to which nothing is open."""
    open: int
    """Messages that wait or are claimed."""


async def _queues(connection: Connection) -> list[_QueueState]:
    infos: list[ConsumerInfo] = []
    while page := await connection.jetstream.consumers_info(names.WORK, offset=len(infos)):
        infos += page
    return [
        _QueueState(
            info.name,
            info.config.filter_subjects or [info.config.filter_subject or names.WORK_SUBJECTS],
            _settled(info),
            (info.num_pending or 0) + (info.num_ack_pending or 0),
        )
        for info in infos
    ]


async def _held(connection: Connection, queue: _QueueState) -> int:
    """Messages of a queue, whatever their state."""
    counts = [await subjects(connection, names.WORK, pattern) for pattern in queue.filters]
    return sum(sum(count.values()) for count in counts)


def _settled(info: ConsumerInfo) -> int:
    position = info.ack_floor if info.num_ack_pending else info.delivered
    return position.stream_seq if position else 0


_REOPENED = "requeue-reopened-"
"""Ids of the reopenings made here: a requeue that was killed goes on after one of these."""


def read_request(queue: Queue, body: bytes) -> RolloutRequest | None:
    """The rollout request in a body, or what is sure of one that cannot be carried out; None for other kinds
    and where not even the rollout is sure."""
    if queue.kind != "rollout":
        return None
    try:
        return read_rollout_request(body)
    except InvalidRequest as error:
        return error.rollout


def campaign_of(queue: Queue, request: RolloutRequest | None) -> str:
    """Where the events about a request belong; `unknown` when the request does not say."""
    if request is not None:
        return request.campaign
    return "tasks" if queue.kind == "task" else "unknown"

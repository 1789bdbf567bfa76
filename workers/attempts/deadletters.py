"""Dead letters: requests that left the queue without an outcome, kept with the evidence, requeued on demand.

Every step is idempotent and the request itself is deleted last, so any number of processes may handle one and
be killed at any point.
"""

import logging
from collections.abc import Sequence

import msgspec

from orchard.schemas.campaigns import RolloutRequest
from orchard.schemas.events import RequestDeadLettered, RequestRequeued, make_event
from orchard.schemas.outcomes import AbortCause
from orchard.schemas.queues import Queue
from orchard.schemas.requests import InvalidRequest, read_rollout_request, rollout_in
from orchard.streams import names
from orchard.streams.claims import Claim
from orchard.streams.connection import Connection
from orchard.streams.deadletter_codec import DeadLetter, DeadRequest, letter, read_letter
from orchard.streams.enqueue import Enqueued, EnqueueResult
from orchard.streams.entries import address_in, entry, for_newer, rollout_entry
from orchard.streams.errors import NotRequeued, OutcomeRefused
from orchard.streams.publish import OutgoingMessage, store
from orchard.streams.publisher import Publisher
from orchard.streams.reading import delete_message, last_message, message_at, next_message
from orchard.streams.records import StoredMessage
from orchard.workers.attempts.reopen import aborted, open_at, opened

log = logging.getLogger(__name__)

LEFT_SECONDS = 60.0
LEFT_SECONDS_MOST = 900.0
"""A request waits for a worker of a later version this long: doubled each time, up to LEFT_SECONDS_MOST."""
LEFT_TIMES = 64
"""A request is put off at most so often, in over 15 hours: the oldest worker of a cluster works for 12 hours
and its last rollout."""


class Requeued(msgspec.Struct, frozen=True, kw_only=True):
    queue: Queue
    sequence: int | None
    """Sequence of the new request in the work stream; None where the rollout is open again or has another
    outcome: then the letter is only removed."""
    request: RolloutRequest | None
    """The request that was put back; None for requests of another kind."""


class DeadLetters:
    def __init__(self, connection: Connection, source: str = "orchard/dead-letters") -> None:
        self._connection = connection
        self._publisher = Publisher(connection)
        self._source = source

    async def get(self, sequence: int) -> DeadLetter | None:
        found = await message_at(self._connection, names.DEAD, sequence)
        return None if found is None else read_letter(found)

    async def list(self) -> Sequence[DeadLetter]:
        """Returns all dead letters, oldest first."""
        letters: list[DeadLetter] = []
        found = await next_message(self._connection, names.DEAD, 1, names.DEAD_SUBJECTS)
        while found is not None:
            letters.append(read_letter(found))
            found = await next_message(self._connection, names.DEAD, found.sequence + 1, names.DEAD_SUBJECTS)
        return letters

    async def reject(self, claim: Claim, reason: str, cause: AbortCause = AbortCause.INVALID_REQUEST) -> None:
        """Ends the rollout of a claimed request that no worker can carry out, keeps it as a dead letter and
        takes it off the queue."""
        dead = DeadRequest(
            request_sequence=claim.sequence,
            subject=claim.subject,
            consumer=claim.queue.consumer,
            reason=f"terminated: {reason}",
            deliveries=claim.deliveries,
            message_id=claim.message_id,
            body=claim.body,
        )
        await self._keep(dead, cause)
        await claim.terminate(reason)

    async def give_back(self, claim: Claim, reason: str) -> None:
        """Returns a claim to the queue after a fault of unknown origin, since another delivery may do better.
        The last delivery makes a dead letter with the reason. Does nothing for a settled claim."""
        if claim.settled:
            return
        if claim.deliveries >= self._connection.settings.max_deliver:
            await self.reject(claim, reason, AbortCause.ATTEMPTS_EXHAUSTED)
        else:
            await claim.give_back()

    async def leave(self, claim: Claim, reason: str) -> None:
        """Puts a request off unchanged that a later version can carry out: during an upgrade such workers
        exist. After LEFT_TIMES times it becomes a dead letter with the reason."""
        spot = address_in(claim.subject)
        occasion, times = for_newer(claim.message_id)
        if spot is None or times >= LEFT_TIMES:
            await self.reject(claim, reason)
            return
        delay = min(LEFT_SECONDS * 2.0 ** min(times, 30), LEFT_SECONDS_MOST)
        log.warning("request %d is left to a later version: %s", claim.sequence, reason)
        await claim.retry_later(entry(claim.queue, spot, occasion, claim.body), delay, "a later version")

    async def bury(self, message: StoredMessage, consumer: str, reason: str, deliveries: int) -> None:
        """Records that a request on the queue has no delivery left, and then takes it off."""
        dead = DeadRequest(
            request_sequence=message.sequence,
            subject=message.subject,
            consumer=consumer,
            reason=reason,
            deliveries=deliveries,
            message_id=message.headers.get(names.MESSAGE_ID, ""),
            body=message.data,
        )
        await self._keep(dead, AbortCause.ATTEMPTS_EXHAUSTED)
        await delete_message(self._connection, names.WORK, message.sequence)

    async def requeue(self, sequence: int, reason: str = "") -> Requeued:
        """Puts a dead letter's request back on its queue and drops the letter.

        A rollout's attempts are numbered above all earlier ones. If its dead-lettering is its outcome, the
        rollout is reopened and the request fenced by that. If somebody reopened it since, or it finished, the
        letter asks for nothing any more and is only removed. Raises NotRequeued if the letter does not exist
        or its request cannot be offered, QueueFull as `Publisher.request`.
        """
        dead = await self.get(sequence)
        if dead is None:
            raise NotRequeued(f"there is no dead letter {sequence}: `orchard dead list` shows them")
        queue, request = _requeuable(dead)
        if request is not None:
            again = await self._reopen(request, dead, reason)
            if again is None:
                await delete_message(self._connection, names.DEAD, sequence)
                return Requeued(queue=queue, sequence=None, request=request)
            request = again
        placed = await self._place(dead, queue, request)
        if placed.result is EnqueueResult.OCCUPIED:
            raise NotRequeued(f"another request of dead letter {sequence} is queued or running: look again")
        stored = placed.sequence
        await self._publisher.event(
            make_event(
                RequestRequeued(dead_sequence=sequence, reason=reason),
                id=f"requeued-{sequence}-{stored}",
                source=self._source,
                campaign=_campaign_of(queue, request),
                rollout_id=request.rollout_id if request else None,
            )
        )
        await delete_message(self._connection, names.DEAD, sequence)
        return Requeued(queue=queue, sequence=stored, request=request)

    async def _place(self, dead: DeadLetter, queue: Queue, request: RolloutRequest | None) -> Enqueued:
        occasion, spot = f"requeued-{dead.sequence}", address_in(dead.subject)
        if request is not None:
            return await self._publisher.offer(rollout_entry(request, occasion))
        if spot is not None:
            return await self._publisher.offer(entry(queue, spot, occasion, dead.body))
        again = OutgoingMessage(dead.subject, dead.body, f"{occasion}-{dead.message_id}")
        return Enqueued(EnqueueResult.STORED, await store(self._connection, again))

    async def _reopen(self, request: RolloutRequest, dead: DeadLetter, reason: str) -> RolloutRequest | None:
        """Reopens the rollout of a dead letter and returns its new request, None if it needs none."""
        newest = await self._publisher.outcome(request.rollout_id)
        event = newest.event if newest is not None else None
        # A requeue that was killed goes on after its own reopening. Who else reopened has made a request.
        if newest is not None and open_at(newest) is not None and event and event.source != self._source:
            return None
        request = msgspec.structs.replace(
            request, failures=0, attempt_base=request.attempt_base + dead.deliveries
        )
        again = await opened(
            self._publisher, [(request, newest)], reason=reason or "requeued", source=self._source
        )
        return again[0] if again else None

    async def _keep(self, dead: DeadRequest, cause: AbortCause) -> None:
        """Records a dead request: outcome, letter, event. It is still on the queue afterwards.

        A request whose rollout has an outcome is not dead but done: only its acknowledgement was missing.
        """
        kept = await last_message(self._connection, names.DEAD, names.dead_subject(dead.stream, dead.name))
        if kept is not None:
            written = read_letter(kept)
            dead = msgspec.structs.replace(dead, reason=written.reason, deliveries=written.deliveries)
        queue = Queue.of_subject(dead.subject)
        request = rollout_in(dead.body) if queue.kind == "rollout" else None
        ended = request is None or await self._abort(request, dead, cause)
        if kept is None and not ended:
            return
        if kept is not None:
            sequence = kept.sequence
        else:
            sequence = await store(self._connection, letter(dead, self._connection.nats.max_payload))
        log.warning(
            "request %s of %s is dead letter %d: %s", dead.name, queue.consumer, sequence, dead.reason
        )
        await self._publisher.event(
            make_event(
                RequestDeadLettered(
                    stream=dead.stream,
                    sequence=dead.request_sequence,
                    consumer=dead.consumer,
                    reason=dead.reason,
                    deliveries=dead.deliveries,
                    dead_sequence=sequence,
                ),
                id=f"dead-{dead.name}",
                source=self._source,
                campaign=_campaign_of(queue, request),
                rollout_id=request.rollout_id if request else None,
                attempt=request.attempt_base + dead.deliveries if request else None,
            )
        )

    async def _abort(self, request: RolloutRequest, dead: DeadRequest, cause: AbortCause) -> bool:
        """Ends the rollout, so that its campaign can end. Returns False if it has another outcome already."""
        (started,) = await self._publisher.starts([request.rollout_id])
        event = make_event(
            aborted(request, cause, f"dead letter: {dead.reason}", started, dead.deliveries),
            id=f"dead-{dead.name}-aborted",
            source=self._source,
            campaign=request.campaign,
            rollout_id=request.rollout_id,
            attempt=request.attempt_base + dead.deliveries,
        )
        try:
            await self._publisher.terminal(event, request.fence)
        except OutcomeRefused as refusal:
            log.info("dead request %d: %s", dead.request_sequence, refusal)
            return False
        return True


def _requeuable(dead: DeadLetter) -> tuple[Queue, RolloutRequest | None]:
    """Returns the queue that a letter's request goes back to, and the request if it is a rollout's. Raises
    NotRequeued."""
    try:
        queue = Queue.of_subject(dead.subject)
        return queue, read_rollout_request(dead.body) if queue.kind == "rollout" else None
    except InvalidRequest as error:
        if error.rollout is not None:
            raise NotRequeued(f"dead letter {dead.sequence} cannot be carried out: {error}") from error
        return queue, None  # whoever claims it says again why it is none
    except ValueError as error:
        raise NotRequeued(f"dead letter {dead.sequence} has no queue to go to: {error}") from error


def _campaign_of(queue: Queue, request: RolloutRequest | None) -> str:
    """Returns the campaign of the events about a request; `unknown` if the request names none."""
    if request is not None:
        return request.campaign
    return "tasks" if queue.kind == "prove" else "unknown"

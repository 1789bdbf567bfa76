"""Delayed requests: durable on the server, invisible to the work queue and to KEDA until they are due.

A delayed request is a message schedule (nats-server 2.12) on a subject of its own in LATER. At its time the
server itself moves it to a `due` subject of the same stream, which survives any restart; `Delayed` then puts
it on the work queue under its own id. Schedules cannot live in WORK itself: see `names.LATER`.
"""

import asyncio
import logging

from orchard.schemas.queues import Queue
from orchard.streams import names
from orchard.streams.client import Frame, headers_of
from orchard.streams.connection import Connection
from orchard.streams.deadletter_codec import DeadRequest, letter
from orchard.streams.enqueue import EnqueueResult, enqueue
from orchard.streams.entries import EntryAddress, address_in, work_subject
from orchard.streams.errors import FAULTS, StreamsError
from orchard.streams.publish import OutgoingMessage, store
from orchard.streams.publisher import Publisher
from orchard.streams.pull import ACK, Puller, nak_for, settle
from orchard.streams.records import Delivery

log = logging.getLogger(__name__)

_FORWARDERS = 8
_BLOCKED_WAIT = 1.0
"""Seconds until a request is tried again while its predecessor is being settled."""
_FULL_WAIT = 2.0
_PULL_SECONDS = 30.0


class Delayed:
    """Puts requests on the work queue when they are due. Any number of these may run."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._publisher = Publisher(connection)

    async def run(self) -> None:
        """Forwards until cancelled; raises as `Publisher.offer` does, but not for a full queue."""
        puller = Puller(self._connection, names.LATER, names.DUE_CONSUMER)
        try:
            async with asyncio.TaskGroup() as tasks:
                for _ in range(_FORWARDERS):
                    tasks.create_task(self._forward_each(puller))
        finally:
            await puller.close()

    async def _forward_each(self, puller: Puller) -> None:
        while True:
            message = await puller.pull(_PULL_SECONDS)
            if message is not None:
                await settle(self._connection, message.reply.decode(), await self._verdict(message))

    async def _verdict(self, message: Frame) -> bytes:
        """Decides how a due request is settled. One that can never be queued does not delay others."""
        try:
            return await self._forward(message)
        except FAULTS:
            raise
        except StreamsError as error:
            await self._bury(message, str(error))
            return ACK

    async def _forward(self, message: Frame) -> bytes:
        """Publishes a due request and returns how it is settled: one that must wait lets the others pass."""
        subject, headers = _subject(message), headers_of(message.headers)
        try:
            Queue.of_subject(subject)
        except ValueError as error:
            raise StreamsError(str(error)) from error
        address = address_in(subject)
        due = OutgoingMessage(
            subject=work_subject(subject),
            payload=message.data,
            id=headers.get(names.ORIGINAL_ID, ""),
            expected=None if address is None else 0,
        )
        placed = await enqueue(self._connection, names.WORK, due)
        if placed.result is EnqueueResult.FULL:
            log.warning("the work queue is full: a delayed request for %s waits", due.subject)
            return nak_for(_FULL_WAIT)
        blocked = (
            address is not None and placed.result is EnqueueResult.OCCUPIED and not await self._over(address)
        )
        return nak_for(_BLOCKED_WAIT) if blocked else ACK

    async def _bury(self, message: Frame, reason: str) -> None:
        """Makes a request that fits no queue a dead letter."""
        delivery = Delivery.of(message.reply)
        dead = DeadRequest(
            stream=names.LATER,
            request_sequence=delivery.sequence,
            subject=_subject(message),
            consumer=names.DUE_CONSUMER,
            reason=f"terminated: {reason}",
            deliveries=delivery.deliveries,
            message_id=headers_of(message.headers).get(names.ORIGINAL_ID, ""),
            body=message.data,
        )
        await store(self._connection, letter(dead, self._connection.nats.max_payload))

    async def _over(self, address: EntryAddress) -> bool:
        """Whether the rollout got an outcome, or was reopened, since the request was made."""
        newest = await self._publisher.outcome(address.key)
        return newest is not None and newest.sequence != address.fence


def _subject(message: Frame) -> str:
    return message.subject.decode("utf-8", "replace")

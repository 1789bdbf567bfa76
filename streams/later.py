"""Delayed requests: durable on the server, invisible to the work queue and to KEDA until they are due.

A delayed request is a message schedule (nats-server 2.12) on a subject of its own in LATER. At its time the
server itself moves it to a `due` subject of the same stream, which survives any restart; `forward_due` then
puts it on the work queue under its own id. Schedules cannot live in WORK itself: see `names.LATER`.
"""

import asyncio
import logging
from datetime import UTC, datetime, timedelta

from nats.aio.msg import Msg

from orchard.schemas.identity import digest
from orchard.streams import names
from orchard.streams.confirmed import Message, store
from orchard.streams.connection import Connection
from orchard.streams.errors import QueueFull
from orchard.streams.letters import letter
from orchard.streams.pull import ACK, PROGRESS, Puller, settle
from orchard.streams.records import Delivery
from orchard.streams.settings import Queue

log = logging.getLogger(__name__)

_FULL_WAIT = 2.0
_PULL_SECONDS = 30.0


def delayed(queue: Queue, message_id: str, body: bytes, delay: float) -> Message:
    """The schedule of a request that is due in `delay` seconds."""
    due = datetime.now(UTC) + timedelta(seconds=delay)
    return Message(
        subject=f"{queue.later_subject}.{digest(message_id)}",
        payload=body,
        id=message_id,
        extra={
            names.SCHEDULE: f"@at {due.isoformat().replace('+00:00', 'Z')}",
            names.SCHEDULE_TARGET: queue.due_subject,
            names.ORIGINAL_ID: message_id,
        },
    )


class Later:
    """Puts requests on the work queue when they are due. Any number of these may run."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def run(self) -> None:
        """Forward until cancelled; sits out a full queue, raises else as `Publisher.request` does."""
        puller = Puller(self._connection, names.LATER, names.DUE_CONSUMER)
        try:
            while True:
                message = await puller.pull(_PULL_SECONDS)
                if message is not None:
                    await self._forward(message)
        finally:
            await puller.close()

    async def _bury(self, message: Msg, original: str, reason: str) -> None:
        """What can go to no queue becomes a dead letter, with the stream it came from in its name."""
        delivery = Delivery.of(message.reply)
        dead = letter(
            stream=names.LATER,
            sequence=delivery.sequence,
            subject=message.subject,
            consumer=names.DUE_CONSUMER,
            reason=f"terminated: {reason}",
            deliveries=delivery.deliveries,
            message_id=original,
            body=message.data,
        )
        await store(self._connection, dead)
        await settle(self._connection, message.reply, ACK)

    async def _forward(self, message: Msg) -> None:
        """Publish, then acknowledge: killed between the two, the next try is recognized by its id."""
        original = (message.headers or {}).get(names.ORIGINAL_ID, "")
        try:
            queue = Queue.of_subject(message.subject)
        except ValueError as error:
            await self._bury(message, original, str(error))
            return
        due = Message(subject=queue.subject, payload=message.data, id=original)
        while True:
            try:
                await store(self._connection, due)
                break
            except QueueFull:
                log.warning("the work queue is full: a delayed request for %s waits", queue.consumer)
                await settle(self._connection, message.reply, PROGRESS)
                await asyncio.sleep(_FULL_WAIT)
        await settle(self._connection, message.reply, ACK)

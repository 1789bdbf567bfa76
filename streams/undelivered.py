"""Finds requests that the queue has given up: named by the server's advisories, or found by a sweep.

The advisories are captured by a stream, so none is missed while nobody listens. Every step is idempotent and
a request itself is deleted last, so any number of processes may run this and be killed anywhere.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Annotated, NamedTuple

import msgspec
from nats.js.api import ConsumerInfo

from orchard.schemas.decoding import Unreadable, decode
from orchard.streams import names
from orchard.streams.connection import Connection
from orchard.streams.entries import address_in
from orchard.streams.errors import FAULTS, TopologyError, WrongSequence
from orchard.streams.publish import OutgoingMessage, store
from orchard.streams.pull import ACK, Puller, settle
from orchard.streams.reading import bounds, consumers, delete_message, message_at, next_message, subjects
from orchard.streams.records import StoredMessage, whole_number
from orchard.streams.topology import filters_of, widen

log = logging.getLogger(__name__)

SWEEP_SECONDS = 60.0
_RECHECK_SECONDS = 1.0
_PULL_SECONDS = 30.0

Bury = Callable[[StoredMessage, str, str, int], Awaitable[None]]
"""Takes a dead request off the queue: the message, its consumer, why it is dead, and its deliveries."""


class Advisory(msgspec.Struct, frozen=True):
    """The fields that are read of the server's notices (io.nats.jetstream.advisory.v1.max_deliver and
    .terminated)."""

    type: str
    stream: str
    consumer: str
    stream_seq: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
    timestamp: datetime
    deliveries: int = 0
    reason: str = ""

    @property
    def why(self) -> str:
        return f"terminated: {self.reason}" if self.type.endswith(".terminated") else "max_deliver"


_ADVISORIES = msgspec.json.Decoder(Advisory)


class _QueueState(NamedTuple):
    consumer: str
    filters: list[str]
    settled: int
    """Sequence up to which nothing is open."""
    open: int
    """Number of messages that wait or are claimed."""


class Undelivered:
    """Gives each request that will not be delivered any more to `bury`."""

    def __init__(self, connection: Connection, bury: Bury) -> None:
        self._connection = connection
        self._bury = bury

    async def run(self) -> None:
        """Handles advisories as they come and sweeps every minute, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow_advisories())
            tasks.create_task(self._sweep_for_ever())

    async def sweep_once(self) -> int:
        """Handles requests that the queue will never deliver though no advisory says so; counts them.

        The server does not say which messages are claimed. A message is neither waiting nor claimed where
        nothing is, below what was delivered while no claim is open, and below the acknowledgement floor. So
        in a busy queue this may wait until open claims have ended. Its acknowledgement may be under way at
        this moment, so it is looked at twice.
        """
        suspects = [
            (queue.consumer, message)
            for queue in await self._queues()
            if (found := await self._up_to(queue)) and await self._held(queue) > queue.open
            for message in found
        ]
        if not suspects:
            return 0
        await asyncio.sleep(_RECHECK_SECONDS)
        handled = 0
        for consumer, message in suspects:
            if await message_at(self._connection, names.WORK, message.sequence) != message:
                continue
            try:
                await self._again(message, consumer)
            except FAULTS:
                raise
            except Exception:
                log.exception("request %d cannot be swept", message.sequence)
            else:
                handled += 1
        return handled

    async def _again(self, message: StoredMessage, consumer: str) -> None:
        """Puts a swept request at the end of its queue, and buries it when that was done often enough.

        It may have had all its deliveries, and its advisory was lost. Or it had none: a consumer that was
        without one of its filters for a moment has passed over all that the filter matches.
        """
        deliveries = self._connection.settings.max_deliver
        times = whole_number(message.headers.get(names.SWEPT, "")) or 0
        if times >= deliveries:
            await self._bury(message, consumer, "swept", deliveries)
            return
        log.warning("request %d of %s was not delivered: it is queued again", message.sequence, consumer)
        copy = OutgoingMessage(
            message.subject,
            message.data,
            id=f"swept-{times}-{message.headers.get(names.MESSAGE_ID, message.sequence)}",
            expected=message.sequence if address_in(message.subject) else None,
            extra={names.SWEPT: str(times + 1)},
        )
        try:
            await store(self._connection, copy)
        except WrongSequence:
            log.debug("request %d was queued again before", message.sequence)
        await delete_message(self._connection, names.WORK, message.sequence)

    async def _up_to(self, queue: _QueueState) -> list[StoredMessage]:
        """Reads the messages of a queue up to the sequence below which nothing is open."""
        found = []
        for pattern in queue.filters:
            message = await next_message(self._connection, names.WORK, 1, pattern)
            while message is not None and message.sequence <= queue.settled:
                found.append(message)
                message = await next_message(self._connection, names.WORK, message.sequence + 1, pattern)
        return found

    async def _queues(self) -> list[_QueueState]:
        last = (await bounds(self._connection, names.WORK)).last
        infos = await consumers(self._connection, names.WORK)
        for info in infos:
            try:
                await widen(self._connection, info.config)
            except TopologyError as error:
                log.error("%s", error)
        return [_state(info, last) for info in infos]

    async def _held(self, queue: _QueueState) -> int:
        """Counts the messages of a queue, whatever their state."""
        counts = [await subjects(self._connection, names.WORK, pattern) for pattern in queue.filters]
        return sum(sum(count.values()) for count in counts)

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
                await settle(self._connection, message.reply.decode(), ACK)
        finally:
            await puller.close()

    async def _sweep_for_ever(self) -> None:
        while True:
            await self.sweep_once()
            await asyncio.sleep(SWEEP_SECONDS)

    async def _notice(self, advisory: Advisory) -> None:
        """Buries a request that the server gave up. A work stream that lost its tail may have given the
        sequence to another message since, which is younger than the notice."""
        request = await message_at(self._connection, names.WORK, advisory.stream_seq)
        if request is None or request.time > advisory.timestamp:
            log.info("request %d (%s) is off the queue already", advisory.stream_seq, advisory.why)
            return
        await self._bury(request, advisory.consumer, advisory.why, advisory.deliveries)


def _state(info: ConsumerInfo, last: int) -> _QueueState:
    """Reads a queue's state from its consumer; `last` is the newest sequence of the stream before `info` was
    asked for."""
    position = info.ack_floor if info.num_ack_pending else info.delivered
    settled = position.stream_seq if position else 0
    open_ = (info.num_pending or 0) + (info.num_ack_pending or 0)
    filters = filters_of(info.config) or [names.WORK_SUBJECTS]
    return _QueueState(info.name, filters, settled if open_ else last, open_)

"""Claims long jobs: one request for each free slot, leased by heartbeats, settled in one of five ways."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import groupby
from types import TracebackType
from typing import Self

import msgspec

from orchard.schemas.queues import Queue
from orchard.streams import names
from orchard.streams.client import Frame, headers_of
from orchard.streams.connection import Connection
from orchard.streams.deadletter_codec import short_reason
from orchard.streams.enqueue import enqueue_later
from orchard.streams.entries import QueueEntry
from orchard.streams.heartbeats import Heartbeats, Lease, check_alive
from orchard.streams.pull import ACK, NAK, TERM, settle
from orchard.streams.reading import delete_message, message_at
from orchard.streams.records import Delivery
from orchard.streams.settings import TeamSettings
from orchard.streams.team_queues import TeamQueues
from orchard.streams.topology import NO_TEAMS

log = logging.getLogger(__name__)


LENT_SECONDS = 0.5
"""Seconds that a slot that found nothing on its own queue waits on each of the others."""


class Claims:
    """The claims of one process on one queue, and while that is empty on others that it lends its slots to.
    Queues that differ in their team alone and follow each other are as one, which is claimed from in fair
    order. An asynchronous context manager, or `start` and `close`."""

    def __init__(
        self,
        connection: Connection,
        queue: Queue,
        lends: Sequence[Queue] = (),
        teams: Mapping[str, TeamSettings] = NO_TEAMS,
    ) -> None:
        self.queue = queue
        self.connection = connection
        self._teams = teams
        self._heartbeats = Heartbeats(connection.settings, connection.url, connection.name)
        self._queues = (queue, *lends)
        self._pulled: list[TeamQueues] = []

    async def start(self) -> None:
        """Starts the heartbeat thread; raises as `connect` does."""
        await self._heartbeats.start()
        self._pulled = [
            TeamQueues(self.connection, list(queues), self._teams)
            for _, queues in groupby(self._queues, lambda queue: msgspec.structs.replace(queue, team=""))
        ]

    async def close(self) -> None:
        """Claims nothing more and stops the heartbeats. Settle open claims first: what is left open is
        delivered again after ack_wait."""
        for queues in self._pulled:
            await queues.close()
        await self._heartbeats.stop()

    async def next(self, timeout: float) -> "Claim | None":
        """Claims the next request; None after `timeout` seconds without one, or without room for its events.

        Then each queue that is lent to is asked for LENT_SECONDS. May be cancelled: a request that arrives
        meanwhile is handed back. Raises TopologyError when the queue does not exist, StreamsError when
        heartbeats have failed.
        """
        assert self._pulled, "start the claims first"
        check_alive(self._heartbeats)
        deadline = asyncio.get_running_loop().time() + timeout
        if not await self.connection.room(timeout):
            return None
        timeout = deadline - asyncio.get_running_loop().time()
        for queues in self._pulled:
            found = await queues.pull(timeout if queues is self._pulled[0] else LENT_SECONDS)
            if found is not None:
                queue, message = found
                settled = partial(queues.release, queue)
                return Claim(self.connection, self._heartbeats, queue, message, settled)
        return None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class Claim:
    """One delivery of a request, alive by heartbeats until it is settled, once.

    Attributes: `body`, `subject`, `queue`, `sequence` (in the work stream), `deliveries` (from 1),
    `message_id`, and `lost`, an event that is set when no heartbeat was confirmed for ack_wait, so that
    another process may have the request by now. A lost claim may still finish: the terminal event's
    compare-and-set decides.
    """

    def __init__(
        self,
        connection: Connection,
        heartbeats: Heartbeats,
        queue: Queue,
        message: Frame,
        on_settled: Callable[[], None],
    ) -> None:
        delivery = Delivery.of(message.reply)
        self.body = message.data
        self.subject = message.subject.decode("utf-8", "replace")
        self.queue = queue
        self.sequence = delivery.sequence
        self.deliveries = delivery.deliveries
        self.message_id = headers_of(message.headers).get(names.MESSAGE_ID, "")
        self.lost = asyncio.Event()
        self._connection = connection
        self._on_settled = on_settled
        self._heartbeats = heartbeats
        loop = asyncio.get_running_loop()
        self._lease = Lease(message.reply.decode(), lambda: _tell(loop, self.lost))
        self._settled = False
        heartbeats.add(self._lease)

    async def complete(self) -> None:
        """Acknowledges a request that is done: its outcome is stored already. Confirmed by the server."""
        await self._settle(ACK)

    async def retry_later(self, entry: QueueEntry, delay: float, reason: str) -> None:
        """Puts `entry` on the queue in `delay` seconds, durably, then lets this delivery go.

        The old message is acknowledged, not terminated: termination is for poison and makes a dead letter.
        A delayed nak would count as open work and make KEDA start workers that find nothing. An entry that
        is delayed already, for another delivery of the same request, stays as it is.
        """
        log.info("request %d of %s again in %.0f s: %s", self.sequence, self.queue.consumer, delay, reason)
        await enqueue_later(self._connection, entry, delay)
        await self._settle(ACK)

    async def await_rest(self, entry: QueueEntry, key: str, seconds: float, reason: str) -> None:
        """Puts `entry` off as `retry_later` does, until the endpoint of this key, which is not asked for
        `seconds`, answers again."""
        log.debug("request %d of %s waits: %s", self.sequence, self.queue.consumer, reason)
        await enqueue_later(self._connection, entry, seconds, awaits=key)
        await self._settle(ACK)

    async def terminate(self, reason: str) -> None:
        """Terminates a request that nobody can carry out and that is kept elsewhere already."""
        await self._settle(TERM + b" " + short_reason(reason).encode())

    async def give_back(self) -> None:
        """Hands the request back to be delivered again, unless this was its last delivery."""
        await self._settle(NAK)

    @property
    def settled(self) -> bool:
        """Whether it was settled in one of these ways, or settling has failed."""
        return self._settled

    async def _settle(self, verdict: bytes) -> None:
        if self._settled:
            raise RuntimeError(f"request {self.sequence} of {self.queue.consumer} is settled already")
        self._settled = True
        try:
            known = await settle(self._connection, self._lease.reply, verdict)
            if not known and verdict == ACK:
                # Done is done: what acknowledging does on a work queue, without the delivery. The other
                # verdicts need nothing: the request comes again, to be taken or rejected again.
                await self._delete()
        finally:
            self._heartbeats.remove(self._lease)
            self._on_settled()

    async def _delete(self) -> None:
        """Deletes the request, unless a stream that lost its tail has given its sequence to another."""
        held = await message_at(self._connection, names.WORK, self.sequence)
        if held is not None and (held.subject, held.data) == (self.subject, self.body):
            await delete_message(self._connection, names.WORK, self.sequence)


def _tell(loop: asyncio.AbstractEventLoop, lost: asyncio.Event) -> None:
    """Sets an event of the main loop from the heartbeat thread; a closed loop has no waiter."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(lost.set)

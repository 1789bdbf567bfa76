"""Follows any stream from a sequence on, over lost connections and restarts of the server.

A reader is an ephemeral pull consumer without acknowledgements: the position belongs to the reader, who
makes a new consumer from its position whenever the old one or the connection is gone.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError
from nats.js import api

from orchard.schemas.positions import sequence_in
from orchard.streams.client import Frame, headers_of
from orchard.streams.connection import Connection, ConnectionLost
from orchard.streams.errors import NatsUnreachable
from orchard.streams.names import STORED_AT, known_subject, stream_number
from orchard.streams.publish import PublishRetry, Unavailable, not_permitted
from orchard.streams.records import DELIVERED, Delivery, whole_number
from orchard.streams.tasks import waited

log = logging.getLogger(__name__)

BATCH = 1024
BATCH_BYTES = 8 * 1024 * 1024
"""Number of messages, and of bytes, in one request; at most twice as many are in memory. The server cuts off
a client that lets 64 MiB wait."""
_ROOM = 64 * 1024
_STORED_AT = STORED_AT.encode()
_EXPIRES = 60.0
_HEARTBEAT = 5.0
_SILENCE = 3 * _HEARTBEAT
"""Seconds without a heartbeat after which the consumer counts as gone."""
_DONE = frozenset({"Batch Completed", "Message Size Exceeds MaxBytes"})
"""Descriptions of status 409 that mean that all messages or bytes of a request were given, and the consumer
continues."""
_INACTIVE = 60.0
"""Seconds after which the server removes the consumer of a reader that died."""


class Arrived(NamedTuple):
    """A message of a stream; `time` is when the stream first stored it, in nanoseconds since the epoch. An
    event has its sequence over all streams, and the subject that it would have in stream 0."""

    sequence: int
    subject: str
    time: int
    data: bytes
    head: bytes | dict[str, str]
    """Header block, or the headers where they were stored apart."""

    @property
    def headers(self) -> dict[str, str]:
        return self.head if isinstance(self.head, dict) else headers_of(self.head)


def stored_at(headers: dict[str, str], time: int) -> int:
    """Time when the stream first stored a message, from its header if it was restored; nanoseconds since the
    epoch."""
    said = whole_number(headers.get(STORED_AT, ""))
    return time if said is None else said


class Reader:
    """Reads a stream from a position, which outlives each consumer: a sequence in this stream."""

    def __init__(
        self, connection: Connection, stream: str, position: int = 1, filters: Sequence[str] = ()
    ) -> None:
        self.position = position
        self.caught_up = False
        """Whether no message that matches was stored after the last one."""
        self._connection = connection
        self._stream = stream
        self._number = stream_number(stream)
        """Number of the stream of events; None for another stream."""
        self._filters = list(filters)
        self._subscription: Subscription | None = None
        self._consumer = ""
        self._arrived: list[Frame] = []
        self._news = asyncio.Event()
        self._broken = True
        self._outstanding = 0
        self._delivered = 0
        self._silent = 0.0
        """Seconds of waiting since the consumer was last heard of. A caller with little patience waits for it
        as long as others, and time that the caller spends elsewhere does not count."""
        connection.on_loss(self._break)

    async def next(self, idle: float | None) -> list[Arrived]:
        """Waits for messages, at least one; empty after `idle` seconds, or when there is nothing."""
        clock = asyncio.get_running_loop().time
        deadline = None if idle is None else clock() + idle
        while True:
            await self._ask_for_more()
            if batch := self._take():  # before a reopening drops it: a slow reader would get nowhere
                return batch
            if self._broken:
                if not await self._reopen(deadline) or self.caught_up:
                    return []
                continue
            # Which of the two limits ends the wait is decided before it: clocks of event loops are coarse.
            patience = _SILENCE - self._silent
            left = patience if deadline is None else min(max(deadline - clock(), 0.0), patience)
            try:
                await waited(self._news.wait(), left)
            except TimeoutError:
                if left < patience:
                    self._silent += left
                    return []
                self._check_permitted()
                log.info("the consumer %s fell silent: reading on with a new one", self._consumer)
                self._broken = True

    async def close(self) -> None:
        """Removes the consumer; a server that cannot be asked removes it by itself."""
        self._connection.forget_loss(self._break)
        await self._drop()

    def _take(self) -> list[Arrived]:
        arrived, self._arrived = self._arrived, []
        self._news.clear()
        batch: list[Arrived] = []
        for frame in arrived:
            delivery = Delivery.of(frame.reply)
            if delivery.consumer_sequence != self._delivered + 1:
                log.warning("a message before %d was lost on the way: reading it again", delivery.sequence)
                self._broken = True
                break
            self._delivered = delivery.consumer_sequence
            self.position = delivery.sequence + 1
            self.caught_up = delivery.waiting == 0
            time = delivery.time
            if _STORED_AT in frame.headers:
                time = stored_at(headers_of(frame.headers), time)
            subject = frame.subject.decode("utf-8", "replace")
            sequence = delivery.sequence
            if self._number:
                sequence = sequence_in(self._number, sequence)
                subject = known_subject(subject, self._number)
            batch.append(Arrived(sequence, subject, time, frame.data, frame.headers))
        if batch and self._number is not None:
            self._connection.saw(batch[-1].sequence, batch[-1].data)
        return batch

    @property
    def _unguarded(self) -> bool:
        """Whether reading may start before the guard's check. Events must wait: after a loss other events may
        have their sequences, and what follows would not belong to what was read before."""
        return self._number is None or not self._connection.guarded

    async def _ask_for_more(self) -> None:
        if self._outstanding > BATCH // 2 or self._broken:
            return
        request = {
            "batch": BATCH,
            "max_bytes": max(BATCH_BYTES, self._connection.nats.max_payload + _ROOM),
            "expires": int(_EXPIRES * 1e9),
            "idle_heartbeat": int(_HEARTBEAT * 1e9),
        }
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{self._stream}.{self._consumer}"
        assert self._subscription is not None
        try:
            await self._connection.nats.publish(
                subject, msgspec.json.encode(request), reply=self._subscription.subject
            )
        except (NatsError, OSError) as error:
            log.debug("asking for more events: %s", error)
            self._broken = True
        else:
            self._outstanding += BATCH

    async def _reopen(self, deadline: float | None) -> bool:
        """Makes a new consumer from the position on; False where there is no connection, or the guard lets
        nothing pass, until `deadline` of the loop's clock."""
        await self._drop()
        retry = PublishRetry(self._connection, to_read=self._unguarded)
        clock = asyncio.get_running_loop().time
        while True:
            try:
                left = retry.left if deadline is None else max(deadline - clock(), 0.0)
                await self._connection.ready(left, to_read=self._unguarded)
            except NatsUnreachable:
                if deadline is None:
                    raise
                return False
            try:
                await self._open()
                return True
            except (NatsError, ConnectionLost, OSError) as error:
                retry.problem = Unavailable(str(error))
                if isinstance(error, TimeoutError):
                    self._check_permitted()
            await retry.pause(self._stream)

    def _check_permitted(self) -> None:
        """Raises StoreRefused where the server lets the user not read: it tells that beside the answers."""
        refused = not_permitted(self._connection, self._stream, f"read the stream {self._stream}")
        if refused is not None:
            raise refused

    async def _open(self) -> None:
        nats = self._connection.nats
        self._arrived, self._outstanding, self._delivered, self._broken = [], 0, 0, False
        self._silent = 0.0
        self._news.clear()
        self._subscription = await nats.listen(nats.new_inbox(), self._on_frame)
        info = await self._connection.jetstream.add_consumer(
            self._stream,
            api.ConsumerConfig(
                deliver_policy=api.DeliverPolicy.BY_START_SEQUENCE,
                opt_start_seq=self.position,
                ack_policy=api.AckPolicy.NONE,
                filter_subjects=self._filters or None,
                inactive_threshold=_INACTIVE,
                mem_storage=True,
                num_replicas=1,
            ),
        )
        self._consumer = info.name
        self.caught_up = not info.num_pending

    async def _drop(self) -> None:
        subscription, self._subscription = self._subscription, None
        consumer, self._consumer = self._consumer, ""
        try:
            if subscription is not None:
                await subscription.unsubscribe()
            if consumer:
                await self._connection.ask(f"$JS.API.CONSUMER.DELETE.{self._stream}.{consumer}", timeout=1.0)
        except (NatsError, ConnectionLost, TimeoutError, OSError) as error:
            log.debug("removing the consumer %s: %s", consumer, error)

    def _on_frame(self, frame: Frame) -> None:
        self._silent = 0.0
        if frame.reply.startswith(DELIVERED):
            self._outstanding -= 1
            self._arrived.append(frame)
            self._news.set()
            return
        headers = headers_of(frame.headers)
        status = headers.get("Status")
        if status in ("404", "408") or headers.get("Description") in _DONE:
            left = whole_number(headers.get("Nats-Pending-Messages", ""))
            self._outstanding -= BATCH if left is None else left
        elif status != "100":
            log.info("the consumer %s ended (%s): reading on with a new one", self._consumer, headers)
            self._broken = True
        self._news.set()

    def _break(self) -> None:
        self._broken = True
        self._news.set()

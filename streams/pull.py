"""Pulls single messages from a durable consumer, and settles them: no prefetch, nothing swallowed.

nats-py's `fetch` hides the server's refusals (409) and, when cancelled or late, leaves a delivered message
in a buffer where its lease runs out. Here every pull has an inbox that no other pull shares, refusals are
logged, and a message that comes when nobody waits is handed back at once.
"""

import asyncio
import logging
from contextlib import suppress

import msgspec
from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError

from orchard.streams.client import Frame, headers_of
from orchard.streams.connection import Connection, ConnectionLost
from orchard.streams.errors import NatsUnreachable, TopologyError
from orchard.streams.publish import NOBODY_GRACE, NobodyListens, PublishRetry, Unavailable
from orchard.streams.records import DELIVERED
from orchard.streams.replies import status_of, within

log = logging.getLogger(__name__)

ACK = b"+ACK"
NAK = b"-NAK"
PROGRESS = b"+WPI"
TERM = b"+TERM"


def nak_for(seconds: float) -> bytes:
    """Makes a refusal after which the message comes again in so many seconds. Not for WORK: see
    `retry_later`."""
    return NAK + b" " + msgspec.json.encode({"delay": int(seconds * 1e9)})


_ANSWER_GRACE = 5.0
"""Seconds after a pull's expiry in which the server must have said so."""
_PULL_SECONDS = 30.0
"""Maximum of a single pull in seconds; longer waits are several pulls."""
_WARN_EVERY = 30.0
_BACKOFF = 0.25
_SETTLE_TIMEOUT = 1.0
_SILENT_TRIES = 2


class Puller:
    """Pulls from one consumer, for any number of slots at once."""

    def __init__(self, connection: Connection, stream: str, consumer: str, *, quota: bool = False) -> None:
        """With a `quota` the consumer has few claims open on purpose."""
        self._quota = quota
        self._connection = connection
        self._stream = stream
        self._consumer = consumer
        self._idle: list[_Slot] = []
        self._busy: set[_Slot] = set()
        self._closing: set[asyncio.Task[None]] = set()
        self._nobody_since: float | None = None
        self._warned: dict[str, float] = {}
        self._clock = asyncio.get_running_loop().time
        connection.on_loss(self._lost)

    async def pull(self, timeout: float) -> Frame | None:
        """Pulls the next message; None after `timeout` seconds without one or without a connection.

        Raises TopologyError when the consumer has been missing for a while.
        """
        deadline = self._clock() + timeout
        while (left := deadline - self._clock()) > 0:
            try:
                await self._connection.ready(left)
                message = await self._once(min(left, _PULL_SECONDS))
            except NatsUnreachable:
                return None
            except ConnectionLost as error:
                log.debug("pulling from %s: %s", self._consumer, error)
                continue
            if message is None:
                continue
            status = status_of(message)
            if not status:
                self._nobody_since = None
                return message
            await self._refused(status, message, deadline)
        return None

    async def pull_now(self) -> Frame | None:
        """Pulls a message that waits; None also without a connection, and while the consumer may have no more
        messages open."""
        try:
            message = await self._once(0.0)
        except (ConnectionLost, NatsUnreachable) as error:
            log.debug("pulling from %s: %s", self._consumer, error)
            return None
        return None if message is None or status_of(message) else message

    async def close(self) -> None:
        """Withdraws interest, so that the server delivers nothing more here; hands back messages under
        way."""
        self._connection.forget_loss(self._lost)
        for slot in [*self._idle, *self._busy]:
            self._discard(slot)
        self._idle.clear()
        if self._closing:
            await asyncio.wait(self._closing)

    async def _once(self, seconds: float) -> Frame | None:
        slot = self._idle.pop() if self._idle else await _Slot.open(self._connection)
        self._busy.add(slot)
        try:
            message = await slot.pull(f"$JS.API.CONSUMER.MSG.NEXT.{self._stream}.{self._consumer}", seconds)
        except TimeoutError:
            log.debug("a pull from %s was not answered", self._consumer)
            self._discard(slot)
            return None
        except BaseException:
            self._discard(slot)
            raise
        self._busy.discard(slot)
        self._idle.append(slot)
        return message

    def _discard(self, slot: "_Slot") -> None:
        self._busy.discard(slot)
        task = asyncio.ensure_future(slot.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def _lost(self) -> None:
        for slot in [*self._idle, *self._busy]:
            slot.fail()
        idle, self._idle = self._idle, []
        for slot in idle:
            self._discard(slot)

    async def _refused(self, status: str, message: Frame, deadline: float) -> None:
        description = headers_of(message.headers).get("Description", "")
        left = max(deadline - self._clock(), 0.0)
        if status == "503":
            now = self._clock()
            self._nobody_since = self._nobody_since or now
            if now - self._nobody_since > NOBODY_GRACE:
                raise TopologyError(
                    f"the queue {self._consumer} does not exist on {self._connection.host}: declare the "
                    "topology (`orchard up`), and check that JetStream is enabled"
                )
            await asyncio.sleep(min(_BACKOFF, left))
            return
        self._nobody_since = None
        if status in ("404", "408"):
            await self._check_cap()
        elif description == "Exceeded MaxWaiting":
            self._warn(
                "max_waiting",
                "the queue %s has as many waiting claims as nats.max_waiting allows: slots of this process "
                "stay idle; size max_waiting for the whole fleet before the queue is created",
            )
            await asyncio.sleep(min(1.0, left))
        else:
            log.info("a pull from %s was refused: %s %s", self._consumer, status, description)
            await asyncio.sleep(min(_BACKOFF, left))

    async def _check_cap(self) -> None:
        """Warns if nothing came because the consumer may not have more messages open."""
        if self._quota:
            return
        if self._clock() - self._warned.get("checked", -_WARN_EVERY) < _WARN_EVERY:
            return
        self._warned["checked"] = self._clock()
        try:
            info = await self._connection.jetstream.consumer_info(self._stream, self._consumer)
        except (NatsError, TimeoutError) as error:
            log.debug("could not look at %s: %s", self._consumer, error)
            return
        cap = info.config.max_ack_pending or 0
        if info.num_pending and 0 < cap <= (info.num_ack_pending or 0):
            self._warn(
                "max_ack_pending",
                "the queue %s has as many open claims as nats.max_ack_pending allows while "
                "requests wait: raise it to the slots of the whole fleet",
            )

    def _warn(self, what: str, text: str) -> None:
        if self._clock() - self._warned.get(what, -_WARN_EVERY) >= _WARN_EVERY:
            self._warned[what] = self._clock()
            log.warning(text, self._consumer)


class _Slot:
    """An inbox that one pull at a time uses."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._inbox = connection.nats.new_inbox()
        self._subscription: Subscription | None = None
        self._waiter: asyncio.Future[Frame] | None = None
        self._late: set[asyncio.Task[None]] = set()
        """Messages that nobody waits for, on their way back."""

    @classmethod
    async def open(cls, connection: Connection) -> "_Slot":
        slot = cls(connection)
        try:
            slot._subscription = await connection.nats.listen(slot._inbox, slot._on_frame)
        except (NatsError, OSError) as error:
            raise ConnectionLost(str(error)) from error
        return slot

    async def pull(self, subject: str, seconds: float) -> Frame:
        """Pulls a message or a status, within 0 seconds one that waits; raises TimeoutError when neither
        came, ConnectionLost."""
        limit = {"expires": max(int(seconds * 1e9), 1_000_000)} if seconds else {"no_wait": True}
        request = msgspec.json.encode({"batch": 1, **limit})
        waiter = self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._connection.nats.publish(subject, request, reply=self._inbox)
            return await within(waiter, seconds + _ANSWER_GRACE)
        except asyncio.CancelledError:
            self._waiter = None
            if waiter.done() and not waiter.cancelled() and not waiter.exception():
                self._on_frame(waiter.result())
            raise
        except (NatsError, OSError) as error:
            if isinstance(error, TimeoutError):
                raise
            raise ConnectionLost(str(error)) from error
        finally:
            self._waiter = None

    def fail(self) -> None:
        """Ends the pull because the connection is lost."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(ConnectionLost("the connection to NATS was lost"))

    async def close(self) -> None:
        """Withdraws interest; `_on_frame` hands back messages under way."""
        if self._subscription is None:
            return
        subscription, self._subscription = self._subscription, None
        try:
            if self._connection.nats.is_connected:
                await subscription.drain()  # type: ignore[no-untyped-call]
            else:
                await subscription.unsubscribe()
        except (NatsError, OSError) as error:
            log.debug("closing a pull: %s", error)
        if self._late:
            await asyncio.wait(self._late)

    def _on_frame(self, frame: Frame) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(frame)
        elif frame.reply.startswith(DELIVERED):
            task = asyncio.ensure_future(self._hand_back(frame))
            self._late.add(task)
            task.add_done_callback(self._late.discard)

    async def _hand_back(self, frame: Frame) -> None:
        with suppress(ConnectionLost):  # the server then takes it back by itself
            await self._connection.post(frame.reply.decode(), NAK)


async def settle(connection: Connection, reply: str, verdict: bytes) -> bool:
    """Acknowledges the delivery with this reply subject with `verdict` until the server confirms it.

    False when a server that is connected does not answer: a server that was killed forgets its last
    deliveries and is silent about them. Such a message counts as never delivered and comes again.
    Raises TopologyError when the consumer is gone, NatsUnreachable when `patience` ends.
    """
    retry = PublishRetry(connection)
    silent = 0
    while True:
        try:
            answer = await connection.ask(reply, verdict, timeout=_SETTLE_TIMEOUT)
        except ConnectionLost as error:
            retry.problem = error
        except TimeoutError:
            retry.problem = Unavailable(f"no answer in {_SETTLE_TIMEOUT:g} s")
            silent += 1
            if silent == _SILENT_TRIES:
                return False
        else:
            if status_of(answer) != "503":
                return True
            retry.problem = NobodyListens("the consumer does not answer")
        await retry.pause(reply)

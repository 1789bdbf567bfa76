"""One consumer for every queue: claims requests, has the handler of their kind carry them out, settles them.

A handler returns when its request is done, or raises why it is not. What a failure costs is the same for each
kind: a request that nobody can carry out is a dead letter with the reason, one of a later version is left to
it, a failure that is not the request's own is tried again by the kind's `RetryPolicy`, a rest of an endpoint
is waited for, and an error that nobody expected costs one delivery.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import msgspec

from orchard.schemas.requests import InvalidRequest, NewerRequest
from orchard.streams.claims import Claim, Claims
from orchard.streams.entries import QueueEntry, successor
from orchard.streams.errors import FAULTS, AwaitsEndpoint
from orchard.streams.tasks import end, waited


def share_of(age: float) -> float:
    """Draws the seconds after which one process claims nothing more, of `age` at most: each has another
    share. Those started together would else leave together, and count for the scaler until their last work
    ends."""
    return age * random.uniform(0.5, 1.0)


class WorkerLifetime:
    """The time in which the slots of one process claim: they all stop together, never one by one.

    A scaler counts processes, not slots. A process that kept running with some of its slots closed would
    count in full, and what waits for the closed ones would wait for ever.

    `over` is set when nothing was at work for `idle` seconds, when `age` seconds have passed, or by `end`; it
    stays set. 0 stands for no such limit. What is at work by then runs to its end.
    """

    def __init__(
        self, *, idle: float = 0.0, age: float = 0.0, now: Callable[[], float] = time.monotonic
    ) -> None:
        self.over = asyncio.Event()
        self._idle = idle
        self._at_work = 0
        self._now = now
        self._quiet_since = now()
        self._until = now() + age if age > 0 else float("inf")

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Counts a slot as at work while it has a request."""
        self._at_work += 1
        try:
            yield
        finally:
            self._at_work -= 1
            self._quiet_since = self._now()

    def go_on(self) -> bool:
        """Whether a slot without a request may claim another; ask before each claim."""
        now = self._now()
        idle = not self._at_work and 0 < self._idle <= now - self._quiet_since
        if idle or now >= self._until:
            self.over.set()
        return not self.over.is_set()

    def end(self) -> None:
        self.over.set()


log = logging.getLogger(__name__)

R = TypeVar("R", bound=msgspec.Struct)
T = TypeVar("T")

CLAIM_WAIT_SECONDS = 5.0
DRAINING = "draining"


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """When a request is tried again after a failure that is not its own; the request's `failures` counts
    these."""

    on: tuple[type[Exception], ...] = ()
    """Errors that are not the request's own."""
    first: float
    """Seconds until the next try after the first failure; each further failure doubles them."""
    longest: float = float("inf")
    most: int | None = None
    """Number of failures after which the request is a dead letter; None: it is tried for ever."""

    def delay(self, failures: int) -> float:
        """Seconds until another try after so many failures."""
        return min(self.first * 2.0 ** min(failures - 1, 30), self.longest)


class PutOff(NamedTuple):
    """The entry that replaces a request that is not done yet."""

    entry: QueueEntry
    delay: float
    reason: str
    awaits: str = ""
    """Key of the endpoint whose rest it waits for."""


class Interrupted(Exception):
    """The work was cancelled before its end: the process drains, or `Consumer.interrupt` says why."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class ClaimedRequest(Generic[R]):
    """A claimed request, as a handler gets it."""

    def __init__(self, claim: Claim, request: R, lifetime: WorkerLifetime) -> None:
        self.claim = claim
        self.request = request
        self._lifetime = lifetime
        self._interrupted: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs the part that takes long and returns its result. It keeps an idle process alive; raises
        Interrupted if the process may not wait for its end."""
        body = asyncio.create_task(work)
        either: set[asyncio.Future[Any]] = {body, self._interrupted}
        try:
            with self._lifetime.at_work():
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                if not body.done():
                    body.cancel()
                    await asyncio.wait({body})
        finally:
            body.cancel()
        if not body.cancelled():
            return body.result()
        if self._interrupted.done():
            raise Interrupted(self._interrupted.result())
        raise RuntimeError("the work cancelled itself")

    def interrupt(self, why: str) -> None:
        """Cancels the coroutine that `run` runs."""
        if not self._interrupted.done():
            self._interrupted.set_result(why)


class Handler(Protocol[R]):
    """Reads and carries out the requests of one kind."""

    @property
    def retries(self) -> RetryPolicy:
        """When a request is tried again after a failure that is not its own."""

    def read(self, body: bytes) -> R:
        """Decodes a request. Raises InvalidRequest or NewerRequest, whatever the bytes are."""

    def entry(self, request: R, occasion: str) -> QueueEntry:
        """Makes the request's queue entry; see `streams.entries.entry` for the occasion."""

    async def handle(self, delivery: ClaimedRequest[R]) -> PutOff | None:
        """Carries the request out, or returns the entry that replaces it. It may be killed anywhere and begun
        again, so its result must be accepted once. Raises as the module says."""


class DeadLetterBox(Protocol):
    """Takes requests that are not carried out here."""

    async def reject(self, claim: Claim, reason: str) -> None:
        """Keeps the request as a dead letter."""

    async def give_back(self, claim: Claim, reason: str) -> None:
        """Lets the request be delivered again; after its last delivery keeps it as a dead letter."""

    async def leave(self, claim: Claim, reason: str) -> None:
        """Puts the request off for a later version."""


class Consumer:
    """Runs `slots` claim loops until told to drain."""

    def __init__(
        self,
        claims: Claims,
        dead: DeadLetterBox,
        handlers: Mapping[str, Handler[Any]],
        *,
        slots: int,
        lifetime: WorkerLifetime | None = None,
        shutdown_seconds: float | None = None,
    ) -> None:
        """`handlers` are by kind, for each queue that `claims` serves. Work that runs when the process drains
        may finish within `shutdown_seconds`, then goes back; None: without limit."""
        self.slots = slots
        self.faults = 0
        """Number of deliveries that ended in an unexpected exception."""
        self.open: set[ClaimedRequest[Any]] = set()
        """Requests that are being carried out."""
        self._claims = claims
        self._dead = dead
        self._handlers = handlers
        self._lifetime = lifetime or WorkerLifetime()
        self._shutdown_seconds = shutdown_seconds
        self._draining = asyncio.Event()
        self._hurry = asyncio.Event()

    def drain(self) -> None:
        """Claims nothing more; the second call hands running requests back at once."""
        if self._draining.is_set():
            self._hurry.set()
        self._lifetime.end()
        self._draining.set()

    def interrupt(self, why: str, concerns: Callable[[Any], bool]) -> None:
        """Interrupts the running requests that it concerns."""
        for delivery in self.open:
            if concerns(delivery.request):
                delivery.interrupt(why)

    async def run(self) -> None:
        """Runs until drained, or until the lifetime is over, and all running requests are settled. Raises
        StreamsError when nothing can be claimed or settled."""
        async with asyncio.TaskGroup() as group:
            slots = [group.create_task(self._slot()) for _ in range(self.slots)]
            drainer = group.create_task(self._drain_when_told())
            await asyncio.wait(slots)
            await end(drainer)

    async def _slot(self) -> None:
        while self._lifetime.go_on():
            claim = await self._claim()
            if claim is not None:
                await self._guarded(claim)

    async def _claim(self) -> Claim | None:
        """Claims the next request; None after CLAIM_WAIT_SECONDS without one, at once when the lifetime is
        over."""
        claiming = asyncio.create_task(self._claims.next(timeout=CLAIM_WAIT_SECONDS))
        told = asyncio.create_task(self._lifetime.over.wait())
        try:
            await asyncio.wait({claiming, told}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            claiming.cancel()
            told.cancel()
            await asyncio.wait({claiming, told})
        return None if claiming.cancelled() else claiming.result()

    async def _guarded(self, claim: Claim) -> None:
        """Handles one delivery. An unexpected exception costs its own request a delivery, and the other slots
        nothing."""
        try:
            await self._deliver(claim)
        except FAULTS:
            raise
        except Exception as error:
            self.faults += 1
            log.exception("fault %d: request %d of %s", self.faults, claim.sequence, claim.queue.consumer)
            await self._dead.give_back(claim, f"{type(error).__name__}: {error}")

    async def _deliver(self, claim: Claim) -> None:
        handler = self._handlers[claim.queue.kind]
        try:
            delivery = ClaimedRequest(claim, handler.read(claim.body), self._lifetime)
            again = await self._handle(handler, delivery)
        except NewerRequest as error:
            await self._dead.leave(claim, str(error))
        except InvalidRequest as error:
            await self._dead.reject(claim, str(error))
        else:
            if again is not None and again.awaits:
                await claim.await_rest(again.entry, again.awaits, again.delay, again.reason)
            elif again is not None:
                await claim.retry_later(again.entry, again.delay, again.reason)
            elif not claim.settled:
                await claim.complete()

    async def _handle(self, handler: Handler[Any], delivery: ClaimedRequest[Any]) -> PutOff | None:
        request, occasion = delivery.request, successor(delivery.claim.message_id)
        self.open.add(delivery)
        try:
            return await handler.handle(delivery)
        except Interrupted as interrupted:
            return PutOff(handler.entry(request, occasion), 0.0, interrupted.why)
        except AwaitsEndpoint as rest:
            return PutOff(handler.entry(request, occasion), rest.seconds, str(rest), awaits=rest.key)
        except (InvalidRequest, *FAULTS):
            raise
        except handler.retries.on as error:
            failures = request.failures + 1
            if handler.retries.most is not None and failures > handler.retries.most:
                raise InvalidRequest(str(error)) from error
            again = msgspec.structs.replace(request, failures=failures)
            return PutOff(handler.entry(again, occasion), handler.retries.delay(failures), str(error))
        finally:
            self.open.discard(delivery)

    async def _drain_when_told(self) -> None:
        await self._draining.wait()
        log.info("draining: %d requests may finish in %s s", len(self.open), self._shutdown_seconds)
        with suppress(TimeoutError):
            await waited(self._hurry.wait(), self._shutdown_seconds)
        self.interrupt(DRAINING, lambda _: True)

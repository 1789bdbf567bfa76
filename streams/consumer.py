"""One consumer for every queue: claims requests, has the handler of their kind carry them out, settles them.

A handler returns when its request is done, or raises why it is not. What a failure costs is the same for each
kind: a request that nobody can carry out is a dead letter with the reason, one of a later version is left to
it, a failure that is not the request's own is tried again by the kind's `RetryPolicy`, a rest of an endpoint
is waited for, and an error that nobody expected costs one delivery.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import msgspec

from orchard.schemas.requests import InvalidRequest, NewerRequest
from orchard.streams.claims import Claim, Claims
from orchard.streams.entries import QueueEntry, successor
from orchard.streams.errors import FAULTS, AwaitsEndpoint
from orchard.streams.shifts import Shift
from orchard.streams.tasks import end, waited

log = logging.getLogger(__name__)

R = TypeVar("R", bound=msgspec.Struct)
T = TypeVar("T")

CLAIM_WAIT_SECONDS = 5.0
DRAINING = "draining"


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """When a request is tried again after a failure that is not its own; its field `failures` counts them."""

    on: tuple[type[Exception], ...] = ()
    """Errors that say nothing of the request."""
    first: float
    """Seconds after the first failure; doubled with each other one."""
    longest: float = float("inf")
    most: int | None = None
    """Failures after which the request is a dead letter; None: it is tried for ever."""

    def delay(self, failures: int) -> float:
        """Seconds until another try after so many failures."""
        return min(self.first * 2.0 ** min(failures - 1, 30), self.longest)


class PutOff(NamedTuple):
    """What takes the place of a request that is not done yet."""

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
    """A request in a handler's hands."""

    def __init__(self, claim: Claim, request: R, shift: Shift) -> None:
        self.claim = claim
        self.request = request
        self._shift = shift
        self._interrupted: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of the part that takes long. It keeps an idle process alive, and raises Interrupted
        where the process may not wait for its end."""
        body = asyncio.create_task(work)
        either: set[asyncio.Future[Any]] = {body, self._interrupted}
        try:
            with self._shift.at_work():
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
        """End what `run` runs, soon."""
        if not self._interrupted.done():
            self._interrupted.set_result(why)


class Handler(Protocol[R]):
    """What a kind of request is and how it is carried out."""

    @property
    def retries(self) -> RetryPolicy:
        """What a failure that is not the request's own costs."""

    def read(self, body: bytes) -> R:
        """The request in a body. Raises InvalidRequest or NewerRequest, whatever the bytes are."""

    def entry(self, request: R, occasion: str) -> QueueEntry:
        """The request's place on its queue; see `streams.entries.entry` for the occasion."""

    async def handle(self, delivery: ClaimedRequest[R]) -> PutOff | None:
        """Carry the request out, or say what takes its place. Killed anywhere and begun again, its result
        must be accepted once. Raises as the module says."""


class DeadLetterBox(Protocol):
    """Takes requests that are not carried out here."""

    async def reject(self, claim: Claim, reason: str) -> None:
        """Keep it as a dead letter."""

    async def give_back(self, claim: Claim, reason: str) -> None:
        """Let it be delivered again; after its last delivery keep it as a dead letter."""

    async def leave(self, claim: Claim, reason: str) -> None:
        """Put it off for a later version."""


class Consumer:
    """Runs `slots` claim loops until told to drain."""

    def __init__(
        self,
        claims: Claims,
        dead: DeadLetterBox,
        handlers: Mapping[str, Handler[Any]],
        *,
        slots: int,
        shift: Shift | None = None,
        shutdown_seconds: float | None = None,
    ) -> None:
        """`handlers` by kind, of each queue that `claims` serves. What runs when the process drains may
        finish within `shutdown_seconds`, then goes back; None: it may take as long as it takes."""
        self.slots = slots
        self.faults = 0
        """Deliveries that ended in an exception that nobody expected."""
        self.open: set[ClaimedRequest[Any]] = set()
        """What is being carried out."""
        self._claims = claims
        self._dead = dead
        self._handlers = handlers
        self._shift = shift or Shift()
        self._shutdown_seconds = shutdown_seconds
        self._draining = asyncio.Event()
        self._hurry = asyncio.Event()

    def drain(self) -> None:
        """Claim nothing more; told again, what runs goes back at once."""
        if self._draining.is_set():
            self._hurry.set()
        self._shift.end()
        self._draining.set()

    def interrupt(self, why: str, concerns: Callable[[Any], bool]) -> None:
        """Interrupt what runs for the requests that it concerns."""
        for delivery in self.open:
            if concerns(delivery.request):
                delivery.interrupt(why)

    async def run(self) -> None:
        """Returns when drained, or when the shift is over, and what runs by then is settled. Raises
        StreamsError when nothing can be claimed or settled."""
        async with asyncio.TaskGroup() as group:
            slots = [group.create_task(self._slot()) for _ in range(self.slots)]
            drainer = group.create_task(self._drain_when_told())
            await asyncio.wait(slots)
            await end(drainer)

    async def _slot(self) -> None:
        while self._shift.go_on():
            claim = await self._claim()
            if claim is not None:
                await self._guarded(claim)

    async def _claim(self) -> Claim | None:
        """The next request, or None: after CLAIM_WAIT_SECONDS without one, at once when the shift is over."""
        claiming = asyncio.create_task(self._claims.next(timeout=CLAIM_WAIT_SECONDS))
        told = asyncio.create_task(self._shift.over.wait())
        try:
            await asyncio.wait({claiming, told}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            claiming.cancel()
            told.cancel()
            await asyncio.wait({claiming, told})
        return None if claiming.cancelled() else claiming.result()

    async def _guarded(self, claim: Claim) -> None:
        """One delivery. A fault of this program that it meets costs its own request a delivery, and the
        other slots nothing."""
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
            delivery = ClaimedRequest(claim, handler.read(claim.body), self._shift)
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

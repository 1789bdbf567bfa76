"""What one process knows of resting endpoints, and its part in asking them again.

Each process reads the book every POLL_SECONDS and tells those who wait. One process asks for all: the prober
that the record names, or another one when that is silent. A question goes to the endpoint only after the
right to it was taken in the book by compare-and-set.
"""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import NamedTuple, Self
from uuid import uuid4

import msgspec

from orchard.schemas.events import make_event
from orchard.schemas.rests import EndpointRested, Rest
from orchard.streams.connection import Connection
from orchard.streams.endpoints import EndpointBook, StoredRest
from orchard.streams.errors import StreamsError
from orchard.streams.publisher import Publisher
from orchard.streams.tasks import end, waited
from orchard.workers.llm.resting import GRACE_SECONDS, QUESTION_SECONDS, asks_in, begun, prolonged

log = logging.getLogger(__name__)

POLL_SECONDS = 2.0
FRESH_SECONDS = 0.25
"""Age of what is known on which a request may still be put off."""
CAMPAIGN = "endpoints"
"""Of the events."""


class NoAnswer(NamedTuple):
    """Why a question was not answered, and for how long the endpoint asked to wait."""

    reason: str
    asked: float | None


Ask = Callable[[Rest], Awaitable[NoAnswer | None]]
"""Puts a question to an endpoint that rests; None: it was answered."""


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """A rest, with the readings of this process's clock."""

    key: str
    rest: Rest
    revision: int
    read_at: float
    ends_at: float
    """When the endpoint may be asked again."""
    began_at: float
    asks_at: float
    """When this process asks, if nobody else has."""

    @property
    def age(self) -> float:
        """Seconds since the rest began."""
        return time.monotonic() - self.began_at

    @property
    def left(self) -> float:
        """Seconds until the endpoint is asked again, 0 when that is now."""
        return 0.0 if self.rest.asking else max(self.ends_at - time.monotonic(), 0.0)


class _Attended(NamedTuple):
    ask: Ask
    servers: int


class Rests:
    """An asynchronous context manager. Where the book cannot be read or written, nothing rests."""

    def __init__(self, connection: Connection, name: str) -> None:
        self._book = EndpointBook(connection)
        self._publisher = Publisher(connection)
        self._name = f"{name}.{uuid4().hex[:8]}"
        self._known: dict[str, Known] = {}
        self._attended: dict[str, _Attended] = {}
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._changed = asyncio.Event()
        self._read_at = float("-inf")
        self._reading = asyncio.Lock()
        self._runs: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self.look()
        self._runs = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in (self._runs, *self._asking.values()):
            if task is not None:
                await end(task)

    def attend(self, key: str, ask: Ask, servers: int) -> None:
        """Take part in asking an endpoint that rests."""
        self._attended[key] = _Attended(ask, servers)

    def of(self, key: str) -> Known | None:
        """The rest of an endpoint, as far as this process knows."""
        return self._known.get(key)

    async def change(self, seconds: float) -> None:
        """Wait until something changes, at most so long."""
        with suppress(TimeoutError):
            await waited(self._changed.wait(), seconds)

    async def look(self, *, fresh: bool = False) -> None:
        """Read the book, with `fresh` only if what is known is older than FRESH_SECONDS."""
        async with self._reading:
            if fresh and time.monotonic() - self._read_at < FRESH_SECONDS:
                return
            at = time.monotonic()
            try:
                stored: dict[str, StoredRest] | None = await self._book.rests()
            except StreamsError as error:
                log.warning("which endpoints rest is not read: %s", error)
                stored = None
            self._read_at = at
            if stored is None:
                return
            before = self._known
            self._known = {
                key: self._at(one, before.get(key), at) for key, one in stored.items() if not one.rest.over
            }
            for key in before.keys() - self._known.keys():
                log.warning("endpoint %r rests no more", before[key].rest.endpoint)
            for key in self._known.keys() - before.keys():
                new = self._known[key]
                log.warning("endpoint %r rests, for %.0f s: %s", new.rest.endpoint, new.left, new.rest.reason)
            self._tell()

    def _at(self, stored: StoredRest, before: Known | None, at: float) -> Known:
        if before is not None and before.revision == stored.revision:
            return before
        asks = asks_in(stored.rest, left=stored.left, me=self._name, jitter=random.random())
        return Known(
            key=stored.key,
            rest=stored.rest,
            revision=stored.revision,
            read_at=at,
            ends_at=at + stored.left,
            began_at=at - stored.age,
            asks_at=at + asks,
        )

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def begin(
        self, key: str, *, endpoint: str, model: str, reason: str, asked: float | None, answered: bool
    ) -> bool:
        """Let an endpoint rest, unless it does; whether it does now, which it does not where the book cannot
        be written or has a record that cannot be read. `answered`: it has answered this process since its
        last rest."""
        try:
            known = await self._book.rest(key)
            if known is None or known.rest.over:
                before = known.rest if known is not None and not answered else None
                rest = begun(
                    before, endpoint=endpoint, model=model, reason=reason, asked=asked, prober=self._name
                )
                if await self._book.put_rest(key, rest, known.revision if known else 0):
                    await self._say(
                        key,
                        EndpointRested(endpoint=endpoint, resting=True, reason=reason, seconds=asked or 0.0),
                    )
            await self.look()
        except StreamsError as error:
            log.warning("the rest of endpoint %r is not told: %s", endpoint, error)
            return False
        return key in self._known

    async def _run(self) -> None:
        while True:
            for key, one in self._known.items():
                if key in self._attended and key not in self._asking and one.asks_at <= time.monotonic():
                    self._asking[key] = asyncio.create_task(self._question(one))
            turns = [
                one.asks_at - time.monotonic()
                for key, one in self._known.items()
                if key in self._attended and key not in self._asking
            ]
            await self.change(max(min([POLL_SECONDS, *turns]), 0.01))
            if time.monotonic() - self._read_at >= POLL_SECONDS:
                await self.look()

    async def _question(self, known: Known) -> None:
        """Ask for all, once."""
        try:
            await self._ask(known)
        except StreamsError as error:
            log.warning("endpoint %r was not asked again: %s", known.rest.endpoint, error)
        except Exception:
            log.exception("asking endpoint %r", known.rest.endpoint)
        await self.look()
        del self._asking[known.key]

    async def _ask(self, known: Known) -> None:
        attended, rest = self._attended[known.key], known.rest
        lease = QUESTION_SECONDS + GRACE_SECONDS
        mine = msgspec.structs.replace(rest, prober=self._name, seconds=lease, asking=True)
        try:
            if not await self._book.put_rest(known.key, mine, known.revision):
                return  # somebody else asks
            refusal = await attended.ask(rest)
        except asyncio.CancelledError:
            await self._write_over(
                known.key, msgspec.structs.replace(rest, seconds=0.0)
            )  # others may at once
            raise
        if refusal is not None:
            longer = prolonged(mine, reason=refusal.reason, asked=refusal.asked, servers=attended.servers)
            await self._write_over(known.key, longer)
        elif await self._write_over(known.key, msgspec.structs.replace(mine, over=True, asking=False)):
            again = EndpointRested(
                endpoint=rest.endpoint, resting=False, reason=rest.reason, seconds=known.age
            )
            await self._say(known.key, again)

    async def _write_over(self, key: str, rest: Rest) -> bool:
        """Replace the record by which this process asks, unless it took too long."""
        taken = await self._book.rest(key)
        if taken is None or taken.rest.prober != self._name or not taken.rest.asking:
            return False
        return await self._book.put_rest(key, rest, taken.revision)

    async def _say(self, key: str, event: EndpointRested) -> None:
        identity = f"{key}.{uuid4().hex[:12]}"
        source = f"orchard/worker/{self._name}"
        await self._publisher.event(make_event(event, id=identity, source=source, campaign=CAMPAIGN))

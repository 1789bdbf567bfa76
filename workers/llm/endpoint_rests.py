"""Follows the fleet's endpoint book of rests, and takes part in probing endpoints that rest.

Each process reads the book every POLL_SECONDS and wakes its waiting calls. One process probes for all: the
prober that the record names, or another one if that is silent. A probe is sent only after the right to it was
taken in the book by compare-and-set.
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
from orchard.workers.llm.rest_policy import GRACE_SECONDS, PROBE_SECONDS, asks_in, begun, prolonged

log = logging.getLogger(__name__)

POLL_SECONDS = 2.0
FRESH_SECONDS = 0.25
"""Greatest age of the known rests that may still put off a request."""
CAMPAIGN = "endpoints"


class ProbeFailure(NamedTuple):
    """The reason that a probe was not answered, and the seconds that the endpoint asked to wait."""

    reason: str
    asked: float | None


Probe = Callable[[Rest], Awaitable[ProbeFailure | None]]
"""Sends a probe to an endpoint that rests; None: it was answered."""


class KnownRest(msgspec.Struct, frozen=True, kw_only=True):
    """A rest, with the readings of this process's clock."""

    key: str
    rest: Rest
    revision: int
    read_at: float
    ends_at: float
    """Time from which the endpoint may be asked again."""
    began_at: float
    asks_at: float
    """Time at which this process probes, if no other has."""

    @property
    def age(self) -> float:
        return time.monotonic() - self.began_at

    @property
    def left(self) -> float:
        """Seconds until the endpoint is probed, 0 if that is now."""
        return 0.0 if self.rest.asking else max(self.ends_at - time.monotonic(), 0.0)


class _Attended(NamedTuple):
    probe: Probe
    servers: int


class RestTracker:
    """Knows the rests while it is entered as a context manager. If the book cannot be read or written,
    nothing rests."""

    def __init__(self, connection: Connection, name: str) -> None:
        self._book = EndpointBook(connection)
        self._publisher = Publisher(connection)
        self._name = f"{name}.{uuid4().hex[:8]}"
        self._known: dict[str, KnownRest] = {}
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

    def attend(self, key: str, probe: Probe, servers: int) -> None:
        self._attended[key] = _Attended(probe, servers)

    def of(self, key: str) -> KnownRest | None:
        return self._known.get(key)

    async def change(self, seconds: float) -> None:
        """Waits until something changes, at most `seconds`."""
        with suppress(TimeoutError):
            await waited(self._changed.wait(), seconds)

    async def look(self, *, fresh: bool = False) -> None:
        """Reads the book; with `fresh` only if what is known is older than FRESH_SECONDS."""
        async with self._reading:
            if fresh and time.monotonic() - self._read_at < FRESH_SECONDS:
                return
            at = time.monotonic()
            try:
                stored: dict[str, StoredRest] | None = await self._book.rests()
            except StreamsError as error:
                log.warning("the endpoint book cannot be read, so rests are not seen: %s", error)
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

    def _at(self, stored: StoredRest, before: KnownRest | None, at: float) -> KnownRest:
        if before is not None and before.revision == stored.revision:
            return before
        asks = asks_in(stored.rest, left=stored.left, me=self._name, jitter=random.random())
        return KnownRest(
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
        """Begins a rest, unless the endpoint rests already. Returns whether it rests now: not if the book
        cannot be written or its record cannot be read. `answered`: it has answered this process since its
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
            log.warning("the rest of endpoint %r cannot be stored in the endpoint book: %s", endpoint, error)
            return False
        return key in self._known

    async def _run(self) -> None:
        while True:
            for key, one in self._known.items():
                if key in self._attended and key not in self._asking and one.asks_at <= time.monotonic():
                    self._asking[key] = asyncio.create_task(self._probe(one))
            turns = [
                one.asks_at - time.monotonic()
                for key, one in self._known.items()
                if key in self._attended and key not in self._asking
            ]
            await self.change(max(min([POLL_SECONDS, *turns]), 0.01))
            if time.monotonic() - self._read_at >= POLL_SECONDS:
                await self.look()

    async def _probe(self, known: KnownRest) -> None:
        try:
            await self._ask(known)
        except StreamsError as error:
            log.warning("endpoint %r was not asked again: %s", known.rest.endpoint, error)
        except Exception:
            log.exception("asking endpoint %r", known.rest.endpoint)
        await self.look()
        del self._asking[known.key]

    async def _ask(self, known: KnownRest) -> None:
        attended, rest = self._attended[known.key], known.rest
        lease = PROBE_SECONDS + GRACE_SECONDS
        mine = msgspec.structs.replace(rest, prober=self._name, seconds=lease, asking=True)
        try:
            if not await self._book.put_rest(known.key, mine, known.revision):
                return  # somebody else asks
            refusal = await attended.probe(rest)
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
        """Replaces the record under which this process probes, unless it took too long."""
        taken = await self._book.rest(key)
        if taken is None or taken.rest.prober != self._name or not taken.rest.asking:
            return False
        return await self._book.put_rest(key, rest, taken.revision)

    async def _say(self, key: str, event: EndpointRested) -> None:
        identity = f"{key}.{uuid4().hex[:12]}"
        source = f"orchard/worker/{self._name}"
        await self._publisher.event(make_event(event, id=identity, source=source, campaign=CAMPAIGN))

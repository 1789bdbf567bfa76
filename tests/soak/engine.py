"""The soak itself: sessions in slots, faults between operations, and rests at which nothing may be left."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from orchard.injector.client import AsyncSandboxClient
from orchard.streams.tasks import end
from tests.soak import operations
from tests.soak.operations import WEIGHTS, Place, Wrong
from tests.soak.record import CREATE, Checkpoint, Effect, Fault, Record

STUCK = 240.0
"""Seconds without the end of any operation, or until all sessions end: more is a hang."""


class Leg(Protocol):
    """The service that is soaked."""

    name: str
    left_out: Collection[str]
    """Names of operations it cannot do."""
    faults: dict[str, Effect]

    def client(self) -> AsyncSandboxClient:
        """A client of its own, which deletes nothing by itself."""

    async def create(self, client: AsyncSandboxClient, *, ttl: float, small: bool) -> Place:
        """A sandbox; a `small` one has little memory."""

    async def inject(self, fault: Fault, chance: random.Random) -> None:
        """Do what `fault.kind` says; returns when it is over. May say which sandboxes it kills."""

    async def leftovers(self) -> list[str]:
        """What is still there of sessions that are all over, once it had time to go."""

    def holds(self) -> dict[str, dict[str, float]]:
        """What each process of the service holds now."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How much: `operations` or `seconds`, whichever ends first; a fault every so many operations."""

    seed: int
    slots: int
    operations: int
    seconds: float
    fault_every: tuple[int, int]
    checkpoints: int
    calm_from: float = 1 / 2
    """Share of the run after which only connections are cut: memory is compared over a long life."""


class Soak:
    """One run over one leg."""

    def __init__(self, leg: Leg, plan: Plan) -> None:
        self._leg = leg
        self._plan = plan
        self._chance = random.Random(plan.seed)
        self.record = Record(leg=leg.name, seed=plan.seed)
        self._gate = asyncio.Event()
        self._gate.set()
        self._active = 0
        self._moved = asyncio.Condition()
        self._wounded = asyncio.Lock()
        """Held while a fault is under way."""

    async def run(self) -> Record:
        """To its end. What went wrong is in the record."""
        tasks = [asyncio.create_task(self._slot(number)) for number in range(self._plan.slots)]
        tasks += [asyncio.create_task(self._faults()), asyncio.create_task(self._rests())]
        try:
            await self._watch(tasks)
        finally:
            async with self._wounded:  # never in the middle of a fault: what it starts would stay
                for task in tasks:
                    task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        self.record.seconds = time.monotonic() - self.record.begun
        return self.record

    @property
    def _progress(self) -> float:
        """From 0 to 1."""
        seconds = time.monotonic() - self.record.begun
        return min(1.0, max(self.record.total / self._plan.operations, seconds / self._plan.seconds))

    async def _watch(self, tasks: list[asyncio.Task[None]]) -> None:
        """Until the last rest is over, a task fails, or nothing moves any more."""
        while not tasks[-1].done():
            seen = self.record.total, len(self.record.checkpoints)
            done, _ = await asyncio.wait([*tasks], timeout=STUCK, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                if (error := task.exception()) is not None:
                    raise error
            if not done and seen == (self.record.total, len(self.record.checkpoints)):
                self.record.find(f"nothing ended within {STUCK:g} s, {self._active} sessions hang")
                return
            if done and not tasks[-1].done():
                await asyncio.wait([tasks[-1]], timeout=STUCK)

    async def _slot(self, number: int) -> None:
        sessions = 0
        while self._progress < 1.0:
            await self._gate.wait()
            self._active += 1
            try:
                await self._session(random.Random(f"{self._plan.seed} {number} {sessions}"))
            finally:
                self._active -= 1
                await self._tell()
            sessions += 1

    async def _session(self, chance: random.Random) -> None:
        """Create, work, check the count, delete; or vanish in the middle."""
        self.record.sessions += 1
        vanish, small = chance.random() < 0.15, chance.random() < 0.2
        born = time.monotonic()
        client = self._leg.client()
        try:
            place: Place | None = None

            async def create() -> None:
                nonlocal place
                place = await self._leg.create(client, ttl=4.0 if vanish else 45.0, small=small)

            if not await self._attempt(CREATE, create, born, None) or place is None:
                return
            place.chance = chance
            if vanish:
                await self._vanish(place)
                return
            await self._work(place, born, chance, small)
            await self._attempt("delete", place.sandbox.delete, born, place.sandbox.sandbox_id)
        finally:
            await client.close()

    async def _work(self, place: Place, born: float, chance: random.Random, small: bool) -> None:
        able = {one: weight for one, weight in WEIGHTS.items() if one.__name__ not in self._leg.left_out}
        if not small:
            able.pop(operations.out_of_memory, None)
        chosen = chance.choices([*able], [*able.values()], k=chance.randrange(4, 14))
        for operation in [*chosen, operations.counted]:
            work = operation

            async def once(work: operations.Operation = work) -> None:
                await work(place)

            done = await self._attempt(operation.__name__, once, born, place.sandbox.sandbox_id)
            if not done and operation is not operations.terminal:
                return  # it is explained or found; a session goes on only where nothing was lost

    async def _vanish(self, place: Place) -> None:
        """Like a client that is killed: in the middle of a command, with nothing cleaned up."""
        self.record.abandoned += 1
        running = asyncio.create_task(place.sandbox.exec("echo begun; sleep 1009"))
        await asyncio.wait([running], timeout=place.chance.random())
        await end(running)  # whatever it says, nobody is there to hear it

    async def _attempt(
        self, name: str, work: Callable[[], Awaitable[object]], born: float, sandbox_id: str | None
    ) -> bool:
        begun = time.monotonic()
        try:
            await work()
        except Wrong as error:
            self.record.find(f"wrong answer to {name} of {sandbox_id}: {error}")
            return False
        except Exception as error:
            self.record.judge(name, error, begun=begun, born=born, sandbox_id=sandbox_id)
            return False
        finally:
            await self._tell()
        self.record.operations[name] += 1
        return True

    async def _faults(self) -> None:
        """Every kind in turn, in an order of chance, one after every so many operations."""
        deck: list[str] = []
        next_at = 0
        while True:
            next_at = max(next_at, self.record.total) + self._chance.randint(*self._plan.fault_every)
            await self._until(lambda at=next_at: self.record.total >= at)  # type: ignore[misc]
            if not deck:
                deck = [*self._leg.faults]
                self._chance.shuffle(deck)
            kind = deck.pop()
            if self._progress >= self._plan.calm_from and self._leg.faults[kind] is Effect.SANDBOXES:
                continue
            async with self._wounded:
                fault = Fault(kind, self._leg.faults[kind], time.monotonic())
                self.record.timeline.append(fault)
                self.record.faults[kind] += 1
                await self._leg.inject(fault, self._chance)
                fault.ended = time.monotonic()

    async def _rests(self) -> None:
        """At even distances everybody stops, and the service must hold nothing any more."""
        for number in range(1, self._plan.checkpoints + 1):
            share = number / self._plan.checkpoints
            while self._progress < share:
                await self._moves(1.0)
            self._gate.clear()
            async with self._wounded:
                try:
                    async with asyncio.timeout(STUCK):
                        await self._until(lambda: self._active == 0)
                except TimeoutError:
                    self.record.find(f"{self._active} sessions did not end within {STUCK:g} s")
                    return
                left = await self._leg.leftovers()
                seconds = time.monotonic() - self.record.begun
                rest = Checkpoint(seconds, self.record.total, self._leg.holds(), left)
                self.record.checkpoints.append(rest)
                for what in left:
                    self.record.find(f"left behind: {what}")
            self._gate.set()

    async def _tell(self) -> None:
        async with self._moved:
            self._moved.notify_all()

    async def _moves(self, timeout: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout), self._moved:
                await self._moved.wait()

    async def _until(self, condition: Callable[[], bool]) -> None:
        async with self._moved:
            await self._moved.wait_for(condition)

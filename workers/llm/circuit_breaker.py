"""Decides, for one endpoint and process, which refusals begin a rest, and makes calls wait or fail
meanwhile."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from orchard.workers.failures import EndpointRests
from orchard.workers.llm.endpoint_rests import KnownRest, ProbeFailure, RestTracker
from orchard.workers.llm.rest_policy import RefusalStreak, begins, is_held, refused

LOOK_SECONDS = 1.0
"""Seconds between two looks at whether a rest has become too long to wait for."""


class EndpointFailure(NamedTuple):
    said: str
    """The endpoint's message or behaviour, without keys and URLs."""
    asked: float | None
    """Seconds that it wants to be left alone."""
    certain: bool
    """Whether the endpoint fails whatever is asked: it cannot be reached, or is overloaded."""


class CircuitBreaker:
    """Stops calls to one endpoint while it rests. Without `rests` nothing ever rests; with `waits` calls wait
    for the end of each rest, because their work could not be resumed elsewhere."""

    def __init__(
        self,
        name: str,
        key: str,
        rests: RestTracker | None,
        probe: Callable[[str], Awaitable[ProbeFailure | None]],
        *,
        waits: bool,
        restored: Callable[[], None],
    ) -> None:
        self._name = name
        self._key = key
        self._rests = rests
        self._probe = probe
        self._waits = waits
        self._restored = restored
        self._streak = RefusalStreak()
        self._under_way: dict[object, float] = {}
        self._deciding = asyncio.Lock()
        self._has_rested = False
        """Whether calls have met a rest since `restored` was called."""
        self._has_answered = False

    async def ready(self) -> float:
        """Waits until the endpoint does not rest; returns the seconds that it took. Raises EndpointRests for
        a rest that is too long to wait for."""
        began = time.monotonic()
        while (rest := self._rest()) is not None:
            self._has_rested, self._has_answered = True, False
            if not self._waits and not is_held(age=rest.age, left=rest.left):
                raise self._error(rest)
            assert self._rests is not None
            await self._rests.change(LOOK_SECONDS)
        if self._has_rested:
            self._has_rested, self._streak = False, RefusalStreak()
            self._restored()
        return time.monotonic() - began

    @contextmanager
    def asking(self) -> Iterator[float]:
        """Registers a call while the block runs; gives the time at which it started."""
        token, started = object(), time.monotonic()
        self._under_way[token] = started
        try:
            yield started
        finally:
            del self._under_way[token]

    def answered(self) -> None:
        self._streak, self._has_answered = RefusalStreak(), True

    async def refused(self, failure: EndpointFailure, model: str, *, started: float, spent: bool) -> bool:
        """Reports a refusal of a call that started at `started`; returns whether the endpoint rests now.

        If it does, a call that has `spent` its tries or its time raises EndpointRests. If the request itself
        may be the reason, the endpoint is probed first with another one that it has answered before.
        """
        self._streak = refused(self._streak, started=started, now=time.monotonic())
        if self._rests is None:
            return False
        async with self._deciding:
            if self._rest() is None and not await self._begins(self._rests, failure, model, spent):
                return False
        if spent and not self._waits and (rest := self._rest()) is not None:
            raise self._error(rest)
        return True

    async def _begins(self, rests: RestTracker, failure: EndpointFailure, model: str, spent: bool) -> bool:
        earliest = min(self._under_way.values(), default=float("inf"))
        if not begins(self._streak, asked=failure.asked, spent=spent, earliest=earliest):
            return False
        if not failure.certain and await self._probe(model) is None:
            self._streak = RefusalStreak()
            return False
        return await rests.begin(
            self._key,
            endpoint=self._name,
            model=model,
            reason=failure.said,
            asked=failure.asked,
            answered=self._has_answered,
        )

    def _rest(self) -> KnownRest | None:
        return self._rests.of(self._key) if self._rests is not None else None

    def _error(self, rest: KnownRest) -> EndpointRests:
        return EndpointRests(self._key, self._name, rest.left, rest.rest.reason)

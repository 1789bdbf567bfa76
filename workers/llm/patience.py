"""One endpoint's trouble as one process meets it: which refusals are a rest, and what calls do meanwhile."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from orchard.workers.failures import EndpointRests
from orchard.workers.llm.resting import Row, begins, is_held, refused
from orchard.workers.llm.rests import Known, NoAnswer, Rests

LOOK_SECONDS = 1.0
"""Between two looks at whether a rest is one that nobody waits for in its place."""


class Trouble(NamedTuple):
    """A refusal that may pass."""

    said: str
    """What the endpoint said or did, without keys and URLs."""
    asked: float | None
    """Seconds that it wants to be left alone."""
    certain: bool
    """Whether it is the endpoint's, whatever was asked: it cannot be reached, or has too much to do."""


class Patience:
    """Of one endpoint. Without `rests` nothing ever rests; with `waits` calls wait for the end of each rest
    in their places, where nobody could take them up again."""

    def __init__(
        self,
        name: str,
        key: str,
        rests: Rests | None,
        question: Callable[[str], Awaitable[NoAnswer | None]],
        *,
        waits: bool,
        restored: Callable[[], None],
    ) -> None:
        self._name = name
        self._key = key
        self._rests = rests
        self._question = question
        self._waits = waits
        self._restored = restored
        self._row = Row()
        self._under_way: dict[object, float] = {}
        self._deciding = asyncio.Lock()
        self._has_rested = False
        """Whether calls have met a rest since `restored` was called."""
        self._has_answered = False

    async def ready(self) -> float:
        """Wait until the endpoint does not rest; the seconds that it took. Raises EndpointRests for a rest
        that no call waits for in its place."""
        began = time.monotonic()
        while (rest := self._rest()) is not None:
            self._has_rested, self._has_answered = True, False
            if not self._waits and not is_held(age=rest.age, left=rest.left):
                raise self._error(rest)
            assert self._rests is not None
            await self._rests.change(LOOK_SECONDS)
        if self._has_rested:
            self._has_rested, self._row = False, Row()
            self._restored()
        return time.monotonic() - began

    @contextmanager
    def asking(self) -> Iterator[float]:
        """While a call is under way; gives when it set off."""
        token, started = object(), time.monotonic()
        self._under_way[token] = started
        try:
            yield started
        finally:
            del self._under_way[token]

    def answered(self) -> None:
        """Report an answer."""
        self._row, self._has_answered = Row(), True

    async def rests(self, trouble: Trouble, model: str, *, started: float, spent: bool) -> bool:
        """Report a refusal of a call that set off at `started`; whether the endpoint rests now.

        A call that has `spent` its tries or its time raises EndpointRests then. Where the trouble may be that
        of the request alone, another one that was answered before is put to the endpoint first.
        """
        self._row = refused(self._row, started=started, now=time.monotonic())
        if self._rests is None:
            return False
        async with self._deciding:
            if self._rest() is None and not await self._begins(self._rests, trouble, model, spent):
                return False
        if spent and not self._waits and (rest := self._rest()) is not None:
            raise self._error(rest)
        return True

    async def _begins(self, rests: Rests, trouble: Trouble, model: str, spent: bool) -> bool:
        earliest = min(self._under_way.values(), default=float("inf"))
        if not begins(self._row, asked=trouble.asked, spent=spent, earliest=earliest):
            return False
        if not trouble.certain and await self._question(model) is None:
            self._row = Row()
            return False
        return await rests.begin(
            self._key,
            endpoint=self._name,
            model=model,
            reason=trouble.said,
            asked=trouble.asked,
            answered=self._has_answered,
        )

    def _rest(self) -> Known | None:
        return self._rests.of(self._key) if self._rests is not None else None

    def _error(self, rest: Known) -> EndpointRests:
        return EndpointRests(self._key, self._name, rest.left, rest.rest.reason)

"""Limits the calls under way at one endpoint: the limit grows by one with each window of answers and is
halved by a 429.

The window is a pure function of numbers (additive increase, multiplicative decrease, as in TCP);
ConcurrencyLimit makes callers wait for a place in it.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """The permitted number of calls under way, between 1 and `ceiling`."""

    limit: float
    ceiling: int
    shrunk_at: float = float("-inf")
    """Clock reading, in seconds, of the last cut."""

    @property
    def places(self) -> int:
        return int(self.limit)


def grown(window: Window) -> Window:
    """Returns the window after an answer: one more place for each full window of answers."""
    limit = min(float(window.ceiling), window.limit + 1 / window.limit)
    return msgspec.structs.replace(window, limit=limit)


def shrunk(window: Window, *, busy: int, started: float, now: float) -> Window:
    """Returns the window after a 429 to a call that started at `started`: half of the places in use, at least
    one.

    If the window has room for more than there are callers, `busy`, the number of calls under way, is halved.
    A burst counts once: calls that started before the last cut change nothing.
    """
    if started < window.shrunk_at:
        return window
    return msgspec.structs.replace(window, limit=max(1.0, min(window.limit, busy) / 2), shrunk_at=now)


class ConcurrencyLimit:
    def __init__(self, ceiling: int) -> None:
        self.window = Window(limit=float(ceiling), ceiling=ceiling)
        self.busy = 0
        self._changed = asyncio.Event()

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """Holds one place during the block; waits while the window is full."""
        while self.busy >= self.window.places:
            await self._changed.wait()
        self.busy += 1
        try:
            yield
        finally:
            self.busy -= 1
            self._wake()

    def answered(self) -> None:
        self.window = grown(self.window)
        self._wake()

    def throttled(self, *, started: float, now: float) -> None:
        """Reports a 429; `started` is when its call started, in seconds on the clock of `now`."""
        self.window = shrunk(self.window, busy=self.busy, started=started, now=now)

    def restored(self) -> None:
        """Restores the whole window after a rest: earlier refusals say nothing about the endpoint now."""
        self.window = Window(limit=float(self.window.ceiling), ceiling=self.window.ceiling)
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

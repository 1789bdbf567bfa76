"""Decides when a process stops claiming: all its slots together, never one by one.

A scaler counts processes, not slots. A process that kept running with some of its slots closed would count
in full, and what waits for the closed ones would wait for ever.
"""

import asyncio
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


def share_of(age: float) -> float:
    """Draws the seconds after which one process claims nothing more, of `age` at most: each has another
    share. Those started together would else leave together, and count for the scaler until their last work
    ends."""
    return age * random.uniform(0.5, 1.0)


class WorkerLifetime:
    """The time in which the slots of one process claim.

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
        """Ends claiming in all slots."""
        self.over.set()

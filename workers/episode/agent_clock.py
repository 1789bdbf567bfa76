"""The clock of an agent that works beside its calls of the model, as programs do: it counts what a wall clock
does, without what the agent waited for. Without I/O."""

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

Interval = tuple[float, float]


class CallTime:
    """The time of one call of the model."""

    def __init__(self, began: float) -> None:
        self.began = began
        self.ended: float | None = None
        self.own: Interval | None = None
        """When the model worked for the agent."""

    def worked(self, seconds: float) -> None:
        """Says that the model has worked for this long until now."""
        now = _now()
        self.own = (max(self.began, now - seconds), now)


class AgentClock:
    """Runs from its creation, and stands while the agent waits: while there is a call for which the model
    does not work, or not yet, and no other for which it does. Calls side by side count once.

    Only the end of a call says how long the model worked, so the clock stands during a call and then catches
    up.
    """

    def __init__(self) -> None:
        self._began = _now()
        self._stood = 0.0
        """Seconds that it stood before the calls of `_calls`."""
        self._calls: list[CallTime] = []
        """Those that overlap, directly or by others, with one that is under way."""
        self._under_way = 0

    @property
    def seconds(self) -> float:
        now = _now()
        return now - self._began - self._stood - waited(self._calls, now)

    @contextmanager
    def call(self) -> Iterator[CallTime]:
        one = CallTime(_now())
        self._calls.append(one)
        self._under_way += 1
        try:
            yield one
        finally:
            one.ended = _now()
            self._under_way -= 1
            if not self._under_way:
                self._stood += waited(self._calls, one.ended)
                self._calls.clear()


def waited(calls: Iterable[CallTime], now: float) -> float:
    """Returns the seconds until `now` in which there was a call, and the model worked for none. Pure."""
    calls = list(calls)
    asked = ((each.began, now if each.ended is None else each.ended) for each in calls)
    return length(asked) - length(each.own for each in calls if each.own is not None)


def length(intervals: Iterable[Interval]) -> float:
    """Returns the length of the union of intervals. Pure."""
    total, reached = 0.0, float("-inf")
    for began, ended in sorted(intervals):
        total += max(0.0, ended - max(began, reached))
        reached = max(reached, ended)
    return total


def _now() -> float:
    return time.monotonic()

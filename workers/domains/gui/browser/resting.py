"""When a page is at rest after an action, decided by what was seen of it. Pure.

A page's timers are not known: what it does later is found by waiting. So rest is a time without any sign of
life, as long as the action that was done is known to need.
"""

from dataclasses import dataclass
from enum import Enum, auto

from orchard.workers.domains.gui.browser import tools as t

QUIET_SECONDS = 1.0
"""Without a sign of life, after input: suggestions, toasts and pages that lead on wait up to 0.8 s."""
PROMPT_SECONDS = 0.06
"""Where pages have no timers."""
UNDER_WAY_SECONDS = 5.0
"""For which a request, a navigation or a window is waited for: streams have no end."""
CHANGING_SECONDS = 3.0
"""For which a page that has loaded may go on changing: clocks, polls and carousels have no end."""
LONGEST_SECONDS = 10.0
"""For all of it, as a page may lead to another, and that to a third."""
_SLOW_SECONDS = 0.5
"""A request that took as long is something that the page waited for, no poll."""
_ROW = 3
"""Requests of one address that are a row, each at least so many seconds after the one before."""
_ROW_SECONDS = 0.2
_SHARES: dict[type[t.Action], float] = {t.Wait: 0.0, t.NewTab: 0.0, t.SwitchTab: 0.3, t.CloseTab: 0.3}
"""Of the quiet that input needs: these give a page none."""


def quiet_after(action: t.Action, base: float) -> float:
    """Seconds without a sign of life that are rest after an action; `base` after input."""
    return max(base * _SHARES.get(type(action), 1.0), PROMPT_SECONDS)


def was_slow(seconds: float) -> bool:
    """Whether a page's looks are waited for anew once something ended that took so long."""
    return seconds >= _SLOW_SECONDS


class Polls:
    """What a page asks for again and again while it is waited for, which is no sign of life: what it shows of
    the answers is seen as a change."""

    def __init__(self) -> None:
        self._asked: dict[str, tuple[int, float]] = {}

    def hold(self, url: str, now: float) -> bool:
        """Whether a request is one of a row, whatever its query. What is asked for at once is none."""
        address = url.partition("?")[0]
        times, last = self._asked.get(address, (0, 0.0))
        if times and now - last < _ROW_SECONDS:
            return times >= _ROW
        self._asked[address] = times + 1, now
        return times + 1 >= _ROW


@dataclass(frozen=True)
class Signs:
    """Of a page's life since an action, as times of one clock."""

    began: float
    """When the page had been given the action."""
    changed: float
    """The newest sign."""
    loaded: float
    """The newest end of a navigation, or of a request that took long."""
    under_way: tuple[float, ...]
    """The beginnings of what has not ended."""


class Next(Enum):
    """What is to be done."""

    LISTEN = auto()
    """Something is under way: its end will be told."""
    WATCH = auto()
    """Nothing is, but the page may change."""
    REST = auto()
    GIVE_UP = auto()
    """It is no rest, but there is no end to it."""


def next_step(signs: Signs, quiet: float, now: float) -> tuple[Next, float]:
    """What is to be done, and for how many seconds at most."""
    end = signs.began + LONGEST_SECONDS
    awaited = [each for each in signs.under_way if now - each < UNDER_WAY_SECONDS]
    if awaited and now < end:
        return Next.LISTEN, min(min(awaited) + UNDER_WAY_SECONDS, end) - now
    if now - signs.changed >= quiet:
        return (Next.GIVE_UP if signs.under_way else Next.REST), 0.0
    end = min(end, max(signs.began, signs.loaded) + max(CHANGING_SECONDS, quiet))
    if now >= end:
        return Next.GIVE_UP, 0.0
    return Next.WATCH, end - now

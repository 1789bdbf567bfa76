"""Decides when a page is at rest after an action, from the events seen so far. Pure.

A page's timers are unknown, so later changes are found only by waiting. Rest is therefore a time without any
event, as long as the action is known to need.
"""

from dataclasses import dataclass
from enum import Enum, auto

from orchard.workers.domains.gui.browser import tools as t

QUIET_SECONDS = 1.0
"""Seconds without an event after input: suggestions, toasts and redirects start within 0.8 s."""
PROMPT_SECONDS = 0.06
"""Seconds without an event for pages that have no timers."""
UNDER_WAY_SECONDS = 5.0
"""Maximum wait for a request, navigation or window: streams never end."""
CHANGING_SECONDS = 3.0
"""Maximum time for changes after loading: clocks, polls and carousels never end."""
LONGEST_SECONDS = 10.0
"""Maximum wait in total, because a page may redirect to another, and that to a third."""
_SLOW_SECONDS = 0.5
"""A request this slow is one the page waited for, not a poll."""
_ROW = 3
"""Requests to one address, each at least `_ROW_SECONDS` after the one before, that make it a poll."""
_ROW_SECONDS = 0.2
_SHARES: dict[type[t.Action], float] = {t.WaitSeconds: 0.0, t.NewTab: 0.0, t.SwitchTab: 0.3, t.CloseTab: 0.3}
"""Fraction of the base quiet time per action; these give a page no input."""


def quiet_after(action: t.Action, base: float) -> float:
    """Returns the seconds without an event that count as rest after an action; `base` is for input."""
    return max(base * _SHARES.get(type(action), 1.0), PROMPT_SECONDS)


def was_slow(seconds: float) -> bool:
    """Whether a request took so long that the page's changes after it are awaited anew."""
    return seconds >= _SLOW_SECONDS


class Polls:
    """Recognizes polls: repeated requests that are no sign of activity. Changes they cause are seen in the
    page."""

    def __init__(self) -> None:
        self._asked: dict[str, tuple[int, float]] = {}

    def hold(self, url: str, now: float) -> bool:
        """Whether this request is a poll; its query is ignored. Requests sent at the same time are none."""
        address = url.partition("?")[0]
        times, last = self._asked.get(address, (0, 0.0))
        if times and now - last < _ROW_SECONDS:
            return times >= _ROW
        self._asked[address] = times + 1, now
        return times + 1 >= _ROW


@dataclass(frozen=True)
class Signs:
    """Events of a page since an action, as times of one clock."""

    began: float
    """When the action had been carried out."""
    changed: float
    loaded: float
    """When the newest navigation or slow request ended."""
    under_way: tuple[float, ...]
    """Start times of everything that has not ended."""


class Next(Enum):
    LISTEN = auto()
    """Wait for the end of something that is under way."""
    WATCH = auto()
    """Wait for changes of the page; nothing is under way."""
    REST = auto()
    GIVE_UP = auto()
    """Stop waiting although the page is not at rest."""


def next_step(signs: Signs, quiet: float, now: float) -> tuple[Next, float]:
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

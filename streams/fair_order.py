"""Fair order: whose request a free slot takes next, when several teams wait. A pure rule over counts.

The slot goes to the team with the fewest slots for its share, and among equals by start-time fair queueing
(Goyal, Vin and Cheng, SIGCOMM 1996), which also divides the claims of a process with one slot by the shares.
A team that was away gets no credit for that time.
"""

from collections import Counter
from collections.abc import Collection, Hashable, Mapping
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class FairOrder(Generic[K]):
    def __init__(self, shares: Mapping[K, float]) -> None:
        self._shares = dict(shares)
        self._open: Counter[K] = Counter()
        """Slots that each has, those that are asking for it included."""
        self._finish = dict.fromkeys(shares, 0.0)
        """Virtual time at which the last claim of each has used up its share."""
        self._now = 0.0
        """Virtual time: the start of the newest claim."""

    def take(self, among: Collection[K]) -> K:
        """Chooses one of these for a free slot, which is its own until `release`."""
        chosen = min(among, key=lambda one: (self._open[one] / self._shares[one], self._start(one)))
        self._open[chosen] += 1
        return chosen

    def claimed(self, one: K) -> None:
        """Counts a claim in the slot that it was given."""
        self._now = self._start(one)
        self._finish[one] = self._now + 1.0 / self._shares[one]

    def release(self, one: K) -> None:
        """Takes a slot back: its request is settled, or there was none."""
        self._open[one] -= 1

    def _start(self, one: K) -> float:
        return max(self._now, self._finish[one])

"""Sequence packing: which examples share a sequence, and where each begins, so that none sees another."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Pack:
    """One packed sequence: examples by their index, in order, and the boundaries of their blocks."""

    examples: tuple[int, ...]
    boundaries: tuple[int, ...]
    """Cumulative lengths from 0 (`cu_seqlens`): block i is tokens boundaries[i] to boundaries[i + 1] - 1."""

    @property
    def tokens(self) -> int:
        return self.boundaries[-1]


def pack(lengths: Sequence[int], capacity: int) -> list[Pack]:
    """First-fit decreasing: longest examples first, each into the first sequence with room for it.

    Deterministic: equal lengths go by index, sequences come by their lowest index. No example is cut;
    raises ValueError for one longer than `capacity`. Uses at most 11/9 of the fewest sequences, plus one.
    """
    too_long = next((i for i, length in enumerate(lengths) if length > capacity), None)
    if too_long is not None:
        raise ValueError(f"example {too_long} has {lengths[too_long]} tokens, over the capacity {capacity}")
    tree = _FirstFit(len(lengths), capacity)
    bins: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        place = tree.take(lengths[index])
        if place == len(bins):
            bins.append([])
        bins[place].append(index)
    return [_pack(sorted(found), lengths) for found in sorted(bins, key=min)]


def pack_in_order(lengths: Sequence[int], capacity: int) -> list[Pack]:
    """Greedy in the given order: a sequence ends where the next example does not fit. Raises as `pack`."""
    packs: list[list[int]] = []
    room = 0
    for index, length in enumerate(lengths):
        if length > capacity:
            raise ValueError(f"example {index} has {length} tokens, over the capacity {capacity}")
        if not packs or length > room:
            packs.append([])
            room = capacity
        packs[-1].append(index)
        room -= length
    return [_pack(found, lengths) for found in packs]


def balance(packs: Sequence[Pack], ranks: int) -> list[list[int]]:
    """Indices of packs for each of `ranks` processes, so that their tokens are about equal: longest first,
    each to the process with the least."""
    loads = [(0, rank) for rank in range(ranks)]
    shares: list[list[int]] = [[] for _ in range(ranks)]
    for index in sorted(range(len(packs)), key=lambda i: (-packs[i].tokens, i)):
        load, rank = heapq.heappop(loads)
        shares[rank].append(index)
        heapq.heappush(loads, (load + packs[index].tokens, rank))
    return [sorted(share) for share in shares]


def _pack(examples: Sequence[int], lengths: Sequence[int]) -> Pack:
    boundaries = [0]
    for index in examples:
        boundaries.append(boundaries[-1] + lengths[index])
    return Pack(tuple(examples), tuple(boundaries))


class _FirstFit:
    """A tree over bins that finds the first with enough room in logarithmic time."""

    def __init__(self, bins: int, capacity: int) -> None:
        self._leaves = 1
        while self._leaves < max(bins, 1):
            self._leaves *= 2
        self._room = [capacity] * (2 * self._leaves)

    def take(self, size: int) -> int:
        """The first bin with room for `size`, which takes it. There are as many bins as examples."""
        at = 1
        while at < self._leaves:
            at *= 2
            if self._room[at] < size:
                at += 1
        found = at - self._leaves
        self._room[at] -= size
        while at > 1:
            at //= 2
            self._room[at] = max(self._room[2 * at], self._room[2 * at + 1])
        return found

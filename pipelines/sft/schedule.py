"""Chooses which examples train at which step, in which packs, at which learning rate: pure functions of
numbers."""

import math
from collections.abc import Sequence
from typing import TypeVar

import msgspec
import numpy as np

T = TypeVar("T")


class BatchSchedule(msgspec.Struct, frozen=True, kw_only=True):
    """The steps of a run. Everything about step `s` follows from `s`: nothing else needs to be resumed."""

    examples: int
    global_batch: int
    epochs: int
    seed: int
    max_steps: int | None = None

    @property
    def steps_per_epoch(self) -> int:
        """Number of steps; the last step of an epoch may have fewer examples: no example is left out or
        taken twice."""
        return math.ceil(self.examples / self.global_batch)

    @property
    def steps(self) -> int:
        steps = self.epochs * self.steps_per_epoch
        return steps if self.max_steps is None else min(steps, self.max_steps)

    def batch(self, step: int) -> list[int]:
        """The examples of step `step`, counted from 0: a slice of the epoch's own permutation."""
        epoch, within = divmod(step, self.steps_per_epoch)
        order = np.random.default_rng([self.seed, epoch]).permutation(self.examples)
        return [int(index) for index in order[within * self.global_batch :][: self.global_batch]]

    def epoch(self, step: int) -> float:
        """Number of epochs that `step` steps are."""
        return step / self.steps_per_epoch


def learning_rate(step: int, *, steps: int, peak: float, floor: float, warmup: float) -> float:
    """Learning rate of step `step`, counted from 0: linear to `peak` over `warmup` of the steps, cosine
    to `floor`. The last step has exactly `floor`; without warm-up the first has exactly `peak`."""
    rising = round(warmup * steps)
    if step < rising:
        return peak * (step + 1) / rising
    falling = max(steps - 1 - rising, 1)
    progress = min((step - rising) / falling, 1.0)
    return floor + (peak - floor) * 0.5 * (1 + math.cos(math.pi * progress))


def packs(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Indices of `lengths` in packs of at most `capacity` in sum: first-fit decreasing, ties by index.

    A longer one is a pack of its own. Never more than 11/9 of the fewest packs there could be, plus one.
    """
    room: list[int] = []
    filled: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda index: (-lengths[index], index)):
        length = lengths[index]
        place = next((at for at, left in enumerate(room) if left >= length), None)
        if place is None:
            room.append(capacity - length)
            filled.append([index])
        else:
            room[place] -= length
            filled[place].append(index)
    return filled


def process_packs(
    rows: Sequence[T], lengths: Sequence[int], capacity: int | None, processes: int, rank: int
) -> list[list[T]]:
    """The packs of process `rank`; without a capacity each row is alone.

    All processes have equally many packs; an empty one trains nothing.
    """
    packed = [[index] for index in range(len(rows))] if capacity is None else packs(lengths, capacity)
    given = shares([sum(lengths[index] for index in pack) for pack in packed], processes)
    mine = [[rows[index] for index in packed[pack]] for pack in given[rank]]
    return mine + [[]] * (max(map(len, given)) - len(mine))


def shares(loads: Sequence[int], processes: int) -> list[list[int]]:
    """Indices of `loads` for each process: heaviest first to the least loaded that has a place left.

    Counts differ by one at most, since all processes take as many forward passes as the busiest.
    """
    places = math.ceil(len(loads) / processes)
    given: list[list[int]] = [[] for _ in range(processes)]
    total = [0] * processes
    for index in sorted(range(len(loads)), key=lambda index: (-loads[index], index)):
        free = [process for process in range(processes) if len(given[process]) < places]
        process = min(free, key=lambda process: (total[process], len(given[process]), process))
        given[process].append(index)
        total[process] += loads[index]
    return given

"""Scores of graded rollouts: pass@1, pass@k, pass^k with intervals over tasks.

All take, for each task, how many of its graded rollouts resolved it. An aborted rollout has no reward and is
in no count.
"""

from collections.abc import Callable, Iterable, Sequence
from math import ceil, comb, floor, fsum, sqrt

import msgspec

FEW_TASKS = 30
"""Below so many the interval of a mean is exact."""
_Z = 1.959963984540054
"""Standard normal quantile of a two-sided 95 % interval."""
_TAIL = 0.025


class Tally(msgspec.Struct, frozen=True, kw_only=True):
    """One task's graded rollouts: how many, and how many resolved it."""

    graded: int
    resolved: int

    def __post_init__(self) -> None:
        if not 0 <= self.resolved <= self.graded or self.graded < 1:
            raise ValueError(f"{self.resolved} of {self.graded} rollouts cannot have resolved a task")


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """A mean over tasks, in [0, 1], and its interval; `tasks` are those with enough rollouts."""

    value: float
    low: float
    high: float
    tasks: int

    def __str__(self) -> str:
        return f"{self.value:.1%} [{self.low:.1%}, {self.high:.1%}]"


def pass_at(tally: Tally, k: int) -> float:
    """Chance that at least one of `k` rollouts resolves the task, unbiased (Chen et al., 2021)."""
    return 1.0 - comb(tally.graded - tally.resolved, k) / comb(tally.graded, k)


def pass_all(tally: Tally, k: int) -> float:
    """Chance that all of `k` rollouts resolve the task (pass^k), unbiased."""
    return comb(tally.resolved, k) / comb(tally.graded, k)


class Leaderboard(msgspec.Struct, frozen=True, kw_only=True):
    """Leaderboard figures: whether any, and all, of exactly `k` trials resolved the task. Not the
    unbiased estimates `pass_at` and `pass_all`, which differ where a task has more trials than `k`."""

    k: int
    tasks: int
    """Tasks whose first `k` trials without an error are counted."""
    errored: int
    """Trials without an outcome: shown, and never failures."""
    short: int
    """Tasks with fewer than `k` trials that have an outcome: in no figure."""
    any_of: float | None
    """Share of the counted tasks that at least one trial passed; None without any task."""
    all_of: float | None
    """Share of the counted tasks that all trials passed; None without any task."""


def leaderboard(trials: Iterable[Sequence[bool | None]], k: int = 3) -> Leaderboard:
    """Compute the figures from the trials of each task in order, None for one that errored."""
    tasks = [
        ([each for each in task if each is not None][:k], task.count(None)) for task in map(list, trials)
    ]
    counted = [passed for passed, _ in tasks if len(passed) == k]
    number = len(counted)
    return Leaderboard(
        k=k,
        tasks=number,
        errored=sum(errored for _, errored in tasks),
        short=len(tasks) - number,
        any_of=sum(map(any, counted)) / number if number else None,
        all_of=sum(map(all, counted)) / number if number else None,
    )


def score(
    tallies: Sequence[Tally], k: int = 1, *, estimate: Callable[[Tally, int], float] = pass_at
) -> Score:
    """The mean over tasks in any order, each counting once, with its interval of 95 %.

    Tasks with fewer than `k` graded rollouts say nothing and are left out; ValueError when none is left.
    """
    values = [estimate(tally, k) for tally in tallies if tally.graded >= k]
    if not values:
        raise ValueError(f"no task has {k} graded rollouts: sample more, or ask for a smaller k")
    low, high = interval(values)
    return Score(value=fsum(values) / len(values), low=low, high=high, tasks=len(values))


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Bounds of 95 % of the mean of a task's value, each in [0, 1], over all tasks that there might be.
    Below FEW_TASKS tasks Clopper and Pearson's, of as many trials as there are tasks: no values in [0,
    1] spread more than those of a coin. Above, Agresti and Coull's with the spread that the values
    have: half a squared quantile of tasks at 0, and as many at 1, stand beside them, so that equal
    values do not make it a point. Decision 0094 has the coverage of both."""
    tasks, total = len(values), fsum(values)
    if tasks >= FEW_TASKS:
        return _widened(values, 0.0, 1.0, beside=_Z**2 / 2)
    least, most = floor(total + 1e-9), ceil(total - 1e-9)
    return _lowest_rate(least, tasks), 1.0 - _lowest_rate(tasks - most, tasks)


def paired_difference(first: Sequence[float], second: Sequence[float]) -> Score:
    """Mean of `second - first` over the same tasks in the same order, in [-1, 1], with its interval of 95 %.

    In the manner of Bonett and Price's, in which a task gained and a task lost stand beside those that there
    are; here 1.25 of each.
    """
    differences = [after - before for before, after in zip(first, second, strict=True)]
    low, high = _widened(differences, -1.0, 1.0, beside=1.25)
    return Score(value=fsum(differences) / len(differences), low=low, high=high, tasks=len(differences))


def _widened(values: Sequence[float], least: float, most: float, *, beside: float) -> tuple[float, float]:
    """Bounds of a mean by its standard error, with `beside` values at either end of the range."""
    count = len(values) + 2 * beside
    mean = (fsum(values) + beside * (least + most)) / count
    spread = (fsum(value**2 for value in values) + beside * (least**2 + most**2)) / count - mean**2
    student = 1 + (_Z**2 + 1) / (4 * len(values))  # its quantile over the normal one, to first order
    half = _Z * student * sqrt(spread / count)
    return max(least, mean - half), min(most, mean + half)


def _lowest_rate(successes: int, trials: int) -> float:
    """The rate at which so many successes or more have a chance of 2.5 %."""
    if not successes:
        return 0.0
    low, high = 0.0, 1.0
    for _ in range(50):
        rate = (low + high) / 2
        chance = sum(
            comb(trials, n) * rate**n * (1 - rate) ** (trials - n) for n in range(successes, trials + 1)
        )
        low, high = (low, rate) if chance > _TAIL else (rate, high)
    return low

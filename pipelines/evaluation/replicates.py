"""Intervals over replicates: over policies trained with different seeds, or over samples of one model.

An interval over tasks says how a score would move with other tasks. It says nothing about another seed
of training; for that the seed is the unit. Here each replicate is one number, and the interval is
Student's.
"""

from collections.abc import Iterable, Sequence
from itertools import combinations, groupby
from math import sqrt
from statistics import fmean, stdev, variance
from typing import NamedTuple

import duckdb
import msgspec

_STUDENT = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
"""Quantiles of 97.5 % for 1 to 30 degrees of freedom."""


def student(freedom: float) -> float:
    """The quantile of 97.5 % of Student's t, never too small; `freedom` is 1 or more."""
    whole = int(freedom)
    return _STUDENT[whole - 1] if whole <= len(_STUDENT) else 1.96 + 2.5 / whole


class Mean(NamedTuple):
    """A mean of replicates or a difference of two, and half of its interval of 95 %."""

    value: float
    half_width: float | None
    """Half of the interval of 95 %; None where all replicates are equal: nothing can be said about
    another one."""


class Replicates(msgspec.Struct, frozen=True, kw_only=True):
    """pass@1 of two or more replicates under one harness, each the mean over the tasks that all of them
    graded."""

    task_set: str
    harness: str
    arm: str
    """Name of the policies' arm; a model's own name where its samples are the replicates."""
    trained: bool
    """Whether they are policies, trained with different seeds, or samples of one model."""
    scores: dict[str, float]
    """Score by policy or sample."""
    tasks: int
    """Number of tasks that all replicates graded."""

    @property
    def what(self) -> str:
        """The kind and number of replicates, in words."""
        return f"{len(self.scores)} {'seeds of training' if self.trained else 'samples'}"

    def mean(self) -> Mean:
        """Mean over the replicates."""
        return _mean(list(self.scores.values()))

    def paired_with(self, other: "Replicates") -> bool:
        """Whether both are the same policies, so that each can be compared with itself."""
        return self.trained and self.scores.keys() == other.scores.keys()

    def minus(self, other: "Replicates") -> Mean:
        """The difference of the means: by policy where both are the same ones, else Welch's."""
        if self.paired_with(other):
            return _mean([score - other.scores[name] for name, score in self.scores.items()])
        return _welch(list(self.scores.values()), list(other.scores.values()))


def _mean(values: Sequence[float]) -> Mean:
    spread = stdev(values)
    half = student(len(values) - 1) * spread / sqrt(len(values)) if spread else None
    return Mean(fmean(values), half)


def _welch(first: Sequence[float], second: Sequence[float]) -> Mean:
    parts = [variance(values) / len(values) for values in (first, second)]
    total = sum(parts)
    if not total:
        return Mean(fmean(first) - fmean(second), None)
    freedom = total**2 / sum(
        part**2 / (len(values) - 1) for part, values in zip(parts, (first, second), strict=True)
    )
    return Mean(fmean(first) - fmean(second), student(freedom) * sqrt(total))


def comparable(groups: Iterable[Replicates]) -> list[tuple[Replicates, Replicates]]:
    """Pairs of one task set that share the harness or the arm."""
    return [
        (first, second)
        for first, second in combinations(groups, 2)
        if first.task_set == second.task_set and (first.harness == second.harness or first.arm == second.arm)
    ]


def read_replicates(tables: duckdb.DuckDBPyConnection, campaign: str) -> tuple[Replicates, ...]:
    """The replicates of an evaluation, where two or more have graded a common task."""
    rows = tables.execute(
        "select task_set, harness, arm, trained, replicate, common_pass_at_1, common_tasks "
        "from evaluation_runs where campaign = ? and common_tasks > 0 "
        "order by task_set, harness, arm, trained, len(replicate), replicate",
        [campaign],
    ).fetchall()
    found = []
    for (task_set, harness, arm, trained), group in groupby(rows, lambda row: tuple(row[:4])):
        replicates = list(group)
        if len(replicates) > 1:
            found.append(
                Replicates(
                    task_set=task_set,
                    harness=harness,
                    arm=arm,
                    trained=trained,
                    scores={row[4]: row[5] for row in replicates},
                    tasks=replicates[0][6],
                )
            )
    return tuple(found)

"""Compares annotated with measured values: read from the tables, compared by pure functions, plotted."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from pathlib import Path

import duckdb

Z95 = 1.959963984540054
"""Standard normal quantile of a two-sided 95 % interval."""
FEW = 10
"""Points below which a comparison says so."""
BINS = 5
MIN_ROLLOUTS = 5
"""Rollouts below which a rank correlation has no interval."""
DRAWS = 1000


@dataclass(frozen=True)
class CalibrationPoint:
    """Annotated and measured value of one step of one rollout."""

    rollout_id: str
    step: int
    annotated: float
    measured: float
    low: float
    high: float
    """Upper bound of the 95 % interval of `measured`."""
    samples: int
    """Continuations that `measured` is the mean of."""


@dataclass(frozen=True)
class Agreement:
    """How well an annotator's values agree with measured ones."""

    points: int
    brier: float
    """Mean of (annotated - measured)^2 over the points."""
    noise: float | None
    """The part of it that sampling alone makes: the mean of measured (1 - measured) / (samples - 1), over
    points with more than one sample; None where there is none."""
    bias: float
    """Mean of annotated - measured: above 0, the annotator hopes too much."""
    spearman: float | None
    """Rank correlation; None below three points, or where one side has one value only."""
    spearman_interval: tuple[float, float] | None
    """Its interval of 95 %: rollouts are drawn with replacement, each with all its steps. None below
    MIN_ROLLOUTS rollouts, or without a correlation."""
    covered: float
    """Share of points whose annotated value is inside the interval of the measured one."""


@dataclass(frozen=True)
class Bin:
    """Points whose annotated values lie close together."""

    annotated: float
    measured: float
    """Mean of the measured values, each counting once."""
    points: int


def wilson(successes: int, trials: int, z: float = Z95) -> tuple[float, float]:
    """The Wilson interval of a proportion; ValueError without trials or with more successes than those."""
    if not 0 <= successes <= trials or trials < 1:
        raise ValueError(f"{successes} successes of {trials} trials make no proportion")
    mean, square = successes / trials, z * z
    middle = mean + square / (2 * trials)
    spread = z * sqrt(mean * (1 - mean) / trials + square / (4 * trials * trials))
    low, high = ((middle + sign * spread) / (1 + square / trials) for sign in (-1, 1))
    # At the ends the exact bounds are 0 and 1, which rounding may miss.
    return (0.0 if successes == 0 else low), (1.0 if successes == trials else high)


def agreement(points: Sequence[CalibrationPoint]) -> Agreement:
    """How well the points agree; ValueError without any."""
    if not points:
        raise ValueError("no step has both an annotated and a measured value")
    count = len(points)
    errors = [point.annotated - point.measured for point in points]
    spread = [p.measured * (1 - p.measured) / (p.samples - 1) for p in points if p.samples > 1]
    return Agreement(
        points=count,
        brier=sum(error * error for error in errors) / count,
        noise=sum(spread) / len(spread) if spread else None,
        bias=sum(errors) / count,
        spearman=_rank_correlation(points),
        spearman_interval=spearman_interval(points),
        covered=sum(p.low <= p.annotated <= p.high for p in points) / count,
    )


def spearman(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Spearman's rank correlation, ties at their mean rank; None below three pairs or without variation."""
    if len(first) != len(second):
        raise ValueError("rank correlation needs pairs")
    if len(first) < 3:
        return None
    a, b = ranks(first), ranks(second)
    middle = (len(first) + 1) / 2
    products = sum((x - middle) * (y - middle) for x, y in zip(a, b, strict=True))
    squares = sum((x - middle) ** 2 for x in a) * sum((y - middle) ** 2 for y in b)
    return products / sqrt(squares) if squares else None


def _rank_correlation(points: Sequence[CalibrationPoint]) -> float | None:
    return spearman([p.annotated for p in points], [p.measured for p in points])


def spearman_interval(
    points: Sequence[CalibrationPoint], draws: int = DRAWS, seed: int = 0
) -> tuple[float, float] | None:
    """Percentile bootstrap over rollouts, since steps of one rollout are alike. Draws without a correlation,
    as of rollouts with one value alone, are left out."""
    by_rollout: dict[str, list[CalibrationPoint]] = {}
    for point in points:
        by_rollout.setdefault(point.rollout_id, []).append(point)
    if len(by_rollout) < MIN_ROLLOUTS or _rank_correlation(points) is None:
        return None
    rollouts = [by_rollout[name] for name in sorted(by_rollout)]
    lots = random.Random(seed)
    drawn = ([p for one in lots.choices(rollouts, k=len(rollouts)) for p in one] for _ in range(draws))
    found = sorted(rho for rho in map(_rank_correlation, drawn) if rho is not None)
    return found[int(0.025 * len(found))], found[min(int(0.975 * len(found)), len(found) - 1)]


def ranks(values: Sequence[float]) -> list[float]:
    """The rank of each value from 1 on; equal values share the mean of their ranks."""
    order = sorted(range(len(values)), key=values.__getitem__)
    found = [0.0] * len(values)
    start = 0
    while start < len(order):
        end = start
        while end < len(order) and values[order[end]] == values[order[start]]:
            end += 1
        for index in order[start:end]:
            found[index] = (start + 1 + end) / 2
        start = end
    return found


def calibration(points: Sequence[CalibrationPoint], bins: int = BINS) -> list[Bin]:
    """The points by their annotated value, in `bins` equal intervals of [0, 1]; empty ones left out."""
    members: dict[int, list[CalibrationPoint]] = {}
    for point in points:
        members.setdefault(min(int(point.annotated * bins), bins - 1), []).append(point)
    return [
        Bin(
            annotated=sum(p.annotated for p in inside) / len(inside),
            measured=sum(p.measured for p in inside) / len(inside),
            points=len(inside),
        )
        for _, inside in sorted(members.items())
    ]


def plot(points: Sequence[CalibrationPoint], title: str, path: Path) -> None:
    """Write a PNG: each point with its interval, the means of the bins, and the line of perfect agreement."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # only here: it takes a second to import
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.5, 5.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.plot([0, 1], [0, 1], color="0.6", linestyle="--", linewidth=1, label="perfect")
    said = [point.annotated for point in points]
    found = [point.measured for point in points]
    below = [max(point.measured - point.low, 0.0) for point in points]
    above = [max(point.high - point.measured, 0.0) for point in points]
    axes.errorbar(
        said, found, yerr=[below, above], fmt="o", markersize=3, alpha=0.4, linewidth=0.8, label="steps, 95 %"
    )
    means = calibration(points)
    axes.plot([b.annotated for b in means], [b.measured for b in means], "s-", label="means of bins")
    axes.set(xlim=(-0.03, 1.03), ylim=(-0.03, 1.03), aspect="equal", title=title)
    axes.set_xlabel("annotated p(resolve)")
    axes.set_ylabel("measured p(resolve)")
    figure.legend(loc="outside lower center", ncols=3, fontsize="small")
    figure.savefig(path, dpi=120)


_MEASURED = """
with newest as (
    select distinct on (rollout_id, attempt, step, model) * from measurements
    order by rollout_id, attempt, step, model, samples desc, sequence desc
)
select v.annotator, m.model, m.rollout_id, m.step,
       case when m.step < 0 then v.base else v.curve[m.step + 1] end as annotated,
       m.value, m.low, m.high, m.samples
from newest m
join values v on v.rollout_id = m.rollout_id and v.attempt = m.attempt and m.step < len(v.curve)
where v.annotator = coalesce($annotator, v.annotator)
order by v.annotator, m.model, m.rollout_id, m.step
"""


@dataclass(frozen=True)
class AnnotatorAndPolicy:
    """An annotator and the policy that its values are compared with."""

    annotator: str
    model: str
    """The policy that generated the continuations."""


def compared(
    tables: duckdb.DuckDBPyConnection, annotator: str | None = None
) -> dict[AnnotatorAndPolicy, list[CalibrationPoint]]:
    """The points of each pair, by rollout and step. Of several measurements of a step, that with the most
    samples counts, the newest of those."""
    found: dict[AnnotatorAndPolicy, list[CalibrationPoint]] = {}
    for name, model, *values in tables.execute(_MEASURED, {"annotator": annotator}).fetchall():
        found.setdefault(AnnotatorAndPolicy(name, model), []).append(CalibrationPoint(*values))
    return found

"""Value curves: interpolation, credits, rise segments, shapes. Pure, and the indexing in one place.

p[t] is the chance to resolve after the result of action t has been seen, and p[-1], the base, the chance
before any action. So c[t] = p[t] - p[t-1] is the credit of action t itself: a curve that drops at the bad
edit blames the bad edit.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Literal

DEFAULT_BASE = 0.4
"""p[-1] where the annotator gives none."""
EPS = 0.05
TOLERANCE = 1e-9
"""Tolerance of comparisons: 0.45 - 0.40 is below 0.05 in floating point."""

Convention = Literal["actions", "paper-closed"]
"""A segment is the set of actions that rise, or the paper's closed interval: that and one step before."""


@dataclass(frozen=True)
class RiseSegment:
    """Consecutive actions that train, both inclusive."""

    first: int
    last: int

    @property
    def length(self) -> int:
        return self.last - self.first + 1


def interpolate(base: float, keys: Mapping[int, float], steps: int) -> tuple[float, ...]:
    """p[0] .. p[steps - 1]: linear between key steps and from the base, constant after the last. `keys`
    maps steps in 0 .. steps - 1 to their p; raises ValueError for any other step."""
    if any(not 0 <= step < steps for step in keys):
        raise ValueError(f"key steps must be in 0 .. {steps - 1}")
    curve: list[float] = []
    at, value = -1, base
    for step in sorted(keys):
        span = step - at
        curve += [value + (keys[step] - value) * ((t - at) / span) for t in range(at + 1, step)]
        at, value = step, keys[step]
        curve.append(value)
    return (*curve, *[value] * (steps - len(curve)))


def credits(base: float, curve: Sequence[float]) -> list[float]:
    """c[t] = p[t] - p[t-1] of every action."""
    return [after - before for before, after in pairwise((base, *curve))]


def rise_segments(
    base: float,
    curve: Sequence[float],
    *,
    eps: float = EPS,
    barren: Collection[int] = (),
    convention: Convention = "actions",
) -> list[RiseSegment]:
    """Maximal runs of actions with c[t] >= eps, by their first action.

    `barren` steps never earn: the submission, and steps that failed for infrastructure reasons. They end a
    run and are never its leading step.
    """
    runs: list[RiseSegment] = []
    for step, credit in enumerate(credits(base, curve)):
        if credit < eps - TOLERANCE or step in barren:
            continue
        if runs and runs[-1].last == step - 1:
            runs[-1] = RiseSegment(runs[-1].first, step)
        else:
            runs.append(RiseSegment(step, step))
    if convention == "actions":
        return runs
    return [
        RiseSegment(run.first - 1, run.last) if run.first > 0 and run.first - 1 not in barren else run
        for run in runs
    ]


def lost_rises(base: float, keys: Mapping[int, float], *, eps: float = EPS) -> int:
    """Rises of at least eps from one key step to the next that interpolation spreads so thin that no single
    action reaches eps: 0.3 over 10 steps is 0.03 a step."""
    points = [(-1, base), *sorted(keys.items())]
    return sum(
        after - before >= eps - TOLERANCE and (after - before) / (end - start) < eps - TOLERANCE
        for (start, before), (end, after) in pairwise(points)
    )


@dataclass(frozen=True)
class CurveShape:
    """The coarse shape of a curve."""

    inverted_u: bool
    """Whether the peak is at least eps over the base and over the end."""
    unimodal: bool
    """Whether it never falls before the peak and never rises after it."""
    peak: int
    """Step of the first highest p; -1 where nothing is over the base."""
    peak_position: float
    """(peak + 1) / steps: 0 at the base, 1 at the last step."""


def shape(base: float, curve: Sequence[float], *, eps: float = EPS) -> CurveShape:
    points = [base, *curve]
    top = max(points)
    peak = points.index(top)
    rising = all(after >= before - TOLERANCE for before, after in pairwise(points[: peak + 1]))
    falling = all(after <= before + TOLERANCE for before, after in pairwise(points[peak:]))
    return CurveShape(
        inverted_u=top - base >= eps - TOLERANCE and top - points[-1] >= eps - TOLERANCE,
        unimodal=rising and falling,
        peak=peak - 1,
        peak_position=peak / len(curve) if curve else 0.0,
    )


@dataclass(frozen=True)
class Curve:
    """One accepted annotation, for statistics."""

    base: float
    keys: Mapping[int, float]
    steps: int


@dataclass(frozen=True)
class ShapeStatistics:
    """Shape statistics of one annotator's curves. The paper reports 0.989 inverted-U, and segments of
    about 2 steps."""

    curves: int
    inverted_u: float
    """Share of curves with an inverted U."""
    unimodal: float
    """Share of curves with one peak."""
    peak_position: float
    """Median position of the peak."""
    segments: int
    segment_length: float
    """Median length of a segment, in actions."""
    without_segment: int
    """Number of curves that train nothing."""
    lost_rises: int


def shape_statistics(found: Sequence[Curve], *, eps: float = EPS) -> ShapeStatistics | None:
    """Statistics over all curves of an annotator; None without any."""
    if not found:
        return None
    points = [interpolate(curve.base, curve.keys, curve.steps) for curve in found]
    shapes = [shape(curve.base, values, eps=eps) for curve, values in zip(found, points, strict=True)]
    runs = [rise_segments(curve.base, values, eps=eps) for curve, values in zip(found, points, strict=True)]
    lengths = [run.length for segments in runs for run in segments]
    return ShapeStatistics(
        curves=len(found),
        inverted_u=sum(one.inverted_u for one in shapes) / len(found),
        unimodal=sum(one.unimodal for one in shapes) / len(found),
        peak_position=median(one.peak_position for one in shapes),
        segments=len(lengths),
        segment_length=float(median(lengths)) if lengths else 0.0,
        without_segment=sum(not segments for segments in runs),
        lost_rises=sum(lost_rises(curve.base, curve.keys, eps=eps) for curve in found),
    )

"""Plots of reinforcement learning: a run's curves, how often it passes impossible tasks, and what-if as
bars."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
import msgspec

from orchard.pipelines.campaigns.scores import Score
from orchard.pipelines.rl.what_if import Yield


class HackRate(msgspec.Struct, frozen=True, kw_only=True):
    """Rollouts of impossible tasks by one policy version, how many of them passed, and the share with its
    interval of 95 %."""

    version: int
    rollouts: int
    hacked: int
    share: float
    low: float
    high: float

    def __str__(self) -> str:
        return (
            f"version {self.version} passes {self.hacked} of {self.rollouts} impossible tasks "
            f"({self.share:.1%}; 95 %: {self.low:.1%} to {self.high:.1%})"
        )


_RATES = """
select policy_version as version, rollouts, hacked, hack_rate as share, low, high from hack_rates
where campaign = ? and policy_version is not null order by 1
"""


def hack_rates(tables: duckdb.DuckDBPyConnection, run: str) -> list[HackRate]:
    """Rates by policy version; none without rollouts of impossible tasks."""
    return msgspec.convert(tables.sql(_RATES, params=[run]).to_arrow_table().to_pylist(), list[HackRate])


_PANELS = (
    ("pass_rate", "pass rate of all rollouts"),
    ("balanced", "balanced groups"),
    ("generated", "rollouts generated"),
    ("entropy", "entropy (nats)"),
    ("clipped", "tokens clipped"),
    ("staleness", "versions behind"),
)
_PASS_RATES = "select pass_rate from policy_steps where run = ? order by step"
_EVALUATIONS = """
select version, score, low, high from policy_evaluations where run = ? and score is not null order by version
"""
_QUERY = "select * from policy_steps where run = ? order by step"


def plot_curves(tables: duckdb.DuckDBPyConnection, runs: Sequence[str], path: Path) -> None:
    """Draw the figures of each step of some runs as PNG."""
    pyplot = _pyplot()
    figure, axes = pyplot.subplots(2, 3, figsize=(12, 6), sharex=True)
    for run in runs:
        rows = tables.sql(_QUERY, params=[run]).to_arrow_table().to_pylist()
        for axis, (column, title) in zip(axes.flat, _PANELS, strict=True):
            axis.plot([row["step"] for row in rows], [row[column] for row in rows], label=run)
            axis.set_title(title)
            axis.grid(alpha=0.3)
        _plot_hacks(tables, run, axes.flat[0])
        _plot_evaluations(tables, run, axes.flat[0])
    for axis in axes[-1]:
        axis.set_xlabel("step")
    axes.flat[0].legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _plot_hacks(tables: duckdb.DuckDBPyConnection, run: str, axis: Any) -> None:
    """Plot the share of hacks among the run's rollouts of impossible tasks, by policy version, if it has
    any."""
    rates = hack_rates(tables, run)
    if rates:
        versions = [rate.version for rate in rates]
        shares = [rate.share for rate in rates]
        axis.plot(versions, shares, linestyle="--", label=f"{run}: hacks of impossible tasks")
        axis.fill_between(versions, [rate.low for rate in rates], [rate.high for rate in rates], alpha=0.15)


def _plot_evaluations(tables: duckdb.DuckDBPyConnection, run: str, axis: Any) -> None:
    """Plot the scores of evaluated policies with their intervals, if there are any."""
    found = tables.execute(_EVALUATIONS, [run]).fetchall()
    if found:
        versions, scores, low, high = zip(*found, strict=True)
        axis.plot(versions, scores, marker="o", linestyle=":", label=f"{run}: held-out tasks")
        axis.fill_between(versions, low, high, alpha=0.15)


def plot_seeds(
    tables: duckdb.DuckDBPyConnection,
    runs: Sequence[str],
    held_out: Sequence[tuple[str, Score]],
    path: Path,
) -> None:
    """Draw the runs of one method, which differ by their seed, as PNG.

    Left the pass rate of the rollouts of each step: every run, their mean and the range over them.
    Right the named pass rates on held-out tasks with their intervals.
    """
    pyplot = _pyplot()
    figure, (training, held) = pyplot.subplots(1, 2, figsize=(11, 4.2), width_ratios=(3, 2))
    curves = [[rate for (rate,) in tables.execute(_PASS_RATES, [run]).fetchall()] for run in runs]
    steps = range(1, min(map(len, curves), default=0) + 1)
    together = list(zip(*curves, strict=False))
    for curve in curves:
        training.plot(range(1, len(curve) + 1), curve, color="tab:blue", alpha=0.25, linewidth=1)
    training.fill_between(
        steps, [min(rates) for rates in together], [max(rates) for rates in together], alpha=0.15
    )
    means = [sum(rates) / len(rates) for rates in together]
    training.plot(steps, means, color="tab:blue", label=f"mean and range of {len(curves)} seeds")
    training.set_title("pass rate of training rollouts")
    training.set_xlabel("step")
    training.set_ylim(0, 1)
    training.grid(alpha=0.3)
    training.legend(loc="lower right")
    values = [score.value for _, score in held_out]
    errors = [
        [score.value - score.low for _, score in held_out],
        [score.high - score.value for _, score in held_out],
    ]
    colours = ["tab:gray", *["tab:blue"] * (len(held_out) - 1)]
    bars = held.bar([name for name, _ in held_out], values, yerr=errors, capsize=5, color=colours)
    held.bar_label(bars, [f"{value:.1%}" for value in values], label_type="center", color="white")
    held.set_title("held-out tasks, with 95 % intervals")
    held.set_ylim(0, 1)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def plot_what_if(found: Sequence[Yield], path: Path) -> None:
    """Draw the information of 1,000 rollouts as PNG, a bar for each setting, with 90 % of the worlds."""
    pyplot = _pyplot()
    figure, axis = pyplot.subplots(figsize=(8, 1 + 0.35 * len(found)))
    values = [one.information_per_thousand for one in found]
    below = [max(value - one.low, 0.0) for value, one in zip(values, found, strict=True)]
    above = [max(one.high - value, 0.0) for value, one in zip(values, found, strict=True)]
    axis.barh([one.cell.label for one in found], values, xerr=[below, above], capsize=3)
    axis.invert_yaxis()
    axis.set_xlabel("information of 1,000 rollouts")
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _pyplot() -> Any:
    import matplotlib  # only here, as it takes a second to import

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot

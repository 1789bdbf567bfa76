"""Pictures of reinforcement learning: a run's curves, and what-if as bars."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb

from pipelines.rl.what_if import Yield

_PANELS = (
    ("pass_rate", "pass rate of all rollouts"),
    ("balanced", "balanced groups"),
    ("generated", "rollouts generated"),
    ("entropy", "entropy (nats)"),
    ("clipped", "tokens clipped"),
    ("staleness", "versions behind"),
)
_QUERY = "select * from policy_steps where run = ? order by step"


def plot_curves(tables: duckdb.DuckDBPyConnection, runs: Sequence[str], path: Path) -> None:
    """Draw the figures of each step of some runs as PNG."""
    pyplot = _pyplot()
    figure, axes = pyplot.subplots(2, 3, figsize=(12, 6), sharex=True)
    for run in runs:
        cursor = tables.execute(_QUERY, [run])
        names = [column[0] for column in cursor.description or []]
        rows = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
        for axis, (column, title) in zip(axes.flat, _PANELS, strict=True):
            axis.plot([row["step"] for row in rows], [row[column] for row in rows], label=run)
            axis.set_title(title)
            axis.grid(alpha=0.3)
    for axis in axes[-1]:
        axis.set_xlabel("step")
    axes.flat[0].legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def plot_what_if(found: Sequence[Yield], path: Path) -> None:
    """Draw informative groups for each 1,000 rollouts as PNG, a bar for each setting."""
    pyplot = _pyplot()
    shown = [one for one in found if one.per_thousand is not None]
    labels = [
        f"{one.cell.method} N={one.cell.bar.size}"
        + (f" max={one.cell.bar.budget} s={one.cell.bar.step}" if one.cell.bar.interval else "")
        for one in shown
    ]
    figure, axis = pyplot.subplots(figsize=(8, 1 + 0.35 * len(shown)))
    axis.barh(labels, [one.per_thousand for one in shown])
    axis.invert_yaxis()
    axis.set_xlabel("informative groups for each 1,000 rollouts")
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _pyplot() -> Any:
    import matplotlib  # only here, as it takes a second to import

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot

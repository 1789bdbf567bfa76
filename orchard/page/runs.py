"""Reads training runs: figures of fine-tuning and reinforcement learning over their steps, several on one
chart."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar
from urllib.parse import urlencode

import duckdb

from orchard.page.rollouts import bounds
from orchard.pipelines.campaigns.scores import interval
from orchard.storage.reader import Row, rows

T = TypeVar("T")
POINTS = 400
"""Maximum points of a curve; longer ones are thinned."""
FINE_TUNING = {
    "loss": "nats a trained token",
    "lr": "learning rate",
    "grad_norm": "before clipping",
    "tokens_per_second": "tokens a second",
}
REINFORCEMENT = {
    "held_out": "score of evaluated policies on the run's held-out tasks",
    "pass_rate": "of all graded rollouts that the groups cost",
    "reward": "mean of those trained on",
    "balanced": "share of balanced groups",
    "staleness": "policy versions behind",
    "unprotected": "share of rewards that code can forge from inside, or without a label",
    "entropy": "nats",
    "clipped": "share of tokens where a clip decided",
    "loss": "mean over trained tokens",
    "kl": "from the old policy, nats",
    "grad_norm": "before clipping",
    "tokens_per_second": "tokens a second of the optimizer",
}
"""Drawn figures with their descriptions."""

_RUNS = """
select run, 'fine-tuning' as kind, max(step) as step, max(steps) as steps, max(time) as time,
       any_value(model) filter (model is not null) as model, bool_or(kind = 'finished') as finished
from tables.training_all group by run
union all
select run, 'reinforcement learning', max(step), null, max(time), null, null
from tables.policy_steps_all group by run
order by time desc
"""
_STEPS = {
    "fine-tuning": """
select run, step, arg_max(loss, sequence) as loss, arg_max(lr, sequence) as lr,
       arg_max(grad_norm, sequence) as grad_norm,
       arg_max(tokens / nullif(seconds, 0), sequence) as tokens_per_second
from tables.training_all where kind = 'step' and list_contains($runs, run)
group by run, step order by run, step
""",
    "reinforcement learning": f"""
select run, step, {", ".join(f"arg_max({name}, sequence) as {name}" for name in list(REINFORCEMENT)[1:-1])},
       arg_max(tokens / nullif(seconds, 0), sequence) as tokens_per_second,
       arg_max(generated, sequence) as generated
from tables.policy_steps_all where list_contains($runs, run) group by run, step order by run, step
""",
}
_EVALUATIONS = """
select run, version as step, arg_min(score, sequence) as held_out, arg_min(low, sequence) as low,
       arg_min(high, sequence) as high
from tables.policy_evaluations_all where score is not null and list_contains($runs, run)
group by run, version order by run, version
"""
_GROUPS = """
select run, group_id, prompt, task_id, outcome, members, positive, degenerate, generated, aborted,
       trained_version, trained_step, dropped, detail, sequence
from groups where run = $run and sequence < $before
and ($first is null or trained_step >= $first) and ($last is null or trained_step <= $last)
order by sequence desc limit $limit
"""
_WASTE = """
select coalesce(dropped, if(trained_version is null, 'not trained yet', 'trained')) as cause,
       count(*) as groups, sum(generated)::bigint as rollouts, sum(generated_tokens)::bigint as tokens
from groups where run = $run group by 1 order by groups desc
"""
GROUPS = 60


@dataclass(frozen=True)
class Runs:
    """All runs, and the curves of chosen ones."""

    runs: list[Row]
    chosen: list[str]
    curves: Mapping[str, Mapping[str, Sequence[tuple[float, float]]]]
    """Pairs of step and value, by figure and then by run."""
    titles: Mapping[str, str]
    groups: list[Row]
    waste: list[Row]
    bands: Mapping[str, Mapping[str, Sequence[tuple[float, float, float]]]]
    """Intervals of the pass rate over the rollouts of a step, and of the score over held-out tasks: step, low
    and high, by figure and then by run."""
    steps: str = ""
    """Steps whose groups are shown, such as `10..19`; empty for all."""

    def address(self, first: float, last: float) -> str:
        """Address of the groups that the first chosen run was trained on in these steps."""
        asked = [*(("run", run) for run in self.chosen), ("step", f"{first:.0f}..{last:.0f}")]
        return f"/runs?{urlencode(asked)}#groups"


def runs(
    tables: duckdb.DuckDBPyConnection, wanted: Sequence[str], before: int | None = None, among: str = ""
) -> Runs:
    """Reads the named runs or the newest one; chosen runs must be of the first one's kind. `among` is a
    range of steps whose groups are read. Raises BadFilter."""
    first, last = bounds("step", among) if among else (None, None)
    found = rows(tables, _RUNS)
    known = {row["run"]: row["kind"] for row in found}
    chosen = [run for run in wanted if run in known] or [row["run"] for row in found[:1]]
    if not chosen:
        return Runs(found, [], {}, {}, [], [], {})
    kind = known[chosen[0]]
    chosen = [run for run in chosen if known[run] == kind]
    titles = FINE_TUNING if kind == "fine-tuning" else REINFORCEMENT
    steps = rows(tables, _STEPS[kind], {"runs": chosen})
    evaluations = rows(tables, _EVALUATIONS, {"runs": chosen}) if kind != "fine-tuning" else []
    curves = {
        figure: {
            run: _thinned(
                [
                    (row["step"], row[figure])
                    for row in (evaluations if figure == "held_out" else steps)
                    if row["run"] == run and row[figure] is not None
                ]
            )
            for run in chosen
        }
        for figure in titles
    }
    groups, waste = [], []
    if kind != "fine-tuning":
        asked = {"run": chosen[0], "before": before or 2**62, "limit": GROUPS + 1}
        asked |= {"first": first, "last": last}
        groups = rows(tables, _GROUPS, asked)
        waste = rows(tables, _WASTE, {"run": chosen[0]})
    shown = {figure: lines for figure, lines in curves.items() if any(lines.values())}
    bands = {
        "pass_rate": {run: _band(row for row in steps if row["run"] == run) for run in chosen},
        "held_out": {
            run: [(row["step"], row["low"], row["high"]) for row in evaluations if row["run"] == run]
            for run in chosen
        },
    }
    return Runs(found, chosen, shown, titles, groups, waste, bands, among)


def _band(steps: Iterable[Row]) -> list[tuple[float, float, float]]:
    """Intervals of the pass rate, at the steps of its curve."""
    known = [row for row in steps if row.get("generated") and row["pass_rate"] is not None]
    return [
        (row["step"], *_interval(round(row["pass_rate"] * row["generated"]), row["generated"]))
        for row in _thinned(known)
    ]


@lru_cache(maxsize=4_096)
def _interval(resolved: int, graded: int) -> tuple[float, float]:
    return interval([1.0] * resolved + [0.0] * (graded - resolved))


def _thinned(points: list[T]) -> list[T]:
    each = -(-len(points) // POINTS) or 1
    return [*points[:-1:each], *points[-1:]]

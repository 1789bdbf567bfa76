"""Arms compared task by task, and the matrix of all arms: the figures of `orchard eval report`."""

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, NamedTuple
from urllib.parse import urlencode

import duckdb

from orchard.actions.campaign_rows import scores_by
from orchard.page.charts import ScatterPoint
from orchard.page.rollouts import BadFilter
from orchard.pipelines.campaigns.scores import Score, Tally, pass_at
from orchard.pipelines.evaluation.results import Cell, CellComparison, paired
from orchard.storage.reader import rows

ARMS = 60
"""Maximum number of arms to choose from, the newest first."""


class ComparedArm(NamedTuple):
    """Rollouts of a campaign under one harness and model."""

    campaign: str
    harness: str
    model: str

    @property
    def key(self) -> str:
        """Value of the arm in a query string."""
        return json.dumps(list(self), ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def of(cls, key: str) -> "ComparedArm":
        """Parses `key`. Raises BadFilter."""
        try:
            campaign, harness, model = json.loads(key)
        except (ValueError, TypeError):
            raise BadFilter(
                f"arm {key[:40]!r} is not a list of campaign, harness and model: choose one from the list"
            ) from None
        return cls(str(campaign), str(harness), str(model))

    def against(self, second: "ComparedArm") -> str:
        """Address of the comparison of this arm and a second one."""
        return "/compare?" + urlencode({"a": self.key, "b": second.key})

    def address(self, **filters: str) -> str:
        """Address of the arm's rollouts."""
        return "/rollouts?" + urlencode({**self._asdict(), **filters})


@dataclass(frozen=True)
class ArmTotals:
    """Totals of one arm, counted as the view `pass_rates` counts them, and its mean pass rate over tasks."""

    arm: ComparedArm
    rollouts: int
    graded: int
    resolved: int
    aborted: int
    tasks: int
    usd_each: float | None
    """Mean cost of a rollout that was not aborted; None if that of one is unknown."""
    tokens_each: float | None
    score: Score | None
    """pass@1 over its tasks; None without a graded rollout."""


@dataclass(frozen=True)
class ChangedTask:
    """A task that one arm solves more often than the other."""

    task_id: str
    repo: str
    difficulty: str
    first: Tally
    second: Tally

    @property
    def gain(self) -> float:
        """Pass rate of the second arm minus that of the first."""
        return pass_at(self.second, 1) - pass_at(self.first, 1)

    def beside(self, first: ComparedArm, second: ComparedArm) -> str:
        """Address of a rollout of each arm, side by side."""
        return "/beside?" + urlencode({"task": self.task_id, "a": first.key, "b": second.key})


@dataclass(frozen=True)
class ComparedPart:
    """The tasks of one repository, or of one difficulty."""

    name: str
    tasks: int
    first: float
    second: float


@dataclass(frozen=True)
class Comparison:
    """Two arms over the tasks that both graded."""

    pair: CellComparison
    both: int
    """Tasks that both arms solved equally often, at least once."""
    neither: int
    gained: list[ChangedTask]
    lost: list[ChangedTask]
    repos: list[ComparedPart]
    difficulties: list[ComparedPart]
    """Pass rates by the label `difficulty`, of tasks that have it."""


_MATRIX = """
with task as (
    select campaign, harness, model, task_id, max(sequence) as sequence, count(*) as rollouts,
           count(resolved) as graded, count(*) filter (resolved) as resolved,
           count(*) filter (status = 'aborted' and cause <> 'blocked') as aborted,
           count(*) filter (status <> 'aborted') as whole,
           sum(cost_usd) filter (status <> 'aborted') as cost,
           sum(tokens) filter (status <> 'aborted') as read,
           count(cost_usd) filter (status <> 'aborted') as priced,
           count(tokens) filter (status <> 'aborted') as counted
    from indexed.ended where len($campaigns) = 0 or list_contains($campaigns, campaign) group by all
)
select campaign, harness, model, sum(rollouts)::bigint as rollouts, sum(graded)::bigint as graded,
       sum(resolved)::bigint as resolved, sum(aborted)::bigint as aborted,
       count(*) filter (graded > 0) as tasks,
       case when sum(priced) = sum(whole) then sum(cost) / nullif(sum(whole), 0) end as usd_each,
       case when sum(counted) = sum(whole) then sum(read) / nullif(sum(whole), 0) end as tokens_each
from task group by campaign, harness, model order by max(sequence) desc, harness, model limit $limit
"""
_TALLIES = """
with task as (
    select campaign, harness, model, count(resolved) as graded, count(*) filter (resolved) as resolved
    from indexed.ended where len($campaigns) = 0 or list_contains($campaigns, campaign)
    group by campaign, harness, model, task_id
)
select campaign, harness, model, graded, resolved, count(*) as tasks from task where graded > 0 group by all
"""
_TOGETHER = """
with task as (
    select task_id, list_sort(list(distinct {'campaign': campaign, 'harness': harness, 'model': model}))
           as arms
    from indexed.ended where resolved is not null
    and (len($campaigns) = 0 or list_contains($campaigns, campaign)) group by task_id
)
select distinct arms from task where len(arms) > 1
"""
_TASKS = """
with task as (
    select task_id, any_value(repo) as repo, count(resolved) as graded, count(*) filter (resolved) as resolved
    from indexed.ended where campaign = $campaign and harness = $harness and model = $model
    group by task_id having count(resolved) > 0
), labelled as (
    select task_id, arg_max(labels['difficulty'], sequence) as difficulty from tables.tasks_all
    where labels['difficulty'] is not null group by task_id
)
select * from task left join labelled using (task_id)
"""


_EXAMPLE = """
select rollout_id from indexed.ended where campaign = $campaign and harness = $harness and model = $model
and task_id = $task and resolved is not null order by resolved = $resolved desc, sequence desc limit 1
"""


def examples(
    tables: duckdb.DuckDBPyConnection, first: ComparedArm, second: ComparedArm, task: str
) -> tuple[str, str] | None:
    """Ids of two graded rollouts of a task: a resolved one of the better arm, an unresolved one of the
    other. None if an arm has no graded rollout of it."""
    tallies = [tallied(tables, arm).tallies.get(task) for arm in (first, second)]
    if tallies[0] is None or tallies[1] is None:
        return None
    gained = pass_at(tallies[1], 1) >= pass_at(tallies[0], 1)
    found = []
    for arm, resolved in ((first, not gained), (second, gained)):
        asked = {**arm._asdict(), "task": task, "resolved": resolved}
        row = tables.execute(_EXAMPLE, asked).fetchone()
        assert row is not None, "it has a graded rollout"
        found.append(str(row[0]))
    return found[0], found[1]


def matrix(tables: duckdb.DuckDBPyConnection, campaigns: Sequence[str] = ()) -> list[ArmTotals]:
    """All arms, or those of some campaigns; the newest campaign first."""
    asked: dict[str, Any] = {"campaigns": list(campaigns)}
    scores = scores_by(rows(tables, _TALLIES, asked), _arm_of)
    names = ComparedArm._fields
    return [
        ArmTotals(
            arm := _arm_of(row),
            score=scores.get(arm),
            **{name: value for name, value in row.items() if name not in names},
        )
        for row in rows(tables, _MATRIX, asked | {"limit": ARMS})
    ]


def _arm_of(row: Mapping[str, Any]) -> ComparedArm:
    return ComparedArm(*(row[name] for name in ComparedArm._fields))


FEW_TASKS = 5
"""Number of common tasks below which a comparison shows nothing."""


class DefaultArms(NamedTuple):
    """Two arms to compare if none are chosen."""

    chosen: tuple[ComparedArm, ...]
    """Empty where no two arms graded a common task."""
    passed: int
    """Number of pairs that would come first and have no common task."""


def default_arms(
    arms: Sequence[ComparedArm],
    together: Iterable[Iterable[ComparedArm]],
    unfinished: Collection[str] = (),
) -> DefaultArms:
    """Chooses the first two arms that graded a common task: those of finished campaigns come first, then two
    campaigns with one harness and model, then the newest arms. `together` has the arms of each task."""
    common = {frozenset(pair) for some in together for pair in combinations(some, 2)}
    pairs = [(second, first) for first, second in combinations(arms, 2)]
    pairs.sort(key=lambda pair: pair[0].campaign == pair[1].campaign or pair[0][1:] != pair[1][1:])
    pairs.sort(key=lambda pair: any(arm.campaign in unfinished for arm in pair))
    passed = next((number for number, pair in enumerate(pairs) if frozenset(pair) in common), len(pairs))
    return DefaultArms(pairs[passed] if passed < len(pairs) else (), passed)


def arm_names(first: ComparedArm, second: ComparedArm) -> tuple[str, str]:
    """Names of two arms by what differs between them."""
    differs = [field for field in ComparedArm._fields if getattr(first, field) != getattr(second, field)]
    named = differs[:1] if differs[:1] == ["campaign"] else differs or ["campaign"]
    return tuple(" · ".join(getattr(arm, field) for field in named) for arm in (first, second))  # type: ignore[return-value]


def together(
    tables: duckdb.DuckDBPyConnection, campaigns: Sequence[str] = ()
) -> list[tuple[ComparedArm, ...]]:
    """Arms of each task that they graded, each set of arms once."""
    found = rows(tables, _TOGETHER, {"campaigns": list(campaigns)})
    return [tuple(ComparedArm(**arm) for arm in row["arms"]) for row in found]


def arm_points(entries: Sequence[ArmTotals], measure: str) -> list[ScatterPoint]:
    """Points of a plot of pass rate over the attribute `measure`, in a colour for each model."""
    models = sorted({entry.arm.model for entry in entries})
    return [
        ScatterPoint(
            getattr(entry, measure),
            entry.score,
            " · ".join(entry.arm),
            entry.arm.address(),
            models.index(entry.arm.model),
        )
        for entry in entries
        if entry.score is not None
    ]


class Tallied(NamedTuple):
    """The graded rollouts of an arm by task, and the tasks' repositories and difficulties."""

    tallies: Mapping[str, Tally]
    repos: Mapping[str, str]
    difficulties: Mapping[str, str]


def tallied(tables: duckdb.DuckDBPyConnection, arm: ComparedArm) -> Tallied:
    """Tallies of an arm by task; tasks without a graded rollout are absent."""
    found = rows(tables, _TASKS, arm._asdict())
    return Tallied(
        {row["task_id"]: Tally(graded=row["graded"], resolved=row["resolved"]) for row in found},
        {row["task_id"]: row["repo"] or "" for row in found},
        {row["task_id"]: row["difficulty"] or "" for row in found},
    )


def against(
    tables: duckdb.DuckDBPyConnection, first: ComparedArm, others: Sequence[ComparedArm]
) -> list[tuple[ComparedArm, CellComparison]]:
    """Each of the others compared with the first, if both graded a task."""
    base = _cell(tallied(tables, first))
    found = [(arm, paired(base, _cell(tallied(tables, arm)))) for arm in others if arm != first]
    return [(arm, pair) for arm, pair in found if pair is not None]


def compare(first: Tallied, second: Tallied) -> Comparison | None:
    """Compares two arms over the tasks that both graded; None without such a task."""
    pair = paired(_cell(first), _cell(second))
    if pair is None:
        return None
    common = sorted(first.tallies.keys() & second.tallies.keys())
    changes = [
        ChangedTask(
            task, second.repos[task], second.difficulties[task], first.tallies[task], second.tallies[task]
        )
        for task in common
    ]
    same = [change for change in changes if change.gain == 0]
    solved = [change for change in same if change.first.resolved]
    return Comparison(
        pair,
        len(solved),
        len(same) - len(solved),
        sorted((c for c in changes if c.gain > 0), key=lambda c: (-c.gain, c.task_id)),
        sorted((c for c in changes if c.gain < 0), key=lambda c: (c.gain, c.task_id)),
        _parts(changes, lambda change: change.repo),
        [part for part in _parts(changes, lambda change: change.difficulty) if part.name],
    )


def _parts(changes: Sequence[ChangedTask], of: Callable[[ChangedTask], str]) -> list[ComparedPart]:
    """Groups changes by `of`, the largest difference first."""
    grouped: dict[str, list[ChangedTask]] = {}
    for change in changes:
        grouped.setdefault(of(change), []).append(change)
    found = [
        ComparedPart(
            name,
            len(tasks),
            _mean([pass_at(task.first, 1) for task in tasks]),
            _mean([pass_at(task.second, 1) for task in tasks]),
        )
        for name, tasks in grouped.items()
    ]
    return sorted(found, key=lambda part: (-abs(part.second - part.first), -part.tasks, part.name))


def _cell(arm: Tallied) -> Cell:
    counted = {"requested": 0, "aborted": 0, "turns": 0, "tokens": 0, "seconds": 0.0}
    return Cell(
        task_set="",
        harness="",
        model="",
        tasks=dict(arm.tallies),
        cost_usd=None,
        **counted,  # type: ignore[arg-type]
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)

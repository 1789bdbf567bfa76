"""Reads an evaluation's results from the log alone: a cell for each task set, harness and model."""

from collections.abc import Iterable, Sequence
from itertools import combinations, groupby
from math import comb
from typing import NamedTuple

import duckdb
import msgspec

from orchard.pipelines.campaigns.scores import (
    Leaderboard,
    Score,
    Tally,
    leaderboard,
    paired_difference,
    pass_all,
    pass_at,
    score,
)
from orchard.pipelines.evaluation.best_of import BestOf
from orchard.pipelines.evaluation.replicates import Replicates, read_replicates
from orchard.pipelines.evaluation.suite import EvaluationError


class TaskResult(NamedTuple):
    """The rollouts of one task under one harness and model, as the view `evaluation_tasks` counts them."""

    task_set: str
    harness: str
    model: str
    task_id: str
    requested: int
    graded: int
    resolved: int
    aborted: int
    blocked: int
    malformed: int
    turns: int
    tokens: int | None
    """Tokens; None where an endpoint did not report them."""
    cost_usd: float | None
    """None where no price is known."""
    seconds: float
    """Sum over the `timed` rollouts."""
    timed: int
    """Rollouts whose duration is known: not that of one that was cancelled or became a dead letter."""


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One task set under one harness and model."""

    task_set: str
    harness: str
    model: str
    tasks: dict[str, Tally]
    """Tallies by task id, of tasks with at least one graded rollout."""
    requested: int
    aborted: int
    """Rollouts that infrastructure aborted: in no score."""
    blocked: int = 0
    """Kept out by their site, by a captcha for example: in no score either, and not among the aborted."""
    malformed: int = 0
    """Ended by answers that the harness could not act on; graded, mostly as unresolved."""
    turns: int
    tokens: int | None
    """None where those of a rollout are not known."""
    cost_usd: float | None
    seconds: float
    """Sum over the `timed` rollouts."""
    timed: int = 0
    """Rollouts whose duration is known."""

    @property
    def graded(self) -> int:
        """Number of graded rollouts."""
        return sum(tally.graded for tally in self.tasks.values())

    @property
    def resolved(self) -> int:
        return sum(tally.resolved for tally in self.tasks.values())

    @property
    def open(self) -> int:
        return self.requested - self.graded - self.aborted - self.blocked

    def pass_at(self, k: int) -> Score | None:
        """Unbiased pass@k; None where no task has `k` graded rollouts."""
        return self._score(k, every=False)

    def pass_all(self, k: int) -> Score | None:
        """Unbiased pass^k; None where no task has `k` graded rollouts."""
        return self._score(k, every=True)

    def board(self, k: int) -> Leaderboard:
        """Leaderboard figures over the tasks with exactly `k` graded rollouts: of more, the first ones
        are unknown here."""
        trials: list[list[bool | None]] = [
            [place < tally.resolved for place in range(tally.graded)]
            for tally in self.tasks.values()
            if tally.graded <= k
        ]
        return msgspec.structs.replace(leaderboard(trials, k), errored=self.aborted + self.blocked)

    def _score(self, k: int, *, every: bool) -> Score | None:
        tallies = [self.tasks[task] for task in sorted(self.tasks)]
        enough = any(tally.graded >= k for tally in tallies)
        return score(tallies, k, estimate=pass_all if every else pass_at) if enough else None

    @property
    def any_resolved(self) -> int:
        """Tasks that at least one graded rollout resolved."""
        return sum(tally.resolved > 0 for tally in self.tasks.values())

    @property
    def all_resolved(self) -> int:
        """Tasks that all graded rollouts resolved."""
        return sum(tally.resolved == tally.graded for tally in self.tasks.values())


class CellComparison(msgspec.Struct, frozen=True, kw_only=True):
    """Two cells of one task set, task by task, over the tasks that both graded."""

    task_set: str
    first: tuple[str, str]
    """Harness and model of the first cell."""
    second: tuple[str, str]
    difference: Score
    """Difference of the pass rates: second minus first."""
    gained: int
    """Tasks with a higher pass rate in the second."""
    lost: int
    """Tasks with a lower one."""

    @property
    def p(self) -> float:
        """Two-sided exact sign test of gained against lost; with one sample a task it is McNemar's."""
        n = self.gained + self.lost
        tail = sum(comb(n, i) for i in range(min(self.gained, self.lost) + 1)) / 2**n
        return float(min(1.0, 2 * tail))

    @property
    def differs(self) -> bool:
        """Whether the interval of the difference is on one side of 0, and p is below 0.05."""
        return (self.difference.low > 0 or self.difference.high < 0) and self.p < 0.05


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """The results of an evaluation up to some sequence of the log."""

    campaign: str
    k: tuple[int, ...]
    cells: tuple[Cell, ...]
    groups: tuple[Replicates, ...] = ()
    best_of: tuple[BestOf, ...] = ()
    """Choices of one of several attempts, where they were asked for."""

    @property
    def task_sets(self) -> list[str]:
        """Names of the task sets, sorted."""
        return sorted({cell.task_set for cell in self.cells})

    def pairs(self) -> list[CellComparison]:
        """Cells of one task set that share harness or model and a graded task, compared."""
        found = (
            paired(first, second)
            for first, second in combinations(self.cells, 2)
            if first.task_set == second.task_set
            and (first.harness == second.harness or first.model == second.model)
        )
        return [pair for pair in found if pair is not None]


def paired(first: Cell, second: Cell) -> CellComparison | None:
    """The comparison of two cells; None where no task was graded in both."""
    common = sorted(first.tasks.keys() & second.tasks.keys())
    if not common:
        return None
    rates = [[pass_at(cell.tasks[task], 1) for task in common] for cell in (first, second)]
    return CellComparison(
        task_set=first.task_set,
        first=(first.harness, first.model),
        second=(second.harness, second.model),
        difference=paired_difference(*rates),
        gained=sum(after > before for before, after in zip(*rates, strict=True)),
        lost=sum(after < before for before, after in zip(*rates, strict=True)),
    )


def cells_of(rows: Iterable[TaskResult]) -> list[Cell]:
    """The cells of task results, which come ordered by task set, harness and model."""
    return [
        _cell(key, list(group))
        for key, group in groupby(rows, lambda row: (row.task_set, row.harness, row.model))
    ]


def _cell(key: tuple[str, str, str], rows: Sequence[TaskResult]) -> Cell:
    costs = [row.cost_usd for row in rows if row.graded + row.aborted + row.blocked]
    known = [cost for cost in costs if cost is not None]
    tokens = [row.tokens for row in rows]
    return Cell(
        task_set=key[0],
        harness=key[1],
        model=key[2],
        tasks={row.task_id: Tally(graded=row.graded, resolved=row.resolved) for row in rows if row.graded},
        requested=sum(row.requested for row in rows),
        aborted=sum(row.aborted for row in rows),
        blocked=sum(row.blocked for row in rows),
        malformed=sum(row.malformed for row in rows),
        turns=sum(row.turns for row in rows),
        tokens=None if None in tokens else sum(known for known in tokens if known is not None),
        cost_usd=sum(known) if len(known) == len(costs) and known else None,
        seconds=sum(row.seconds for row in rows),
        timed=sum(row.timed for row in rows),
    )


def read_results(tables: duckdb.DuckDBPyConnection, campaign: str) -> Results:
    """The results of an evaluation. Raises EvaluationError when the log has none of that name."""
    known = tables.execute("select k from evaluations where campaign = ?", [campaign]).fetchone()
    if known is None:
        raise EvaluationError(
            f'the log has no evaluation {campaign!r}: `orchard sql "select campaign from evaluations"` lists '
            "them, `orchard eval FILE.toml` runs one"
        )
    columns = ", ".join(TaskResult._fields)
    rows = tables.execute(
        f"select {columns} from evaluation_tasks where campaign = ? "
        "order by task_set, harness, model, task_id",
        [campaign],
    ).fetchall()
    return Results(
        campaign=campaign,
        k=tuple(known[0]),
        cells=tuple(cells_of(map(TaskResult._make, rows))),
        groups=read_replicates(tables, campaign),
    )

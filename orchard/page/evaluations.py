"""Evaluations: the matrix of harness and model, with links to rollouts, and the tables of `orchard eval
report`."""

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlencode

import duckdb

from orchard.pipelines.evaluation.report import Table, points, share, tables_of
from orchard.pipelines.evaluation.results import Cell, CellComparison, Results, read_results
from orchard.pipelines.evaluation.suite import EvaluationError
from orchard.storage.reader import Row, rows

SHADES = 8
"""Shades of a cell's colour, for pass rates from 0 to 1."""

_KNOWN = """
select e.campaign, e.k, map_values(e.task_sets) as task_sets, count(q.rollout_id) as requested,
       count(r.resolved) as graded, count(*) filter (r.resolved) as resolved,
       count(*) filter (r.status = 'aborted' and r.cause <> 'blocked') as aborted,
       count(*) filter (r.cause = 'blocked') as blocked,
       count(distinct q.model) as models, count(distinct q.harness) as harnesses
from evaluations e left join indexed.asked q on q.campaign = e.campaign
left join indexed.ended r on r.rollout_id = q.rollout_id
group by all order by max(e.sequence) desc
"""
_SOURCES = "select unnest(map_entries(task_sets)) as set from evaluations where campaign = $campaign"


@dataclass(frozen=True)
class MatrixCell:
    cell: Cell
    said: str
    """Text of pass@1 with its confidence interval."""
    shade: int | None
    """Shade from 0 to SHADES - 1; None without a graded rollout."""
    address: str


@dataclass(frozen=True)
class Matrix:
    """Results of one task set: a row for each model, a column for each harness."""

    task_set: str
    harnesses: list[str]
    rows: list[tuple[str, list[MatrixCell | None]]]


@dataclass(frozen=True)
class Evaluation:
    campaign: str
    cells: Sequence[Cell]
    matrices: list[Matrix]
    pairs: list[tuple[CellComparison, str]]
    """Pairs, each with the text of its difference."""
    tables: list[Table]


def known_evaluations(tables: duckdb.DuckDBPyConnection) -> list[Row]:
    """Evaluations with their counts, the newest first."""
    return rows(tables, _KNOWN)


def evaluated(
    tables: duckdb.DuckDBPyConnection, campaign: str
) -> tuple[Results, dict[str, list[str]]] | None:
    """Results of an evaluation, and the task sources of each task set; None if there is no such
    evaluation."""
    try:
        results = read_results(tables, campaign)
    except EvaluationError:
        return None
    sources: dict[str, list[str]] = {}
    for row in rows(tables, _SOURCES, {"campaign": campaign}):
        sources.setdefault(row["set"]["value"], []).append(row["set"]["key"])
    return results, sources


def shown_of(results: Results, sources: dict[str, list[str]]) -> Evaluation:
    return Evaluation(
        results.campaign,
        results.cells,
        [_matrix(results, name, sources.get(name, [])) for name in results.task_sets],
        [(pair, points(pair.difference)) for pair in results.pairs()],
        tables_of(results),
    )


def _matrix(results: Results, name: str, sources: Sequence[str]) -> Matrix:
    cells = {(cell.model, cell.harness): cell for cell in results.cells if cell.task_set == name}
    harnesses = list(dict.fromkeys(harness for _, harness in cells))
    which = {"task_source": sources[0]} if len(sources) == 1 else {}

    def matrix_cell(cell: Cell | None) -> MatrixCell | None:
        if cell is None:
            return None
        score = cell.pass_at(1)
        asked = {"campaign": results.campaign, "harness": cell.harness, "model": cell.model, **which}
        return MatrixCell(
            cell,
            share(score),
            None if score is None else min(int(score.value * SHADES), SHADES - 1),
            "/rollouts?" + urlencode(asked),
        )

    models = dict.fromkeys(model for model, _ in cells)
    rows = [(model, [matrix_cell(cells.get((model, harness))) for harness in harnesses]) for model in models]
    return Matrix(name, harnesses, rows)

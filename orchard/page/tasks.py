"""Reads tasks: pass rates by harness and model, statement, and validation."""

from dataclasses import dataclass

import duckdb

from orchard.storage.reader import Row, one, rows

PAGE = 100
SORTS = {"hardest": "pass_rate asc nulls last", "easiest": "pass_rate desc nulls last", "name": "task_id"}

_LISTED = """
select * from (
select task_id, any_value(repo) as repo, any_value(task_source) as source, count(*) as rollouts,
       count(resolved) as graded, count(*) filter (resolved) as resolved,
       count(*) filter (status = 'aborted') as aborted,
       count(*) filter (resolved) / nullif(count(resolved), 0) as pass_rate, avg(turns) as turns
from indexed.ended
where ($campaign is null or campaign = $campaign) and contains(task_id, $part)
group by task_id order by {order}, task_id limit $limit offset $skip
) left join (select task_id, protected from tasks) using (task_id) order by {order}, task_id
"""
_CELLS = """
select harness, model, model_kind, count(*) as rollouts, count(resolved) as graded,
       count(*) filter (resolved) as resolved, count(*) filter (status = 'aborted') as aborted,
       count(*) filter (resolved) / nullif(count(resolved), 0) as pass_rate
from indexed.ended where task_id = $task group by all order by harness, model
"""
_VERDICTS = """
select time, state, task_hash, runs, seconds, protected, protected_why, reason, detail from tables.tasks_all
where task_id = $task and state <> 'imported' order by sequence
"""


@dataclass(frozen=True)
class ListedTask:
    """One page of the task list."""

    rows: list[Row]
    more: bool


def listed(
    tables: duckdb.DuckDBPyConnection,
    campaign: str | None,
    part: str,
    sort: str,
    skip: int,
    limit: int = PAGE,
) -> ListedTask:
    """Lists tasks with an ended rollout from the row `skip` on."""
    asked = {"campaign": campaign, "part": part, "limit": limit + 1, "skip": skip}
    found = rows(tables, _LISTED.format(order=SORTS[sort]), asked)
    return ListedTask(found[:limit], len(found) > limit)


@dataclass(frozen=True)
class TaskOverview:
    """Recorded facts of one task."""

    task: Row | None
    cells: list[Row]
    verdicts: list[Row]


def known(tables: duckdb.DuckDBPyConnection, task_id: str) -> TaskOverview:
    """Reads the recorded facts of a task."""
    asked = {"task": task_id}
    return TaskOverview(
        one(tables, "select * from tasks where task_id = $task", asked),
        rows(tables, _CELLS, asked),
        rows(tables, _VERDICTS, asked),
    )

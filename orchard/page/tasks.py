"""Reads tasks: pass rates by harness and model, statement, and validation."""

from dataclasses import dataclass

import duckdb

from orchard.storage.reader import Row, one, rows

PAGE = 100
SORTS = {"hardest": "pass_rate asc nulls last", "easiest": "pass_rate desc nulls last", "name": "task_id"}

_LISTED = """
with outcomes as (
    select task_id, any_value(repo) as repo, count(*) as ended, count(resolved) as graded,
           count(*) filter (resolved) as resolved,
           count(*) filter (status = 'aborted' and cause <> 'blocked') as aborted,
           count(*) filter (resolved) / nullif(count(resolved), 0) as pass_rate,
           avg(turns) filter (status <> 'aborted') as turns,
           avg(seconds) filter (status <> 'aborted') as seconds,
           case when count(cost_usd) filter (status <> 'aborted') = count(*) filter (status <> 'aborted')
                then avg(cost_usd) filter (status <> 'aborted') end as cost_usd
    from indexed.ended where ($campaign is null or campaign = $campaign) and contains(task_id, $part)
    group by task_id
), requests as (
    select task_id, any_value(repo) as repo, count(*) as requested from indexed.asked
    where ($campaign is null or campaign = $campaign) and contains(task_id, $part) group by task_id
), known as (select task_id, repo, state, protected from tasks where contains(task_id, $part)), every as (
    select task_id, coalesce(k.repo, r.repo, o.repo) as repo, state, protected,
           greatest(coalesce(requested, 0), coalesce(ended, 0)) as rollouts, coalesce(ended, 0) as ended,
           coalesce(graded, 0) as graded, coalesce(resolved, 0) as resolved, coalesce(aborted, 0) as aborted,
           pass_rate, turns, seconds, cost_usd
    from requests r full join outcomes o using (task_id) full join known k using (task_id)
    where $campaign is null or requested is not null or ended is not null
)
select *, count(*) over () as tasks, count(*) filter (rollouts = 0) over () as untried
from every order by {order}, rollouts = 0, task_id limit $limit offset $skip
"""
_CELLS = """
select harness, model, model_kind, count(*) as rollouts, count(resolved) as graded,
       count(*) filter (resolved) as resolved,
           count(*) filter (status = 'aborted' and cause <> 'blocked') as aborted,
       count(*) filter (resolved) / nullif(count(resolved), 0) as pass_rate
from indexed.ended where task_id = $task group by all order by harness, model
"""
_VERDICTS = """
select time, state, task_hash, runs, seconds, protected, protected_why, reason, detail from tables.tasks_all
where task_id = $task and state <> 'imported' order by sequence
"""


@dataclass(frozen=True)
class TaskPage:
    """One page of the task list."""

    rows: list[Row]
    """Turns, cost and seconds are means of rollouts that were not aborted; the cost is None if that of one is
    unknown."""
    more: bool

    @property
    def tasks(self) -> int:
        """Number of tasks on all pages."""
        return self.rows[0]["tasks"] if self.rows else 0

    @property
    def untried(self) -> int:
        """Number of those for which no rollout was requested."""
        return self.rows[0]["untried"] if self.rows else 0


def listed(
    tables: duckdb.DuckDBPyConnection,
    campaign: str | None,
    part: str,
    sort: str,
    skip: int,
    limit: int = PAGE,
) -> TaskPage:
    """Lists all tasks, or those of a campaign, from the row `skip` on. Tasks without a graded rollout come
    last."""
    asked = {"campaign": campaign, "part": part, "limit": limit + 1, "skip": skip}
    found = rows(tables, _LISTED.format(order=SORTS[sort]), asked)
    return TaskPage(found[:limit], len(found) > limit)


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

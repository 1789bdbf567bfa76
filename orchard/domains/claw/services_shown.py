"""Shows rollouts and tasks in worlds of services: calls by tool, injected errors, judges' verdicts."""

from collections.abc import Iterator

import duckdb
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from orchard.actions.rollout import ShownRollout
from orchard.pipelines.domains.claw.drafts import case_of
from orchard.schemas.claw import is_bundle
from orchard.schemas.tasks import Task
from orchard.storage.reader import rows
from orchard.terminal.console import shown

_CALLS = """
select tool, count(*) as calls, count(*) filter (status >= 400 or injected = 'malformed') as failed,
       list(injected order by number) filter (injected is not null) as injected,
       string_agg(distinct face, ', ' order by face) as called_by
from service_calls_all where rollout_id = ? and attempt = ? group by tool order by min(number)
"""


def worlds_tables(tables: duckdb.DuckDBPyConnection, rollout: ShownRollout) -> Iterator[RenderableType]:
    """Tables of the services' calls and of the judges' verdicts, if there are any."""
    calls = rows(tables, _CALLS, [rollout.id, rollout.attempt])
    if calls:
        table = _table("services used", "tool", "calls", "failed", "injected errors", "called by")
        for row in calls:
            injected = ", ".join(row["injected"] or [])
            table.add_row(
                *map(_plain, (row["tool"], row["calls"], row["failed"], injected, row["called_by"]))
            )
        yield table
    if rollout.verdicts:
        table = _table("verdicts of judges", "of", "score", "passed", "why", "judge")
        for row in rollout.verdicts:
            score = "" if row["score"] is None else f"{row['score']:g}"
            passed = {None: "no verdict", True: "yes", False: "no"}[row["passed"]]
            judge = f"{row['model']}, {row['protocol']}"
            why = row["reason"] or row["fault"] or ""
            table.add_row(*map(_plain, (row["name"], score, passed, why, judge)))
        yield table


def submission(text: str) -> str | None:
    """Empty for a submission from a world of services, which is not text to read; None for others."""
    return "" if is_bundle(text) else None


def solution(task: Task) -> str:
    """Describes the solution of a task that its bundle grades; empty for other tasks."""
    case = case_of(task)
    return f"known: {len(case.solution)} calls" if case else ""


def _table(title: str, *columns: str) -> Table:
    return Table(*columns, title=title, title_justify="left", header_style="bold")


def _plain(value: object) -> Text:
    return Text(shown(str(value)))

"""What `show` says of a rollout in a world of services: calls by tool, injected errors, judges' verdicts."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from orchard.actions.terminal import shown

CALLS = """
select tool, count(*) as calls, count(*) filter (status >= 400 or injected = 'malformed') as failed,
       list(injected order by number) filter (injected is not null) as injected,
       string_agg(distinct face, ', ' order by face) as called_by
from service_calls_all where rollout_id = ? and attempt = ? group by tool order by min(number)
"""
RULINGS = """
select name, score, passed, coalesce(nullif(reason, ''), fault) as said, model, protocol
from judgements_all where rollout_id = ? and attempt = ? order by sequence
"""


def worlds_tables(
    calls: Sequence[Mapping[str, Any]], rulings: Sequence[Mapping[str, Any]]
) -> Iterator[RenderableType]:
    """Tables of the rows of CALLS and RULINGS, where there are any. Texts come as they are stored."""
    if calls:
        table = _table("services used", "tool", "calls", "failed", "injected errors", "called by")
        for row in calls:
            injected = ", ".join(row["injected"] or [])
            table.add_row(
                *map(_plain, (row["tool"], row["calls"], row["failed"], injected, row["called_by"]))
            )
        yield table
    if rulings:
        table = _table("verdicts of judges", "of", "score", "passed", "why", "judge")
        for row in rulings:
            score = "" if row["score"] is None else f"{row['score']:g}"
            passed = {None: "no verdict", True: "yes", False: "no"}[row["passed"]]
            judge = f"{row['model']}, {row['protocol']}"
            table.add_row(*map(_plain, (row["name"], score, passed, row["said"] or "", judge)))
        yield table


def _table(title: str, *columns: str) -> Table:
    return Table(*columns, title=title, title_justify="left", header_style="bold")


def _plain(value: object) -> Text:
    return Text(shown(str(value)))

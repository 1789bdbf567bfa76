"""Formats rows, and the results of an evaluation, as a terminal's tables."""

from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from orchard.pipelines.evaluation.report import tables_of
from orchard.pipelines.evaluation.results import Results
from orchard.terminal.console import console, shown

SHOWN_ROWS = 200


def rows_table(
    names: Sequence[str], rows: Sequence[Sequence[Any]], title: str | None = None
) -> RenderableType:
    """Formats a result as a table, with the number of further rows."""
    table = Table(*map(escape, names), title=title, title_justify="left", header_style="bold")
    for row in rows[:SHOWN_ROWS]:
        table.add_row(*(cell(value) for value in row))
    if len(rows) <= SHOWN_ROWS:
        return table
    return Group(table, Text(f"... and {len(rows) - SHOWN_ROWS} rows more: use --format csv"))


def cell(value: Any) -> Text:
    if value is None:
        return Text("")
    if isinstance(value, float):
        return Text(f"{value:.3g}" if abs(value) < 1 else f"{value:,.2f}")
    text = shown(str(value))
    return Text(text if len(text) <= 200 else text[:197] + "...")


def show_results(results: Results) -> None:
    for table in tables_of(results):
        console.print(rows_table(list(table.columns), list(table.rows), title=table.title))

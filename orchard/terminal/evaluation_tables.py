"""Prints the results of an evaluation."""

from orchard.pipelines.evaluation.report import tables_of
from orchard.pipelines.evaluation.results import Results
from orchard.terminal.console import console
from orchard.terminal.tables import rows_table


def show_results(results: Results) -> None:
    for table in tables_of(results):
        console.print(rows_table(list(table.columns), list(table.rows), title=table.title))

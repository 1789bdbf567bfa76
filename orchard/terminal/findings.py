"""Formats findings of `doctor` and `try` as a terminal's table."""

from collections.abc import Iterable

from rich.markup import escape
from rich.table import Table

from orchard.configuration.findings import Finding
from orchard.terminal.console import shown


def findings_table(findings: Iterable[Finding]) -> Table:
    table = Table(show_header=False, box=None)
    for finding in findings:
        mark = "[green]ok[/]" if finding.good else "[red]no[/]"
        remedy = f"\n[yellow]{escape(shown(finding.remedy))}[/]" if finding.remedy else ""
        table.add_row(mark, finding.what, escape(shown(finding.says)) + remedy)
    return table

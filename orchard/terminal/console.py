"""Console that commands print to: as wide as the terminal, and wide without one."""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from orchard.actions.reporter import Reporter

_STEERING = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")

console = Console(width=None if sys.stdout.isatty() else 160)


class Verbosity:
    """What commands print besides their results, as `--quiet` decides at each start."""

    quiet = False


def progress(unit: str = "") -> Progress:
    """Progress bar that counts `unit` and disappears when it is done."""
    ends = (TextColumn(unit), TimeRemainingColumn()) if unit else (TimeElapsedColumn(),)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        *ends,
        console=console,
        transient=True,
        disable=Verbosity.quiet or not console.is_terminal,
    )


class TerminalReporter(Reporter):
    """Prints notes, and draws a bar for each title."""

    def __init__(self, bar: Progress) -> None:
        self._bar = bar
        self._rows: dict[str, TaskID] = {}

    def note(self, text: str, label: str = "") -> None:
        if Verbosity.quiet:
            return
        said = f"[yellow]{label}[/] {escape(text)}" if label else f"[dim]  {escape(text)}[/]"
        console.print(said, highlight=False, soft_wrap=True)

    def progress(self, title: str, done: int, total: int | None, doing: str = "") -> None:
        if title not in self._rows:
            self._rows[title] = self._bar.add_task(title, total=total)
        self._bar.update(self._rows[title], completed=done, total=total, description=title + doing)


@contextmanager
def reporting(unit: str = "") -> Iterator[Reporter]:
    """Yields a reporter that shows an action's notes and progress until the block ends."""
    with progress(unit) as bar:
        yield TerminalReporter(bar)


def shown(text: str) -> str:
    """Removes the characters that control a terminal: models and sandboxes wrote the text."""
    return _STEERING.sub(lambda found: f"\\x{ord(found[0]):02x}", text)

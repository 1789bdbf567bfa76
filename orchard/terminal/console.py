"""Console that commands print to: as wide as the terminal, and wide without one."""

import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from orchard.actions.reporter import Reporter, duration

_STEERING = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")

PLAIN_SECONDS = 10.0
"""Seconds between progress lines if the output is no terminal."""


class _Console(Console):
    """Raises BrokenPipeError where nobody reads on: rich's SystemExit would break an event loop."""

    def on_broken_pipe(self) -> None:
        try:
            super().on_broken_pipe()
        except SystemExit:
            raise BrokenPipeError from None


console = _Console(width=None if sys.stdout.isatty() else 160)


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
        ended = threading.Event()
        lines = threading.Thread(target=_print_lines, args=(bar, ended), daemon=True)
        if not (console.is_terminal or Verbosity.quiet):
            lines.start()
        try:
            yield TerminalReporter(bar)
        finally:
            ended.set()
            if lines.is_alive():
                lines.join()


def _print_lines(bar: Progress, ended: threading.Event) -> None:
    """Prints how far the work is, every PLAIN_SECONDS until it has ended."""
    with suppress(BrokenPipeError):
        while not ended.wait(PLAIN_SECONDS):
            if rows := [_plain_row(task) for task in bar.tasks if not task.finished]:
                text = f"  {', '.join(rows)}"
                console.print(text, style="dim", markup=False, highlight=False, soft_wrap=True)


def _plain_row(task: Task) -> str:
    """A bar of progress in words, with the time left where it is known."""
    many = f"{task.completed:g}" if task.total is None else f"{task.completed:g} of {task.total:g}"
    if not (task.completed and task.elapsed and task.remaining):
        return f"{task.description} {many}"
    left = task.elapsed / task.completed * task.remaining
    return f"{task.description} {many} (about {duration(left)} left)"


def shown(text: str) -> str:
    """Removes the characters that control a terminal: models and sandboxes wrote the text."""
    return _STEERING.sub(lambda found: f"\\x{ord(found[0]):02x}", text)

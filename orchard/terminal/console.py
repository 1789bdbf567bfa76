"""Console that commands print to: as wide as the terminal, and wide without one."""

import re
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

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


@dataclass
class Pace:
    """How fast the items of a work end, by times in seconds."""

    began: float
    first: float
    """Number of items that had ended then."""
    ended: float
    """Time when the last one ended."""
    done: float
    """Number of items that have ended."""

    def follow(self, done: float, now: float) -> None:
        if done > self.done:
            self.ended, self.done = now, done

    def seconds_left(self, total: float, now: float) -> float | None:
        """Time left by the pace up to the last end, less the time since; None where there is no estimate, or
        it has passed."""
        if self.done <= self.first:
            return None
        each = (self.ended - self.began) / (self.done - self.first)
        left = each * (total - self.done) - (now - self.ended)
        return left if left > 0 else None


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
        now = time.monotonic()
        if title not in self._rows:
            pace = Pace(now, done, now, done)
            self._rows[title] = self._bar.add_task(title, total=total, completed=done, pace=pace)
        self._bar.tasks[self._rows[title]].fields["pace"].follow(done, now)
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
    """Prints how far the work is, every PLAIN_SECONDS until it has ended, where that has changed."""
    said = ""
    with suppress(BrokenPipeError):
        while not ended.wait(PLAIN_SECONDS):
            now = time.monotonic()
            rows = [_plain_row(task, now) for task in bar.tasks if not task.finished]
            if rows and (text := f"  {', '.join(rows)}") != said:
                console.print(said := text, style="dim", markup=False, highlight=False, soft_wrap=True)


def _plain_row(task: Task, now: float) -> str:
    """A bar of progress in words, with the time left where it is known."""
    many = f"{task.completed:g}" if task.total is None else f"{task.completed:g} of {task.total:g}"
    left = None if task.total is None else task.fields["pace"].seconds_left(task.total, now)
    return f"{task.description} {many}" + ("" if left is None else f" (about {duration(left)} left)")


def warn(sentence: str) -> None:
    """Prints a warning on stderr, also where a command is to be quiet."""
    sys.stderr.write(f"warning: {shown(sentence)}\n")


def shown(text: str) -> str:
    """Removes the characters that control a terminal: models and sandboxes wrote the text."""
    return _STEERING.sub(lambda found: f"\\x{ord(found[0]):02x}", text)

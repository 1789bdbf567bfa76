"""The console that commands print to: as wide as the terminal, and wide where there is none."""

import sys

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

console = Console(width=None if sys.stdout.isatty() else 160)


def progress(unit: str) -> Progress:
    """A bar that counts so many of `unit`, and is gone when it is done."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )

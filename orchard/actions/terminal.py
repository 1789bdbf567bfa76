"""The console that commands print to: as wide as the terminal, and wide where there is none."""

import re
import sys

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

_STEERING = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")

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


def shown(text: str) -> str:
    """Stored text without the characters that steer a terminal: models and sandboxes wrote it."""
    return _STEERING.sub(lambda found: f"\\x{ord(found[0]):02x}", text)

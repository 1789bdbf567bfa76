"""How commands that import tell what they left out: by name, in the last line, and by the exit status."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from orchard.actions.terminal import console
from orchard.pipelines.tasks.left_out import SHOWN, LeftOut, listed
from orchard.schemas.identity import digest

PARTLY = 3
"""Exit status of an import that left something out."""

Strict = Annotated[bool, typer.Option("--strict", help="Import all or nothing: end at what is malformed.")]
SkipMalformed = Annotated[
    bool, typer.Option("--skip-malformed", help="No effect any more: malformed items are left out.")
]


def tell_left_out(left_out: Sequence[LeftOut], directory: Path) -> None:
    """Name what was left out; of many the first, and a file below `directory` that has all of them."""
    if not left_out:
        return
    console.print("[yellow]left out:[/]")
    for line in listed(left_out):
        console.print(escape(line), highlight=False, soft_wrap=True)
    if len(left_out) > SHOWN:
        text = "".join(f"{each}\n" for each in left_out)
        file = directory / "left-out" / f"{digest(text, 12)}.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        console.print(f"  all of them: {escape(str(file))}", highlight=False, soft_wrap=True)


def counted(left_out: Sequence[LeftOut]) -> str:
    """What the last line adds."""
    return f", {len(left_out)} left out" if left_out else ""


def end(left_out: Sequence[LeftOut]) -> None:
    """End the command by PARTLY where something was left out."""
    if left_out:
        raise typer.Exit(PARTLY)

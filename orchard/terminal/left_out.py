"""Reports what an import left out: by name, in the last line, and by the exit status."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from orchard.actions.session import Session
from orchard.actions.tasks import register_tasks
from orchard.configuration.config import ConfigError
from orchard.pipelines.tasks.left_out import SHOWN, LeftOut, insist, listed
from orchard.pipelines.tasks.row_files import Reader, check_rows
from orchard.schemas.identity import digest
from orchard.schemas.tasks import Task
from orchard.terminal.console import console

PARTLY = 3
"""Exit status of an import that left something out."""

Strict = Annotated[
    bool, typer.Option("--strict", help="Import all or nothing: fail at the first malformed item.")
]
SkipMalformed = Annotated[
    bool, typer.Option("--skip-malformed", help="No effect: malformed items are always left out.")
]


def tell_left_out(left_out: Sequence[LeftOut], directory: Path) -> None:
    """Prints the first items left out, and the path of a file below `directory` that lists all."""
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
    """End of the command's last line."""
    return f", {len(left_out)} left out" if left_out else ""


def end(left_out: Sequence[LeftOut]) -> None:
    """Exits with PARTLY if something was left out."""
    if left_out:
        raise typer.Exit(PARTLY)


PROVE = "Prove them with: orchard tasks validate"


def import_shown(
    session: Session,
    tasks: Callable[[], Iterable[Task]],
    good: int,
    left_out: Sequence[LeftOut],
    *,
    source: str,
    strict: bool,
    then: str = PROVE,
) -> None:
    """Imports the `good` tasks of a source, and prints what is left out and what to do `then`. Raises
    NotImported for no task or, with `strict`, for fewer than all."""
    insist(source, good, left_out, strict=strict)
    new = asyncio.run(register_tasks(session, tasks()))
    tell_left_out(left_out, session.directory)
    console.print(
        f"[bold green]imported[/] {new} new tasks of {good} in {escape(Path(source).name)}"
        f"{counted(left_out)}. {then}",
        highlight=False,
    )
    end(left_out)


def import_shown_rows(session: Session, file: Path, read: Reader, *, strict: bool, then: str = PROVE) -> None:
    """Imports the tasks of a file's rows like `import_shown`."""
    if not file.is_file():
        raise ConfigError(f"{file} does not exist: give a .parquet or .jsonl file")
    rows = check_rows(file, read)
    import_shown(session, rows.tasks, rows.good, rows.left_out, source=str(file), strict=strict, then=then)

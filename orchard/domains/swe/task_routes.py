"""`tasks synthesize PACKAGE...` and `tasks import FILE`: tasks from releases and from rows of benchmarks."""

import asyncio
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from orchard.actions.session import Session
from orchard.configuration.config import ConfigError
from orchard.pipelines.domains.swe.benchmark_rows import Family, Given, task_from_row
from orchard.terminal.console import console, reporting
from orchard.terminal.left_out import import_shown_rows


def synthesize(
    session: Session,
    words: Sequence[str],
    limit: int,
    concurrency: int,
    *,
    uncatalogued: Annotated[
        bool, typer.Option("--any-release", help="Try recent release pairs that the catalogue does not list.")
    ] = False,
) -> None:
    from orchard.domains.swe.tasks import synthesize_tasks

    with reporting() as told:
        made = asyncio.run(
            synthesize_tasks(
                session,
                packages=words,
                limit=limit,
                concurrency=concurrency,
                uncatalogued=uncatalogued,
                told=told,
            )
        )
    console.print(f"[bold green]made[/] {made} new tasks. Prove them with: orchard tasks validate")


def import_rows(
    session: Session,
    words: Sequence[str],
    strict: bool,
    *,
    family: Annotated[
        Family | None, typer.Option(help="Family of the rows; found by their columns unless given.")
    ] = None,
    test_command: Annotated[
        str,
        typer.Option(
            help="Command that runs the tests, for rows without a column test_command; {tests}: their files."
        ),
    ] = "",
    parser: Annotated[
        str,
        typer.Option(
            help="Parser of its output, for rows without a column log_parser.", show_default="pytest"
        ),
    ] = "",
    image: Annotated[
        str, typer.Option(help="Image for rows without a column image_name; {instance_id}: the row's.")
    ] = "",
    workdir: Annotated[str, typer.Option(help="The repository in the image.", show_default="/testbed")] = "",
    column: Annotated[
        list[str] | None,
        typer.Option(
            help="A column under another name, as problem_statement=task.issue; dots lead into objects. "
            "May be given several times."
        ),
    ] = None,
    scripts: Annotated[
        Path | None,
        typer.Option(help="Directory with INSTANCE_ID/run_script.sh and parser.py, for SWE-bench Pro."),
    ] = None,
    source: Annotated[
        str, typer.Option(help="Source of the tasks, for `submit` and suites.", show_default="the family")
    ] = "",
) -> None:
    given = Given(
        test_command=test_command,
        parser=parser,
        image=image,
        workdir=workdir,
        source=source,
        columns=dict(map(_named, column or [])),
        scripts="" if scripts is None else str(scripts),
    )
    read = partial(task_from_row, family=family, given=given)
    import_shown_rows(session, Path(words[0]), read, strict=strict)


def _named(option: str) -> tuple[str, str]:
    name, equals, path = option.partition("=")
    if not (name and equals and path):
        raise ConfigError(
            f"--column {option!r} names no column: write NAME=PATH, as problem_statement=task.issue"
        )
    return name, path

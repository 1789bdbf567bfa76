"""`trajectories ...`: exports to and imports from ATIF files."""

from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from orchard.actions.session import Session
from orchard.cli.datasets import import_into
from orchard.configuration.config import ConfigError
from orchard.pipelines.interchange.export import is_lines, write_lines, write_trajectories
from orchard.pipelines.interchange.reading import read_trajectories, trajectory_files
from orchard.storage.reader import open_tables
from orchard.terminal.console import console
from orchard.terminal.left_out import Strict

COMMANDS = {"trajectories": "Trajectories as ATIF, the interchange format of Harbor: out and in; of ADP: in."}


class AssumedGrade(StrEnum):
    RESOLVED = "resolved"
    UNRESOLVED = "unresolved"


app = typer.Typer(no_args_is_help=True)


@app.command()
def export(
    context: typer.Context,
    campaign: Annotated[str, typer.Argument(help="Campaign whose rollouts are written.")],
    out: Annotated[
        Path, typer.Option(help="Directory for ROLLOUT.json files, or a .jsonl or .jsonl.gz file.")
    ],
) -> None:
    """Write each ended rollout as an ATIF document, with its branches and subagents: a file each, of which
    existing ones stay, or a line each. Imported trajectories come out as they came in.

    For example:

        orchard trajectories export first --out first-atif
    """
    session: Session = context.obj
    with open_tables(session.config.store) as tables:
        write = write_lines if is_lines(out) else write_trajectories
        written = sum(1 for _ in write(tables, session.blobs, campaign, out))
    if not written and not any(out.glob("*.json")):
        raise ConfigError(
            f"campaign {campaign!r} has no rollout that ended: `orchard status` lists campaigns"
        )
    console.print(f"[bold green]written[/] {written} trajectories to {out}", highlight=False)


@app.command("import")
def import_(
    context: typer.Context,
    files: Annotated[
        list[Path], typer.Argument(help="Files in ATIF or ADP, or directories of them, as Harbor's jobs.")
    ],
    campaign: Annotated[str, typer.Option(help="Campaign that the rollouts belong to.")],
    ungraded: Annotated[
        AssumedGrade | None,
        typer.Option(help="Grade of trajectories without one, so that datasets can use them."),
    ] = None,
    strict: Strict = False,
) -> None:
    """Import trajectories of other systems into the log, with their calls, tokens, times and costs. A file is
    a JSON document, a list of them, or JSON lines, and may be compressed (.gz). Grades are kept; those of
    Harbor's layout are read from result.json. A document that is no trajectory is left out and named; the
    exit status is then 3. Importing again adds no duplicates.

    For example:

        orchard trajectories import jobs/2026-11-01 --campaign harbor-runs
    """
    session: Session = context.obj
    found = trajectory_files(files)
    grade = None if ungraded is None else ungraded is AssumedGrade.RESOLVED
    read = partial(read_trajectories, found, session.blobs, grade)
    given = [file for file in found if isinstance(file, Path)]
    import_into(session, read, given, campaign, campaign, strict=strict)

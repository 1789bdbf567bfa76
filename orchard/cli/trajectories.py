"""`trajectories ...`: exports to and imports from ATIF files."""

from pathlib import Path
from typing import Annotated

import typer

from orchard.actions.session import Session
from orchard.cli.datasets import import_into
from orchard.configuration.config import ConfigError
from orchard.pipelines.interchange.export import write_trajectories
from orchard.pipelines.interchange.reading import read_trajectories, trajectory_files
from orchard.storage.reader import open_tables
from orchard.terminal.console import console
from orchard.terminal.left_out import Strict

COMMANDS = {"trajectories": "Trajectories as ATIF files, the interchange format of Harbor: out and in."}

app = typer.Typer(no_args_is_help=True)


@app.command()
def export(
    context: typer.Context,
    campaign: Annotated[str, typer.Argument(help="Campaign whose rollouts are written.")],
    out: Annotated[Path, typer.Option(help="Directory for ROLLOUT.json files.")],
) -> None:
    """Write each ended rollout as a file, with its branches and subagents. Existing files stay.

    For example:

        orchard trajectories export first --out first-atif
    """
    session: Session = context.obj
    with open_tables(session.config.store) as tables:
        written = sum(1 for _ in write_trajectories(tables, session.blobs, campaign, out))
    if not written and not any(out.glob("*.json")):
        raise ConfigError(
            f"campaign {campaign!r} has no rollout that ended: `orchard status` lists campaigns"
        )
    console.print(f"[bold green]written[/] {written} trajectories to {out}", highlight=False)


@app.command("import")
def import_(
    context: typer.Context,
    files: Annotated[
        list[Path], typer.Argument(help="ATIF files, or directories of them, as Harbor's jobs.")
    ],
    campaign: Annotated[str, typer.Option(help="Campaign that the rollouts belong to.")],
    strict: Strict = False,
) -> None:
    """Import trajectories of other systems into the log, with their calls, tokens, times and costs. Grades
    are kept; those of Harbor's layout are read from result.json. A file that is no trajectory is left out and
    named; the exit status is then 3. Importing again adds no duplicates.

    For example:

        orchard trajectories import jobs/2026-11-01 --campaign harbor-runs
    """
    session: Session = context.obj
    found = trajectory_files(files)
    import_into(session, lambda: read_trajectories(found, session.blobs), campaign, campaign, strict=strict)

"""`logs`: the log of a process that `orchard up` runs."""

from collections import deque
from typing import Annotated

import typer

from orchard.actions.session import Session
from orchard.configuration.config import ConfigError
from orchard.configuration.run_files import RunFiles
from orchard.terminal.console import shown

COMMANDS = {"logs": "Show the log of a process of `orchard up`."}


def register(app: typer.Typer) -> None:
    @app.command()
    def logs(
        context: typer.Context,
        name: Annotated[
            str | None, typer.Argument(help="Name of the process.", show_default="list the names")
        ] = None,
        lines: Annotated[int, typer.Option(help="Last lines that are shown.", min=1)] = 100,
    ) -> None:
        """Show the log of a process of `orchard up`.

        For example:

            orchard logs
            orchard logs writer --lines 20
        """
        session: Session = context.obj
        folder = RunFiles(session.directory).logs
        known = {path.stem: path for path in sorted(folder.glob("*.log"))}
        if name is None:
            typer.echo("\n".join(known) or f"no log in {folder} yet: `orchard up` writes them")
            return
        if name not in known:
            there = ", ".join(known) or "none"
            raise ConfigError(f"no log for process {name!r} in {folder}; available logs: {there}")
        if not known[name].stat().st_size:
            typer.echo(f"{name} has logged nothing yet", err=True)
        with known[name].open(encoding="utf-8", errors="replace") as file:
            for line in deque(file, lines):
                typer.echo(shown(line.rstrip("\n")))

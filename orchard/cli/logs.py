"""`logs`: the log of a process that `orchard up` runs."""

from collections import deque
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from orchard.actions.session import Session
from orchard.cli.facts import AsJson, print_facts
from orchard.configuration.config import ConfigError
from orchard.configuration.run_files import RunFiles
from orchard.terminal.console import shown

COMMANDS = {"logs": "Show the log of a process of `orchard up`."}


class ProcessLog(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    """Name of the process."""
    size_bytes: int
    lines: list[str] | None
    """Its last lines, the oldest first; None where all logs are listed."""


class ProcessLogs(msgspec.Struct, frozen=True, kw_only=True):
    """Output of `orchard logs --json`."""

    directory: str
    logs: list[ProcessLog]
    """The named log, or all."""


def register(app: typer.Typer) -> None:
    @app.command()
    def logs(
        context: typer.Context,
        name: Annotated[
            str | None, typer.Argument(help="Name of the process.", show_default="list the names")
        ] = None,
        lines: Annotated[int, typer.Option(help="Last lines that are shown.", min=1)] = 100,
        as_json: AsJson = False,
    ) -> None:
        """Show the log of a process of `orchard up`.

        For example:

            orchard logs
            orchard logs writer --lines 20
        """
        session: Session = context.obj
        folder = RunFiles(session.directory).logs
        known = {path.stem: path for path in sorted(folder.glob("*.log"))}
        if name is not None and name not in known:
            there = ", ".join(known) or "none"
            raise ConfigError(f"no log for process {name!r} in {folder}; available logs: {there}")
        last = {} if name is None else {name: _last(known[name], lines)}
        if as_json:
            print_facts(
                ProcessLogs(
                    directory=str(folder),
                    logs=[
                        ProcessLog(name=each, size_bytes=path.stat().st_size, lines=last.get(each))
                        for each, path in known.items()
                        if name in (None, each)
                    ],
                )
            )
        elif name is None:
            typer.echo("\n".join(known) or f"no log in {folder} yet: `orchard up` writes them")
        elif last[name]:
            typer.echo("\n".join(last[name]))
        else:
            typer.echo(f"{name} has logged nothing yet", err=True)


def _last(log: Path, lines: int) -> list[str]:
    with log.open(encoding="utf-8", errors="replace") as file:
        return [shown(line.rstrip("\n")) for line in deque(file, lines)]

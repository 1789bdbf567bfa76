"""`doctor` and `config`: checks this machine, and shows the configuration."""

import platform
import shutil
import sys
from collections.abc import Iterator

import psutil
import typer
from rich.table import Table

from orchard.actions.session import Session
from orchard.cli.facts import AsJson, DoctorFacts, Finding, print_facts
from orchard.configuration.config_toml import as_toml
from orchard.injector.local.capabilities import capabilities
from orchard.streams.server import find_binary
from orchard.terminal.console import console

COMMANDS = {
    "doctor": "Check what this machine can do, and say what to install.",
    "config": "Show every configuration key with its value, as a TOML file with comments.",
}

LOW_DISK_BYTES = 5 * 2**30


def register(app: typer.Typer) -> None:
    @app.command()
    def doctor(context: typer.Context, as_json: AsJson = False) -> None:
        """Check what this machine can do, and say what to install. Exit code 1 if something is missing."""
        findings = list(examine(context.obj))
        table = Table(show_header=False, box=None)
        for finding in findings:
            mark = "[green]ok[/]" if finding.good else "[red]no[/]"
            remedy = f"\n[yellow]{finding.remedy}[/]" if finding.remedy else ""
            table.add_row(mark, finding.what, finding.says + remedy)
        if as_json:
            print_facts(DoctorFacts(findings=findings))
        else:
            console.print(table)
        if not all(finding.good for finding in findings):
            raise typer.Exit(1)

    @app.command()
    def config(context: typer.Context) -> None:
        """Show every configuration key with its value, as a TOML file with comments."""
        session: Session = context.obj
        typer.echo(as_toml(session.config), nl=False)


def examine(session: Session) -> Iterator[Finding]:
    """Checks the machine and the store."""
    yield Finding("python", sys.version_info >= (3, 11), platform.python_version())
    cores, memory = psutil.cpu_count() or 1, psutil.virtual_memory().total
    yield Finding("machine", True, f"{cores} cores, {memory / 2**30:.0f} GiB memory")
    yield Finding("nats-server", True, str(find_binary()))
    for name, able, says, remedy in capabilities():
        yield Finding(name, able, says, remedy)
    where = session.directory
    while not where.exists():
        where = where.parent
    free = shutil.disk_usage(where).free
    yield Finding(
        "disk",
        free > LOW_DISK_BYTES,
        f"{free / 2**30:.0f} GiB free for {session.directory}",
        "" if free > LOW_DISK_BYTES else "free some space, or choose another --store or --state",
    )
    record = session.up()
    says = f"running as process {record.pid}" if record else "not running (`orchard up` starts it)"
    yield Finding("pipeline", True, says)

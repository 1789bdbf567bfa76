"""`doctor`: checks this machine."""

import asyncio
from collections.abc import Iterator

import typer

from orchard.actions.domain import answers
from orchard.actions.session import Session
from orchard.cli.facts import AsJson, DoctorFacts, print_facts
from orchard.configuration.findings import Finding
from orchard.processes.machine import examine
from orchard.terminal.console import console
from orchard.terminal.findings import findings_table

COMMANDS = {"doctor": "Check what this machine can do, and say what to install."}


def register(app: typer.Typer) -> None:
    @app.command()
    def doctor(context: typer.Context, as_json: AsJson = False) -> None:
        """Check what this machine can do, and say what to install. Exit code 1 if something is missing.

        Model endpoints of the configuration are tried, as by `orchard try`, which costs a few tokens.
        """
        findings = list(_shown(context.obj))
        if as_json:
            print_facts(DoctorFacts(findings=findings))
        else:
            console.print(findings_table(findings))
        if not all(finding.good for finding in findings):
            raise typer.Exit(1)


def _shown(session: Session) -> Iterator[Finding]:
    """Findings about the machine, the domains' own, and the pipeline that runs."""
    yield from examine(session.config)
    for found in answers("checks"):
        yield Finding(*found)
    if session.config.endpoints:
        from orchard.actions.tried_endpoints import examine_endpoints  # a second that others need not wait

        yield from asyncio.run(examine_endpoints(session.config.endpoints))
    record = session.up()
    says = f"running as process {record.pid}" if record else "not running (`orchard up` starts it)"
    yield Finding("pipeline", True, says)

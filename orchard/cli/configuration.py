"""`config`: shows the configuration."""

import typer

from orchard.actions.session import Session
from orchard.cli.facts import AsJson, print_facts
from orchard.configuration.config_toml import as_toml

COMMANDS = {"config": "Show every configuration key with its value, as a TOML file with comments."}


def register(app: typer.Typer) -> None:
    @app.command()
    def config(context: typer.Context, as_json: AsJson = False) -> None:
        """Show every configuration key with its value, as a TOML file with comments."""
        session: Session = context.obj
        if as_json:
            print_facts(session.config)
        else:
            typer.echo(as_toml(session.config), nl=False)

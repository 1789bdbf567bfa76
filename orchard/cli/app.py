"""The typer application: every command, and the options that they share."""

import os
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from orchard.cli.listed import MARKUP, Commands
from orchard.terminal.errors import run_told

app = typer.Typer(
    name="orchard",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
    rich_markup_mode=MARKUP,
    cls=Commands,
    help="""Tasks into trajectories, trajectories into datasets, datasets into better policies.

The first run, on one machine, with no model and no key:

    orchard quickstart

The same by hand, in two terminals:

    orchard up                             # all processes, until Ctrl-C
    orchard tasks synthesize --limit 20    # tasks from releases on PyPI
    orchard tasks validate                 # prove them
    orchard submit first --model oracle --samples 3
    orchard watch first
    orchard sql "select * from pass_rates"
""",
)


def show_version(asked: bool) -> None:
    if asked:
        from importlib import metadata  # slow, and needed once in a while

        typer.echo(f"orchard {metadata.version('orchard-pipeline')}")
        raise typer.Exit


@app.callback()
def options(
    context: typer.Context,
    _version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Show the version.")
    ] = False,
    store_: Annotated[
        str | None,
        typer.Option("--store", help="Directory or s3:// URL of tables and blobs.", show_default=".orchard"),
    ] = None,
    state: Annotated[
        str | None,
        typer.Option(
            help="Directory of what belongs to this machine: server, sandboxes, logs.",
            show_default="the store, if it is a directory",
        ),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="TOML file with settings.", show_default="orchard.toml, if there")
    ] = None,
    nats: Annotated[str | None, typer.Option(help="External NATS server, nats://HOST:PORT.")] = None,
    sandbox: Annotated[str | None, typer.Option(help="External sandbox service, http://HOST:PORT.")] = None,
) -> None:
    from orchard.actions.session import Session
    from orchard.configuration import config as configuration  # whoever asks for help needs neither
    from orchard.workers import plugins

    if config is not None:
        _hand_down(context, config)
    flags = {"store": store_, "state": state, "nats.url": nats, "sandbox.url": sandbox}
    loaded = configuration.load(flags, file=config)
    plugins.configure(loaded.plugins, configuration.config_path(config).absolute().parent)
    if secrets := configuration.secrets(loaded, os.environ):
        from orchard.workers.masking import learn

        learn(secrets)
    context.obj = Session(loaded)


def _hand_down(context: typer.Context, file: Path) -> None:
    """Makes every process that the command starts read the same file."""
    from orchard.configuration.variables import FILE_VARIABLE

    before = os.environ.get(FILE_VARIABLE)
    os.environ[FILE_VARIABLE] = str(file.absolute())

    def back() -> None:
        os.environ.pop(FILE_VARIABLE)
        if before is not None:
            os.environ[FILE_VARIABLE] = before

    context.call_on_close(back)


def main() -> None:
    run_told(partial(app, standalone_mode=True))

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
            help="Directory of files that belong to this machine: server, sandboxes, logs.",
            show_default="the store, if it is a directory",
        ),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="TOML file with settings.", show_default="orchard.toml, if there")
    ] = None,
    nats: Annotated[str | None, typer.Option(help="External NATS server, nats://HOST:PORT.")] = None,
    sandbox: Annotated[str | None, typer.Option(help="External sandbox service, http://HOST:PORT.")] = None,
    quiet: Annotated[
        bool, typer.Option("--quiet", help="Print results and warnings alone: no notes, no progress.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Log what happens in detail, to stderr.")
    ] = False,
) -> None:
    from orchard.actions.session import Session
    from orchard.configuration import config as configuration  # whoever asks for help needs neither
    from orchard.configuration.variables import FILE_VARIABLE
    from orchard.workers import plugins

    if config is not None:
        _hand_down(context, FILE_VARIABLE, str(config.absolute()))
    _set_verbosity(context, quiet=quiet, verbose=verbose)
    flags = {"store": store_, "state": state, "nats.url": nats, "sandbox.url": sandbox}
    loaded = configuration.load(flags, file=config)
    plugins.configure(loaded.plugins, configuration.config_path(config).absolute().parent)
    if secrets := configuration.secrets(loaded, os.environ):
        from orchard.workers.masking import learn

        learn(secrets)
    context.obj = Session(loaded)


def _set_verbosity(context: typer.Context, *, quiet: bool, verbose: bool) -> None:
    from orchard.configuration.variables import LOG_VARIABLE
    from orchard.terminal.console import Verbosity

    if quiet and verbose:
        raise typer.BadParameter("--quiet and --verbose contradict each other: give one of them")
    Verbosity.quiet = quiet
    if quiet or verbose:
        _hand_down(context, LOG_VARIABLE, "quiet" if quiet else "verbose")
    if verbose:
        from orchard.terminal.logs import start_logging

        start_logging()


def _hand_down(context: typer.Context, variable: str, value: str) -> None:
    """Sets a variable for every process that the command starts."""
    before = os.environ.get(variable)
    os.environ[variable] = value

    def back() -> None:
        os.environ.pop(variable)
        if before is not None:
            os.environ[variable] = before

    context.call_on_close(back)


def main() -> None:
    run_told(partial(app, standalone_mode=True))

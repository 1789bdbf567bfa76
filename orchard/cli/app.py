"""The typer application: every command, and how errors are shown."""

import os
import re
import signal
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

import orchard
from orchard import config as configuration
from orchard.cli import (
    campaigns,
    cost,
    datasets,
    dead,
    demos,
    doctor,
    images,
    log,
    policy,
    processes,
    quickstart,
    reading,
    rl,
    sft,
    store,
    tasks,
    values,
)
from orchard.injector.errors import SandboxError
from orchard.pipelines.campaigns import CampaignError
from orchard.pipelines.datasets.errors import DatasetError
from orchard.pipelines.models.errors import ModelError
from orchard.pipelines.rl.coordinator import RunError
from orchard.pipelines.sft.settings import TrainingError
from orchard.pipelines.tasks.errors import TaskError
from orchard.pipelines.values.recorded import UnknownRollout
from orchard.schemas.identity import InvalidName
from orchard.schemas.quantities import InvalidQuantity
from orchard.session import Session
from orchard.storage.errors import StorageError
from orchard.streams.errors import StreamsError
from orchard.workers.failures import InfrastructureError
from orchard.workers.harnesses import UnknownHarness

USER_ERRORS = (
    configuration.ConfigError,
    CampaignError,
    DatasetError,
    TaskError,
    ModelError,
    RunError,
    TrainingError,
    InvalidName,
    InvalidQuantity,
    StorageError,
    StreamsError,
    SandboxError,
    UnknownHarness,
    UnknownRollout,
    InfrastructureError,
)
"""What a user can mend: shown as one sentence, exit code 1. Anything else is a defect and shows its trace."""

_EXTRA = re.compile(r"extra == ['\"]([^'\"]+)")

app = typer.Typer(
    name="orchard",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
    rich_markup_mode="markdown",
    help="""Tasks into trajectories, trajectories into datasets, datasets into better policies.

The first run, on one machine, with no model and no key:

    orchard quickstart

The same by hand, in two terminals:

    orchard up                                            # server, sandboxes, workers, writer
    orchard tasks synthesize --limit 20                   # real tasks from package releases
    orchard submit first --model oracle --samples 3
    orchard watch first
    orchard sql "select * from pass_rates"
""",
)


def show_version(asked: bool) -> None:
    """Print the version and end."""
    if asked:
        typer.echo(f"orchard {orchard.__version__}")
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
    """Options that every command shares."""
    flags = {"store": store_, "state": state, "nats.url": nats, "sandbox.url": sandbox}
    context.obj = Session(configuration.load(flags, file=config))


processes.register(app)
campaigns.register(app)
reading.register(app)
doctor.register(app)
cost.register(app)
sft.register(app)
policy.register(app)
quickstart.register(app)
demos.register(app)
app.add_typer(tasks.app, name="tasks")
app.add_typer(images.app, name="images")
app.add_typer(store.app, name="store")
app.add_typer(dead.app, name="dead")
app.add_typer(log.app, name="log")
app.add_typer(datasets.app, name="dataset")
app.add_typer(values.app, name="values")
app.add_typer(rl.app, name="rl")


def _leaves(group: ExceptionGroup[Exception]) -> Iterator[Exception]:
    """The errors in a group of tasks that failed, however deep."""
    for error in group.exceptions:
        if isinstance(error, ExceptionGroup):
            yield from _leaves(error)
        else:
            yield error


def tell(mistake: object) -> None:
    """Show a user's mistake on stderr; brackets in it are its own and no markup."""
    line = Text.assemble(("error:", "bold red"), f" {mistake}")
    Console(stderr=True).print(line, soft_wrap=True)


def _missing_package(error: ModuleNotFoundError) -> str | None:
    """The sentence for a package of an extra that is not installed; None for any other module."""
    package = (error.name or "").partition(".")[0]
    for requirement in metadata.requires("orchard-pipeline") or []:
        name, _, condition = requirement.partition(";")
        extra = _EXTRA.search(condition)
        if extra and package and re.match(rf"{re.escape(package)}\b", name):
            return (
                f"this command needs the package {package}: install it with "
                f"`pip install 'orchard-pipeline[{extra[1]}]'`"
            )
    return None


def main() -> None:
    """Run the command line; user errors become one sentence, Ctrl-C exit code 130."""
    os.umask(0o077)  # the store holds gold patches and trajectories: they are the owner's alone
    try:
        app(standalone_mode=True)
    except USER_ERRORS as error:
        tell(error)
        sys.exit(1)
    except ModuleNotFoundError as error:
        if (sentence := _missing_package(error)) is None:
            raise
        tell(sentence)
        sys.exit(1)
    except ExceptionGroup as group:
        mistakes, defects = group.split(USER_ERRORS)
        if mistakes is None or defects is not None:
            raise
        for mistake in _leaves(mistakes):
            tell(mistake)
        sys.exit(1)
    except BrokenPipeError:
        sys.exit(0)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)

"""The typer application: every command, and how errors are shown."""

import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

import orchard
from orchard.cli.listed import MARKUP, Commands

_MISTAKES = (
    ("orchard.configuration.config", "ConfigError"),
    ("orchard.injector.errors", "SandboxError"),
    ("orchard.pipelines.campaigns.commands", "CampaignError"),
    ("orchard.pipelines.datasets.errors", "DatasetError"),
    ("orchard.pipelines.evaluation.suite", "EvaluationError"),
    ("orchard.pipelines.tasks.left_out", "NotImported"),
    ("orchard.pipelines.models.errors", "ModelError"),
    ("orchard.pipelines.rl.coordinator", "RunError"),
    ("orchard.pipelines.rl.engines", "Refused"),
    ("orchard.pipelines.sft.settings", "TrainingError"),
    ("orchard.pipelines.tasks.errors", "TaskError"),
    ("orchard.pipelines.values.recorded", "UnknownRollout"),
    ("orchard.schemas.identity", "InvalidName"),
    ("orchard.schemas.plugins", "PluginError"),
    ("orchard.schemas.quantities", "InvalidQuantity"),
    ("orchard.storage.errors", "StorageError"),
    ("orchard.streams.errors", "StreamsError"),
    ("orchard.workers.failures", "InfrastructureError"),
    ("orchard.workers.harnesses", "UnknownHarness"),
)
"""What a user can mend: shown as one sentence, exit code 1. Anything else is a defect and shows its trace."""


def mistakes() -> tuple[type[Exception], ...]:
    """The classes of _MISTAKES that can have been raised: whose modules were imported."""
    loaded = [(sys.modules.get(module), name) for module, name in _MISTAKES]
    return tuple(getattr(module, name) for module, name in loaded if module is not None)


_EXTRA = re.compile(r"extra == ['\"]([^'\"]+)")

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
    from orchard.actions.session import Session
    from orchard.configuration import config as configuration  # whoever asks for help needs neither
    from orchard.workers import plugins

    if config is not None:
        _hand_down(context, config)
    flags = {"store": store_, "state": state, "nats.url": nats, "sandbox.url": sandbox}
    loaded = configuration.load(flags, file=config)
    plugins.configure(loaded.plugins, configuration.place(config).absolute().parent)
    if secrets := configuration.secrets(loaded, os.environ):
        from orchard.workers.masking import learn

        learn(secrets)
    context.obj = Session(loaded)


def _hand_down(context: typer.Context, file: Path) -> None:
    """Let every process that the command starts read the same file."""
    from orchard.configuration.variables import FILE_VARIABLE

    before = os.environ.get(FILE_VARIABLE)
    os.environ[FILE_VARIABLE] = str(file.absolute())

    def back() -> None:
        os.environ.pop(FILE_VARIABLE)
        if before is not None:
            os.environ[FILE_VARIABLE] = before

    context.call_on_close(back)


def _leaves(group: ExceptionGroup[Exception]) -> Iterator[Exception]:
    """The errors in a group of tasks that failed, however deep."""
    for error in group.exceptions:
        if isinstance(error, ExceptionGroup):
            yield from _leaves(error)
        else:
            yield error


def tell(*errors: object) -> None:
    """Show mistakes of a user on stderr; brackets in them are their own and no markup."""
    from rich.console import Console
    from rich.text import Text

    console = Console(stderr=True)
    for error in errors:
        console.print(Text.assemble(("error:", "bold red"), f" {error}"), soft_wrap=True)


def _missing_package(error: ModuleNotFoundError) -> str | None:
    """The sentence for a package of an extra that is not installed; None for any other module."""
    from importlib import metadata  # slow, and needed once in a while

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
    except ExceptionGroup as group:
        known, defects = group.split(mistakes())
        if known is None or defects is not None:
            raise
        tell(*_leaves(known))
        sys.exit(1)
    except BrokenPipeError:
        sys.exit(0)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    except Exception as error:
        missing = _missing_package(error) if isinstance(error, ModuleNotFoundError) else None
        if missing is None and not isinstance(error, mistakes()):
            raise
        tell(missing or error)
        sys.exit(getattr(error, "exit_code", 1))

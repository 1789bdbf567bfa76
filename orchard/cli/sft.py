"""`sft`: fine-tune a language model on a built dataset."""

import os
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from orchard.actions.domain import domains
from orchard.actions.session import Session
from orchard.actions.tracking import Tracking
from orchard.pipelines.domain import presets
from orchard.pipelines.models.errors import require_torch
from orchard.pipelines.sft.metrics import Fact, Sink
from orchard.pipelines.sft.published import EventSink
from orchard.pipelines.sft.settings import read_settings
from orchard.schemas.training import TrainingStarted, TrainingStep
from orchard.terminal.console import console

COMMANDS = {"sft": "Fine-tune a model on a dataset."}

_RECIPES = [name for each in domains() if (name := each.name) in presets(lambda known: known.sft_preset)]
_HELP = """
Fine-tune a model on a dataset. Run it again to resume from the newest checkpoint.

The smallest file:

    dataset = "datasets/first"
    out = "runs/first"
    model = "Qwen/Qwen3-4B"   # or: shape = "tiny-1m", tokenizer = "DIRECTORY"
    preset = "{usual}"            # the paper's recipe: {recipes}

The result is OUT/model; metrics are OUT/metrics.jsonl, OUT/loss.png and, where `orchard up` runs on
the store or --nats is given, in the log. On several GPUs, or several machines:

    torchrun --nproc-per-node 8 -m orchard sft CONFIG.toml
""".format(usual=_RECIPES[0], recipes=f"{', '.join(_RECIPES[:-1])} or {_RECIPES[-1]}")


def register(app: typer.Typer) -> None:
    @app.command(help=_HELP)
    def sft(
        context: typer.Context,
        config: Annotated[Path, typer.Argument(help="TOML file of the run.")],
    ) -> None:
        session: Session = context.obj
        settings = read_settings(config)
        require_torch("orchard sft")
        from orchard.pipelines.sft.trainer import train

        with ExitStack() as stack:
            tracking = stack.enter_context(Tracking(session.config.tracking, session.directory))

            def sinks() -> list[Sink]:
                known: list[Sink] = [stack.enter_context(Bar()), tracking]
                if session.config.nats.url or session.up():
                    known.append(stack.enter_context(EventSink(lambda: session.connection("trainer"))))
                return known

            model = train(settings, sinks=sinks, code_version=version("orchard-pipeline"))
        if os.environ.get("RANK", "0") == "0":
            console.print(f"[bold green]trained[/] {model}", highlight=False)


class Bar:
    """Draws a progress bar with the newest loss and speed."""

    def __init__(self) -> None:
        columns = ("{task.description}", "loss {task.fields[loss]}", "{task.fields[speed]}")
        text = [TextColumn(column) for column in columns]
        self._progress = Progress(
            text[0], BarColumn(), MofNCompleteColumn(), *text[1:], TimeRemainingColumn(), console=console
        )
        self._task = self._progress.add_task("training", start=False, loss="", speed="")

    def __enter__(self) -> "Bar":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def put(self, fact: Fact) -> None:
        match fact:
            case TrainingStarted():
                self._progress.update(
                    self._task, description=fact.run, total=fact.steps, completed=fact.resumed_step
                )
                self._progress.start_task(self._task)
            case TrainingStep():
                speed = f"{fact.tokens / fact.seconds:,.0f} tokens/s"
                self._progress.update(self._task, completed=fact.step, loss=f"{fact.loss:.4f}", speed=speed)
            case _:
                self._progress.refresh()

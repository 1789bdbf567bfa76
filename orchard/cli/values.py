"""`values ...`: values of unresolved trajectories, step by step, by annotators."""

import asyncio
import dataclasses
from typing import Annotated

import msgspec
import typer
import uvloop
from rich.markup import escape

from orchard.actions.abort_reasons import shortened
from orchard.actions.rubrics import write_rubrics
from orchard.actions.session import Session
from orchard.actions.values import annotate_campaign, annotating
from orchard.cli import measuring, value_models
from orchard.cli.facts import AsJson, print_facts
from orchard.configuration.config import ConfigError
from orchard.pipelines.values.curves import Curve, ShapeStatistics, shape_statistics
from orchard.pipelines.values.requests import QUEUE, Asking
from orchard.pipelines.values.rubric_writer import Teaching
from orchard.pipelines.values.rubrics import JUDGE_VERSION
from orchard.processes.signals import call_on_signals
from orchard.schemas.campaigns import ModelSpec
from orchard.storage.reader import open_tables
from orchard.streams.consumer import WorkerLifetime, share_of
from orchard.streams.topology import declare
from orchard.terminal.console import console, reporting
from orchard.terminal.tables import rows_table

COMMANDS = {"values": "Values of unresolved trajectories, step by step."}

app = typer.Typer(no_args_is_help=True)


class AnnotatorShapes(msgspec.Struct, frozen=True, kw_only=True):
    """One annotator's curves in `orchard values shapes --json`."""

    annotator: str
    shapes: ShapeStatistics
    clamped: int
    """Curves whose final value was set to the outcome."""
    failed: int
    """Trajectories without values."""


class ShapeListing(msgspec.Struct, frozen=True, kw_only=True):
    """Output of `orchard values shapes --json`."""

    annotators: list[AnnotatorShapes]


Slots = Annotated[int, typer.Option(help="Maximum concurrent trajectories.", min=1)]
MaxCost = Annotated[
    float | None,
    typer.Option(
        "--max-cost", help="USD after which nothing more is asked, over all that the layer has cost.", min=0.0
    ),
]


@app.command()
def annotate(
    context: typer.Context,
    campaign: Annotated[str, typer.Argument(help="Campaign whose unresolved trajectories are judged.")],
    model: Annotated[
        str | None, typer.Option(help="Model that judges.", show_default="each trajectory's own teacher")
    ] = None,
    endpoint: Annotated[str | None, typer.Option(help="Endpoint of the configuration.")] = None,
    annotator: Annotated[
        str | None, typer.Option(help="Name of the layer of values.", show_default="the model's name")
    ] = None,
    judge: Annotated[
        str,
        typer.Option(
            help="Version of the built-in judge, or name of a plug-in, which writes the prompts and reads "
            "the answers."
        ),
    ] = "1",
    slots: Slots = 8,
    characters: Annotated[int, typer.Option(help="Maximum characters of a prompt.", min=5000)] = 200_000,
    max_tokens: Annotated[int | None, typer.Option(help="Maximum tokens of an answer.")] = None,
    again: Annotated[bool, typer.Option("--again", help="Ask again about trajectories that failed.")] = False,
    rubric: Annotated[
        str | None,
        typer.Option(help="Score the turns of all graded trajectories by the rubrics of this teacher."),
    ] = None,
    max_cost: MaxCost = None,
) -> None:
    """Ask a model for the value of each step of every unresolved trajectory without values. Run it again
    to resume.

    With --rubric, --model scores the turns of every graded trajectory whose task has a rubric.

    Exit code 1 if no trajectory got values.

    For example:

        orchard values annotate first --model oracle
        orchard values annotate first
        orchard values annotate first --rubric teacher --model judge
    """
    session: Session = context.obj
    if rubric is not None and (model is None or judge != "1"):
        raise ConfigError("--rubric needs --model, the judge that scores, and has a --judge of its own")
    asking = Asking(
        model=model,
        endpoint=endpoint or ("oracle" if model == "oracle" else "default"),
        judge=judge if rubric is None else JUDGE_VERSION,
        annotator=annotator or (None if rubric is None else f"rubric:{model}"),
        rubric=rubric,
        max_cost_usd=max_cost,
        max_tokens=max_tokens,
        context_characters=characters,
        again=again,
    )
    with reporting("trajectories") as told:
        done = uvloop.run(annotate_campaign(session, campaign, asking, slots, told))
    if done.left_out:
        console.print(f"{done.left_out:,} not asked about: the layer has cost its --max-cost")
    if not done.verdicts and not done.faults:
        missing = "no unresolved trajectory is without values"
        if rubric is not None:
            missing = f"no graded trajectory of a task with a rubric of {rubric} is without scores"
        console.print(f"nothing to annotate in {campaign}: {missing}", soft_wrap=True)
        return
    counts = {"annotated": done.verdicts["value.annotated"], "failed": done.faults.total()}
    console.print(", ".join(f"{number:,} {what}" for what, number in counts.items()), highlight=False)
    if done.faults:
        ((reason, alike),) = done.faults.most_common(1)
        retry = f"`orchard values annotate {campaign} --again` asks again"
        console.print(
            f"{alike:,} failed: {escape(shortened(reason))}: {retry}", highlight=False, soft_wrap=True
        )
    if done.failed:
        raise typer.Exit(1)


@app.command()
def rubrics(
    context: typer.Context,
    model: Annotated[str, typer.Option(help="Teacher that writes the rubrics.")],
    campaign: Annotated[str | None, typer.Option(help="Tasks of this campaign.")] = None,
    source: Annotated[str | None, typer.Option(help="Tasks of this source.")] = None,
    endpoint: Annotated[str, typer.Option(help="Endpoint of the configuration.")] = "default",
    teacher: Annotated[
        str | None, typer.Option(help="Name of the layer of rubrics.", show_default="the model's name")
    ] = None,
    slots: Annotated[int, typer.Option(help="Maximum concurrent tasks.", min=1)] = 4,
    max_tokens: Annotated[int | None, typer.Option(help="Maximum tokens of an answer.")] = None,
    again: Annotated[bool, typer.Option("--again", help="Ask again about tasks that failed.")] = False,
    max_cost: MaxCost = None,
) -> None:
    """Have a teacher write a rubric for each task from its statement and known solution, once. Run it again
    to resume.

    Exit code 1 if no task has a rubric.

    For example:

        orchard values rubrics --campaign first --model teacher
    """
    if (campaign is None) == (source is None):
        raise ConfigError("name the tasks by one of --campaign and --source")
    spec = ModelSpec(name=model, endpoint=endpoint, max_tokens=max_tokens)
    teaching = Teaching(spec, teacher or model, again)
    with reporting("tasks") as told:
        done = uvloop.run(
            write_rubrics(
                context.obj,
                teaching,
                campaign=campaign,
                source=source,
                slots=slots,
                max_cost_usd=max_cost,
                told=told,
            )
        )
    counts = {
        "with a rubric": done.written,
        "failed": done.faults.total(),
        "without a known solution": done.without_solution,
        "not asked about, as the layer has cost its --max-cost": done.left_out,
    }
    console.print(", ".join(f"{number:,} {what}" for what, number in counts.items()), soft_wrap=True)
    if done.faults:
        ((reason, alike),) = done.faults.most_common(1)
        console.print(f"{alike:,} failed: {escape(shortened(reason))}", highlight=False, soft_wrap=True)
    if not done.written:
        raise typer.Exit(1)


@app.command()
def worker(
    context: typer.Context,
    slots: Slots = 8,
    idle_exit: Annotated[
        float,
        typer.Option("--idle-exit", help="End after this many seconds without work; 0: never.", min=0.0),
    ] = 0.0,
    max_age: Annotated[
        float,
        typer.Option(
            "--max-age",
            help="Stop claiming work after this many seconds, or after half of them at the earliest; end "
            "when done. 0: never.",
            min=0.0,
        ),
    ] = 0.0,
) -> None:
    """Run one annotator: claims trajectories until SIGTERM, then finishes what it has begun."""
    from orchard.terminal.logs import start_logging

    start_logging()
    uvloop.run(_worker(context.obj, slots, idle_exit, max_age))


async def _worker(session: Session, slots: int, idle_exit: float, max_age: float) -> None:
    lifetime = WorkerLifetime(idle=idle_exit, age=share_of(max_age))
    async with session.connection("annotator") as connection:
        await declare(connection, session.config.nats, [QUEUE])
        async with annotating(session, connection, slots, lifetime) as consumer:
            call_on_signals(asyncio.get_running_loop(), consumer.drain)
            await consumer.run()


@app.command()
def shapes(
    context: typer.Context,
    annotator: Annotated[str | None, typer.Option(help="Only this layer.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show the shapes of each annotator's curves; the paper's are 98.9 % inverted-U."""
    session: Session = context.obj
    with open_tables(session.config.store) as tables:
        found = tables.execute(
            "select annotator, base, key_steps, steps, flags from values where rubric_sha256 is null"
        ).fetchall()
        failed = dict(
            tables.execute(
                "select annotator, count(*) from values_all where kind = 'failed' group by 1"
            ).fetchall()
        )
    layers: dict[str, list[Curve]] = {}
    clamped: dict[str, int] = {}
    for name, base, keys, steps, flags in found:
        points = {key["step"]: key["p_resolve"] for key in keys}
        layers.setdefault(name, []).append(Curve(base, points, steps))
        clamped[name] = clamped.get(name, 0) + ("final_clamped" in flags)
    if annotator is not None and annotator not in layers:
        raise ConfigError(f"no layer is named {annotator!r}: there is {', '.join(sorted(layers)) or 'none'}")
    shown = [
        AnnotatorShapes(annotator=name, shapes=one, clamped=clamped[name], failed=failed.get(name, 0))
        for name, curves in sorted(layers.items())
        if annotator in (None, name) and (one := shape_statistics(curves)) is not None
    ]
    if as_json:
        print_facts(ShapeListing(annotators=shown))
        return
    if not shown:
        raise ConfigError("no trajectory has values yet: run `orchard values annotate CAMPAIGN`")
    fields = [field.name.replace("_", " ") for field in dataclasses.fields(ShapeStatistics)]
    rows = [(one.annotator, *dataclasses.astuple(one.shapes), one.clamped, one.failed) for one in shown]
    console.print(rows_table(["annotator", *fields, "clamped", "failed"], rows))


measuring.register(app)
value_models.register(app)

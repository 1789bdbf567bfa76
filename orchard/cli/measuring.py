"""`values measure` and `values report`: true values of steps, and the quality of an annotator."""

import asyncio
import re
import signal
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
import uvloop
from rich.markup import escape

from orchard.actions.measuring import MeasureRequest, measure_rollout
from orchard.actions.session import Session
from orchard.cli.facts import AsJson, print_facts
from orchard.configuration.config import ConfigError
from orchard.pipelines.values.calibration import FEW, Agreement, AnnotatorAndPolicy, agreement, compared, plot
from orchard.pipelines.values.calibration import CalibrationPoint as Calibrated
from orchard.pipelines.values.measure import Measurement
from orchard.storage.reader import open_tables
from orchard.terminal.console import console, reporting
from orchard.terminal.tables import rows_table

_WORST = 20
_AGREEMENT = [
    "annotator",
    "policy",
    "steps",
    "rollouts",
    "Brier",
    "by sampling",
    "bias",
    "Spearman",
    "in 95 %",
]
_POINTS = ["rollout", "step", "annotated", "measured", "95 %", "samples"]
_MEASURED = ["step", "V", "95 %", "resolved", "aborted", "replayed", "diverged", "seconds", ""]


def register(app: typer.Typer) -> None:
    app.command()(measure)
    app.command()(report)


def measure(
    context: typer.Context,
    rollout: Annotated[str, typer.Argument(help="Id of the rollout, or its first digits.")],
    at: Annotated[str, typer.Option(help="Steps, 3,7,12: after the result of each; -1 is before any.")],
    samples: Annotated[int, typer.Option(help="Continuations of each step.", min=1)] = 8,
    model: Annotated[
        str | None,
        typer.Option(help="Policy that continues from the step.", show_default="the rollout's own"),
    ] = None,
    endpoint: Annotated[str | None, typer.Option(help="Endpoint of the configuration.")] = None,
    slots: Annotated[int, typer.Option(help="Maximum concurrent continuations.", min=1)] = 4,
    allow_divergence: Annotated[
        bool, typer.Option("--allow-divergence", help="Measure even if the replay differs from the record.")
    ] = False,
) -> None:
    """Measure the value of a rollout's steps: replay it up to a step, let the policy continue, and grade the
    results.

    Run it again to resume; a higher --samples adds to those that exist. The continuations are
    rollouts of the campaign `measured`.

    For example:

        orchard values measure 3f2a --at 3,7,12 --samples 8
    """
    wanted = MeasureRequest(rollout, _steps(at), samples, model, endpoint, slots, allow_divergence)
    try:
        with reporting("continuations") as told:
            measured = uvloop.run(measure_rollout(context.obj, wanted, told))
    except asyncio.CancelledError:
        raise typer.Exit(128 + signal.SIGTERM) from None
    for one in (one for found in measured for one in found.divergences):
        console.print(f"step {one.step}: {escape(one.what)}", highlight=False)
    if measured:
        console.print(rows_table(_MEASURED, [_measured_row(found) for found in measured]))
    if len(measured) < len(wanted.steps):
        raise typer.Exit(1)


def _steps(text: str) -> list[int]:
    try:
        return sorted({int(word) for word in text.split(",")})
    except ValueError:
        raise ConfigError(f"--at {text} is not a list of steps: write it like 3,7,12") from None


def _measured_row(found: Measurement) -> tuple[Any, ...]:
    one = found.value
    return (
        one.step,
        f"{one.value:.2f}",
        f"{one.low:.2f} to {one.high:.2f}",
        f"{one.resolved} of {one.samples}",
        one.aborted,
        one.replayed,
        ", ".join(map(str, one.diverged)) or "-",
        f"{one.seconds:.1f}",
        "known" if found.known else "",
    )


class AnnotatorAgreement(msgspec.Struct, frozen=True, kw_only=True):
    """An annotator's values beside measured ones, in `orchard values report --json`."""

    annotator: str
    model: str
    """Policy that generated the continuations."""
    rollouts: int
    agreement: Agreement
    plot: str
    """Path of the calibration plot."""


class AgreementListing(msgspec.Struct, frozen=True, kw_only=True):
    """Output of `orchard values report --json`."""

    annotators: list[AnnotatorAgreement]


def report(
    context: typer.Context,
    annotator: Annotated[str | None, typer.Option(help="Only this layer.")] = None,
    out: Annotated[Path, typer.Option(help="Directory of the plots.", file_okay=False)] = Path(),
    as_json: AsJson = False,
) -> None:
    """Compare annotated with measured values of the same steps: errors, rank correlation, calibration plot.

    Scores by a rubric are compared in the same way: the share of the rubric that is met after the step. A
    judge whose order of steps is not that of the measured values trains the wrong thing.

    For example:

        orchard values report --annotator oracle --out plots
    """
    session: Session = context.obj
    with open_tables(session.config.store) as tables:
        pairs = compared(tables, annotator)
    if not pairs:
        whose = f" by {annotator!r}" if annotator else ""
        raise ConfigError(
            f"no step has both an annotated value{whose} and a measured one: run `orchard values "
            "annotate` and `orchard values measure` on the same rollouts"
        )
    out.mkdir(parents=True, exist_ok=True)
    plots = {pair: _plot(pair, points, out) for pair, points in pairs.items()}
    if as_json:
        found = [_agreement_facts(*item, plots[item[0]]) for item in pairs.items()]
        print_facts(AgreementListing(annotators=found))
        return
    console.print(rows_table(_AGREEMENT, [_agreement_row(*pair) for pair in pairs.items()]))
    for pair, points in pairs.items():
        if len(points) < FEW:
            console.print(
                f"{pair.annotator}, {pair.model}: {len(points)} steps are too few to judge by; measure at "
                f"least {FEW}, of several rollouts",
                highlight=False,
            )
        worst = sorted(points, key=lambda point: -abs(point.annotated - point.measured))[:_WORST]
        title = f"{pair.annotator}, {pair.model}: steps, largest differences first"
        console.print(rows_table(_POINTS, [_point_row(point) for point in worst], title))
        console.print(f"plot: {plots[pair]}", highlight=False, soft_wrap=True)


def _plot(pair: AnnotatorAndPolicy, points: list[Calibrated], out: Path) -> Path:
    name = re.sub(r"[^\w.-]+", "-", f"calibration-{pair.annotator}-{pair.model}")
    file = out / f"{name}.png"
    plot(points, f"{pair.annotator} against {pair.model}", file)
    return file


def _agreement_facts(pair: AnnotatorAndPolicy, points: list[Calibrated], file: Path) -> AnnotatorAgreement:
    return AnnotatorAgreement(
        annotator=pair.annotator,
        model=pair.model,
        rollouts=len({point.rollout_id for point in points}),
        agreement=agreement(points),
        plot=str(file),
    )


def _agreement_row(pair: AnnotatorAndPolicy, points: list[Calibrated]) -> tuple[Any, ...]:
    one = agreement(points)
    return (
        pair.annotator,
        pair.model,
        one.points,
        len({point.rollout_id for point in points}),
        f"{one.brier:.3f}",
        "-" if one.noise is None else f"{one.noise:.3f}",
        f"{one.bias:+.3f}",
        _correlation(one),
        f"{one.covered:.0%}",
    )


def _correlation(one: Agreement) -> str:
    if one.spearman is None:
        return "-"
    if one.spearman_interval is None:
        return f"{one.spearman:.2f}, too few rollouts for an interval"
    low, high = one.spearman_interval
    return f"{one.spearman:.2f} [{low:.2f}, {high:.2f}]"


def _point_row(point: Calibrated) -> tuple[Any, ...]:
    return (
        point.rollout_id[:12],
        point.step,
        f"{point.annotated:.2f}",
        f"{point.measured:.2f}",
        f"{point.low:.2f} to {point.high:.2f}",
        point.samples,
    )

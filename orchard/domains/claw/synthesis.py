"""`tasks synthesize claw`: runs the synthesis loop and prints its report."""

from typing import NamedTuple

from rich.table import Table

from orchard.actions.session import Session
from orchard.configuration.config import ConfigError
from orchard.domains.claw.synthesizing import SEEDED, SynthesisResult, synthesized
from orchard.pipelines.domains.claw.author import Author
from orchard.pipelines.domains.claw.loop import SynthesisGoal
from orchard.pipelines.domains.claw.report import Report, table
from orchard.schemas.campaigns import ModelSpec
from orchard.schemas.identity import check_name
from orchard.schemas.synthesis import SynthesisAction, SynthesisStep
from orchard.terminal.console import console, reporting


class Options(NamedTuple):
    run: str
    limit: int
    seed: int
    author: str
    solver: str
    endpoint: str
    rollouts: int
    slots: int


async def synthesize_claw(session: Session, options: Options) -> None:
    """Makes the tasks with a progress bar, and prints what was caught and what it cost."""
    try:
        check_name(options.run, "run")
    except ValueError as error:
        raise ConfigError(str(error)) from error
    spec, author = ModelSpec(name=options.author, endpoint=options.endpoint), None
    if not options.author:
        spec, author = SEEDED, Author()
        console.print("[yellow]the author is the seeded one: it is no model, and its tasks say so[/]")
    solver = ModelSpec(name=options.solver, endpoint=options.endpoint) if options.solver else spec
    wanted = SynthesisGoal(
        run=options.run,
        author=spec,
        solver=solver,
        tasks=options.limit,
        seed=options.seed,
        rollouts=options.rollouts,
        slots=options.slots,
    )
    made = await with_progress(session, wanted, author)
    console.print(
        f"[bold green]accepted[/] {len(made.tasks)} tasks, proven. Run them: orchard submit NAME "
        "--model MODEL --harness claw-react --source claw-synthesis"
    )


async def with_progress(session: Session, wanted: SynthesisGoal, author: Author | None) -> SynthesisResult:
    """Runs the loop with a progress bar, and prints at its end what was caught and what it cost."""
    accepted = 0
    with reporting() as bar:

        def told(step: SynthesisStep) -> None:
            nonlocal accepted
            accepted += step.step is SynthesisAction.ACCEPT
            bar.progress("accepted", accepted, wanted.tasks)

        made = await synthesized(session, wanted, author, told)
    _tell(made.report)
    return made


def _tell(report: Report) -> None:
    shown = Table("mistake", "caught by", "times", title="What was caught")
    for row in table(report):
        shown.add_row(row.mistake, row.check, str(row.times))
    console.print(shown)
    cost = "unknown: a model has no price" if report.cost_each is None else f"{report.cost_each:.4f} USD"
    console.print(
        f"{report.proposals} proposals, {len(report.mistaken)} with a seeded mistake, {len(report.rejected)} "
        f"rejected, {len(report.missed)} seeded mistakes accepted. An accepted task cost {cost}.",
        highlight=False,
    )

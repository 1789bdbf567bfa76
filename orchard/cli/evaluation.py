"""`eval ...`: runs models x harnesses x task sets as one campaign, and reports from the log."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.markup import escape

from orchard.actions.campaign_status import State
from orchard.actions.evaluation import begin_suite, choose_best
from orchard.actions.needs import check_network
from orchard.actions.session import Session
from orchard.actions.submission import unpriced
from orchard.actions.tasks import known_images
from orchard.cli.facts import AsJson, print_facts
from orchard.cli.listed import DefaultRun
from orchard.configuration.config import ConfigError
from orchard.pipelines.campaigns.scores import Score
from orchard.pipelines.evaluation.best_of import BestOf
from orchard.pipelines.evaluation.plan import Planned, SuitePlan, lacking, plan_suite
from orchard.pipelines.evaluation.report import write_predictions, write_report
from orchard.pipelines.evaluation.results import Cell, CellComparison, Results, read_results
from orchard.pipelines.evaluation.suite import EvaluationError, published, read_suite, suite_file
from orchard.pipelines.tasks.registry import needs_of
from orchard.storage.reader import open_tables
from orchard.storage.spending import dollars
from orchard.storage.views import VIEWS
from orchard.terminal.campaign_tables import watch_campaign
from orchard.terminal.console import console, reporting
from orchard.terminal.tables import rows_table, show_results
from orchard.workers.harnesses import get_harness

COMMANDS = {"eval": "Evaluation: models x harnesses x task sets: `orchard eval SUITE.toml`."}


class SuiteRun(DefaultRun):
    """The group, which the name of a published suite runs as a file does."""

    def parse_args(self, context: Any, args: list[str]) -> list[str]:
        """Inserts `run` before such a name."""
        if args and args[0] not in self.commands and not set(args).isdisjoint(published()):
            args = ["run", *args]
        return super().parse_args(context, args)


app = typer.Typer(cls=SuiteRun, no_args_is_help=True)


class CellFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One task set under one harness and model, in `orchard eval report --json`."""

    task_set: str
    harness: str
    model: str
    requested: int
    graded: int
    resolved: int
    aborted: int
    """Rollouts that failures of infrastructure ended; they count in no score."""
    blocked: int
    """Rollouts that their site kept out, by a captcha; they count in no score."""
    malformed: int
    open: int
    tasks: int
    """Tasks with a graded rollout."""
    pass_at: dict[int, Score]
    """pass@k by k, where a task has k graded rollouts."""
    pass_all: dict[int, Score]
    """pass^k by k."""
    turns: int
    tokens: int | None
    cost_usd: float | None
    seconds: float
    """Sum over the `timed` rollouts."""
    timed: int
    """Rollouts whose duration is known."""


class ComparisonFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Two cells, in `orchard eval report --json`."""

    cells: CellComparison
    p: float
    """Of a two-sided sign test."""
    differs: bool
    """Whether the interval of the difference leaves out 0, and p is below 0.05."""


class EvaluationFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Output of `orchard eval report --json`."""

    name: str
    k: tuple[int, ...]
    cells: list[CellFacts]
    comparisons: list[ComparisonFacts]
    best_of: list[BestOf] = []
    """Choices of one of several attempts, with --best-of."""


class ExperienceFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Means over earlier rollouts of a model, in `orchard eval run --plan --json`."""

    rollouts: int
    """Number of earlier rollouts."""
    turns: float
    tokens: float | None
    """None where no rollout's tokens are known."""
    seconds: float | None
    """None where no rollout's duration is known."""
    cost_usd: float | None
    """Mean of the `priced` rollouts; None where there are none."""
    counted: int
    """Rollouts whose tokens are known."""
    priced: int
    """Rollouts whose cost is known."""
    same_harness: bool
    """Whether they used the planned harness."""


class PlannedFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Rollouts of one task set under one harness and model, in `orchard eval run --plan --json`."""

    task_set: str
    harness: str
    model: str
    tasks: int
    rollouts: int
    like: ExperienceFacts | None
    """Means of earlier rollouts; None for a model that never ran here."""


class PlanFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Output of `orchard eval run --plan --json`."""

    name: str
    rollouts: int
    done: int
    """Rollouts that have an outcome already."""
    cells: list[PlannedFacts]
    images: dict[str, int]
    """Number of tasks by image."""
    most_usd: float | None
    """Upper limit of the cost of all rollouts; None without a limit, or where a price is missing."""
    expected_usd: float | None
    """None where the log has no rollout of a model, or no price of it."""
    max_cost_usd: float | None
    """Cost at which the suite is paused; None: never."""
    without_price: list[str]
    """Models without a price."""
    notes: list[str]
    """Sentences on what is not here of the benchmark and its images, on the tasks' network, or why the suite
    would be refused."""


Out = Annotated[
    Path | None,
    typer.Option(
        help="Directory for the report in Markdown, cells.csv, matrix.png and preds/.", show_default="none"
    ),
]


BestOfK = Annotated[
    int | None,
    typer.Option(
        "--best-of",
        help="Compare ways to choose one of so many attempts: at random, by majority, the best possible.",
        show_default="none",
        min=2,
    ),
]
Rerank = Annotated[
    Path | None,
    typer.Option(help="Directory of a value model that chooses, too.", show_default="none"),
]


@app.command()
def run(
    context: typer.Context,
    suite: Annotated[Path, typer.Argument(help="TOML file of the suite, or the name of a published one.")],
    plan: Annotated[
        bool, typer.Option("--plan", help="Only show rollouts, images and expected cost; nothing is run.")
    ] = False,
    out: Out = None,
    best_of: BestOfK = None,
    rerank: Rerank = None,
    retry_aborted: Annotated[
        bool, typer.Option("--retry-aborted", help="Try aborted rollouts again, when all have an outcome.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --plan: one JSON object.")] = False,
) -> None:
    """Run a suite to its end, and show its tables. Run it again to resume a stopped one.

    The smallest file, beside `orchard up` with an endpoint named `default`:

        name = "first-eval"
        harnesses = ["orchard-bash"]
        task_sets = [{ source = "pypi-releases" }]
        models = [{ name = "NAME" }]

    A suite that was paused at its `max_cost_usd` continues when the file sets a higher one. A stopped suite
    that is resumed tries its aborted rollouts again. One with all outcomes is only reported, also when it is
    paused, cancelled or archived; `--retry-aborted` tries its aborted rollouts again (an archived
    one needs `orchard log restore` first).

    Exit code 1 when rollouts were aborted or have no outcome at the end: no score counts them.
    """
    session: Session = context.obj
    if as_json and not plan:
        raise typer.BadParameter("--json goes with --plan; `orchard eval report NAME --json` has the results")
    planned = plan_suite(read_suite(suite_file(suite)), session.config.store)
    for harness in planned.suite.harnesses:
        get_harness(harness)  # an unknown one is told now, not by a worker
    if plan:
        without_price = unpriced(planned.spec, session.endpoints())
        notes = [*lacking(planned, known_images(session)), *_network_notes(session, planned)]
        if as_json:
            print_facts(plan_facts(planned, without_price, notes))
            return
        show_plan(planned, without_price)
        for note in notes:
            console.print(f"[yellow]note:[/] {escape(note)}", highlight=False, soft_wrap=True)
        return
    whole = asyncio.run(_run(session, planned, retry_aborted=retry_aborted))
    report(context, planned.suite.name, out, best_of, rerank)
    if not whole:
        raise typer.Exit(1)


@app.command()
def report(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="Name of the suite.")],
    out: Out = None,
    best_of: BestOfK = None,
    rerank: Rerank = None,
    as_json: AsJson = False,
) -> None:
    """Show the tables of an evaluation from the log alone, while it runs or years later.

    For example, the best of eight attempts by a model of `orchard values train`:

        orchard eval report NAME --best-of 8 --rerank DIRECTORY
    """
    session: Session = context.obj
    if rerank is not None and best_of is None:
        raise ConfigError("--rerank chooses among several attempts: say of how many with --best-of")
    views = VIEWS if best_of is not None else ["evaluation_tasks", "evaluation_runs"]
    with open_tables(session.config.store, views=views) as tables:
        results = read_results(tables, name)
        if best_of is not None:
            choices = choose_best(tables, session.blobs, name, best_of, rerank)
            results = msgspec.structs.replace(results, best_of=tuple(choices))
        if as_json:
            print_facts(evaluation_facts(results))
        else:
            show_results(results)
        if out is not None:
            files = write_report(results, out)
            files += write_predictions(tables, session.blobs, name, out)
            if not as_json:
                console.print(f"written: {', '.join(map(str, files))}", highlight=False, soft_wrap=True)


def evaluation_facts(results: Results) -> EvaluationFacts:
    cells = [_cell_facts(cell, results.k) for cell in results.cells]
    pairs = [ComparisonFacts(cells=each, p=each.p, differs=each.differs) for each in results.pairs()]
    return EvaluationFacts(
        name=results.campaign,
        k=results.k,
        cells=cells,
        comparisons=pairs,
        best_of=list(results.best_of),
    )


def _cell_facts(cell: Cell, k: Sequence[int]) -> CellFacts:
    counts = {name: getattr(cell, name) for name in CellFacts.__struct_fields__ if name not in _COMPUTED}
    return CellFacts(
        **counts,
        tasks=len(cell.tasks),
        pass_at={each: one for each in k if (one := cell.pass_at(each)) is not None},
        pass_all={each: one for each in k if (one := cell.pass_all(each)) is not None},
    )


_COMPUTED = ("tasks", "pass_at", "pass_all")


@app.command("published")
def published_suites(
    name: Annotated[str | None, typer.Argument(help="Suite to print.", show_default="list them all")] = None,
) -> None:
    """Write suites of published benchmarks with the paper's budgets: files to copy and to add a model to.

    For example:

        orchard eval published NAME > suite.toml
    """
    known = published()
    if name is None:
        typer.echo("\n".join(known))
    elif name in known:
        typer.echo(known[name].read_text(encoding="utf-8"), nl=False)
    else:
        raise EvaluationError(f"there is no suite {name!r} here: choose one of {', '.join(known)}")


async def _run(session: Session, plan: SuitePlan, *, retry_aborted: bool) -> bool:
    """Follows the suite to its end; returns whether the tables have every outcome."""
    with reporting() as told:
        await begin_suite(session, plan, told, retry_aborted=retry_aborted)
    view = await watch_campaign(session, plan.suite.name, every=1.0)
    async with session.connection("eval") as connection:
        await session.committed(connection)
    return view.state is State.FINISHED and not view.aborted


def show_plan(plan: SuitePlan, without_price: Sequence[str]) -> None:
    """Prints rollouts, images and the known cost. A model without a price never exhausts a budget in USD,
    so no maximum is shown for it."""
    columns = [
        "task set",
        "harness",
        "model",
        "tasks",
        "rollouts",
        "expected turns",
        "tokens",
        "USD",
        "known from",
    ]
    console.print(rows_table(columns, [_row(cell) for cell in plan.cells], title=plan.suite.name))
    images = [(image, tasks) for image, tasks in plan.images.items()]
    console.print(rows_table(["image", "tasks"], images, title=f"{len(images):,} images"))
    most = "without a limit" if plan.most_usd is None else f"at most {plan.most_usd:,.2f} USD"
    if without_price:
        most = f"not known, as the configuration here has no price of {', '.join(without_price)}"
    usd = plan.expected_usd
    expected = "not known: no price, or no rollout of a model yet" if usd is None else f"about {usd:,.2f} USD"
    if usd is not None and plan.partly_priced:
        expected += " by the rollouts with a known cost alone"
    cap = plan.suite.max_cost_usd
    capped = "" if cap is None else f", paused when {dollars(cap)} are spent"
    console.print(
        f"{plan.spec.size:,} rollouts, {plan.done:,} of them done; cost {most}, expected {expected}{capped}",
        soft_wrap=True,
    )


def _network_notes(session: Session, plan: SuitePlan) -> list[str]:
    """Notes on the tasks' network, or why the suite would be refused."""
    try:
        return check_network(
            needs_of(session.config.store, plan.spec.tasks), session.config.sandbox.task_network
        )
    except ConfigError as error:
        return [f"this suite is refused: {error}"]


def plan_facts(plan: SuitePlan, without_price: Sequence[str], notes: list[str]) -> PlanFacts:
    cells = [
        PlannedFacts(
            **{name: getattr(cell, name) for name in PlannedFacts.__struct_fields__ if name != "like"},
            like=cell.like and ExperienceFacts(**cell.like._asdict()),
        )
        for cell in plan.cells
    ]
    return PlanFacts(
        name=plan.suite.name,
        rollouts=plan.spec.size,
        done=plan.done,
        cells=cells,
        images=plan.images,
        most_usd=None if without_price else plan.most_usd,
        expected_usd=plan.expected_usd,
        max_cost_usd=plan.suite.max_cost_usd,
        without_price=list(without_price),
        notes=notes,
    )


def _row(cell: Planned) -> tuple[object, ...]:
    head = (cell.task_set, cell.harness, cell.model, cell.tasks, cell.rollouts)
    if (like := cell.like) is None:
        return (*head, None, None, None, "no rollout of this model")
    usd = "-" if like.cost_usd is None else like.cost_usd * cell.rollouts
    tokens = "-" if like.tokens is None else f"{like.tokens * cell.rollouts:,.0f}"
    known = f"{like.rollouts:,} rollouts" + ("" if like.same_harness else " under other harnesses")
    for number, what in ((like.counted, "tokens"), (like.priced, "cost")):
        if 0 < number < like.rollouts:
            known += f", {number:,} of them with known {what}"
    return (*head, like.turns, tokens, usd, known)

"""`rl ...`: reinforcement learning with balanced groups, their exports and predictions."""

import asyncio
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
import uvloop

from orchard.actions.session import Session
from orchard.actions.tracking import Tracking
from orchard.cli import rl_facts
from orchard.cli.listed import DefaultRun
from orchard.pipelines.models.errors import require_installed, require_torch
from orchard.pipelines.rl.barren import stop_barren
from orchard.pipelines.rl.coordinator import Coordinator
from orchard.pipelines.rl.curves import hack_rates
from orchard.pipelines.rl.loss_settings import Baseline
from orchard.pipelines.rl.plan import RunPlan
from orchard.pipelines.rl.policies import BEST, read_newest
from orchard.pipelines.rl.settings import RlSettings, read_settings
from orchard.schemas.events import payload
from orchard.schemas.groups import PolicyEvaluated
from orchard.schemas.subjects import type_subjects
from orchard.schemas.training import PolicyStep
from orchard.storage.reader import open_tables
from orchard.streams.replay import replay
from orchard.streams.tasks import end
from orchard.terminal.console import TerminalReporter, console, progress, reporting
from orchard.terminal.logs import start_logging

COMMANDS = {"rl": "Reinforcement learning with balanced groups: `orchard rl CONFIG.toml`."}

app = typer.Typer(cls=DefaultRun, no_args_is_help=True)

Config = Annotated[Path, typer.Argument(help="TOML file of the run.")]


@app.command()
def run(context: typer.Context, config: Config) -> None:
    """Train a policy in real environments. Run it again to resume.

    The smallest file, beside `orchard up` with an endpoint named `policy`:

        run = "first"
        model = "runs/sft/model"
        out = "runs/first"
        tasks = { ids = ["repair-train-*"] }

    Results are OUT/policies; metrics are policy.step events (`select * from policy_steps`) and
    OUT/curves.png.
    """
    session: Session = context.obj
    settings = read_settings(config)
    require_installed("orchard rl")
    uvloop.run(_run(session, config))
    console.print(f"[bold green]trained[/] {settings.out}", highlight=False)
    if settings.eval_every and (best := read_newest(Path(settings.out), BEST)):
        console.print(f"best on held-out tasks: version {best.version}, {best.path}", highlight=False)


async def _run(session: Session, config: Path) -> None:
    from orchard.processes.rl_run import RunProcesses, check_served, enter, server_address

    settings = read_settings(config)
    check_served(settings)
    server = server_address(session, settings)
    reporter = TerminalReporter(progress())
    plan, start = await enter(session, settings, reporter)
    told: set[int] = set()
    with Tracking(session.config.tracking, session.directory) as tracking:
        showing = asyncio.create_task(_show_steps(session, settings, start, told, tracking))
        stopping = asyncio.create_task(_stop_barren(session, plan, start, settings.patience))
        working = asyncio.create_task(RunProcesses(session, settings, config, server, reporter).run())
        try:
            await asyncio.wait({stopping, working}, return_when=asyncio.FIRST_COMPLETED)
            if stopping.done():
                stopping.result()
            await working
            await showing
        finally:
            for task in (working, stopping, showing):
                await end(task)
    from orchard.pipelines.rl.curves import plot_curves

    async with session.connection("rl") as connection:
        await session.committed(connection)
    with open_tables(session.config.store) as tables:
        plot_curves(tables, [settings.run], Path(settings.out) / "curves.png")
    _warn(session.config.store, settings, told)


async def _stop_barren(session: Session, plan: RunPlan, start: int, patience: int | None) -> None:
    def say(line: str) -> None:
        console.print(f"[yellow]{line}[/]", highlight=False)

    async with session.connection("rl") as connection:
        await stop_barren(connection, plan, start, patience, say)


async def _show_steps(
    session: Session, settings: RlSettings, start: int, told: set[int], tracking: Tracking
) -> None:
    """Prints a line for each step, old ones first, and for each policy version that cheats, and sends each
    to trackers."""
    kinds = ("policy.step", "policy.evaluated")
    subjects = [subject for kind in kinds for subject in type_subjects(settings.run, kind)]
    async with session.connection("rl") as connection:
        async for stored in replay(connection, start, subjects=subjects, follow=True):
            fact = payload(stored.event) if stored.event else None
            if isinstance(fact, PolicyEvaluated):
                console.print(f"version {fact.version} held out: {_score(fact)}", highlight=False)
                await asyncio.to_thread(tracking.put, fact)
            if isinstance(fact, PolicyStep):
                console.print(
                    f"step {fact.step}/{settings.steps}  pass rate {fact.pass_rate:.0%}  "
                    f"balanced {fact.balanced:.0%}  rollouts {fact.generated}  entropy {fact.entropy:.3f}  "
                    f"clipped {fact.clipped:.1%}  "
                    f"staleness {fact.staleness:.1f}  {fact.tokens / max(fact.seconds, 1e-9):,.0f} tokens/s  "
                    f"waited {fact.waited:.0f} s"
                    + ("" if fact.unprotected is None else f"  unprotected {fact.unprotected:.0%}")
                    + ("" if fact.teacher_kl is None else f"  KL to the teacher {fact.teacher_kl:.3f}"),
                    highlight=False,
                )
                await asyncio.to_thread(tracking.put, fact)
                await asyncio.to_thread(_warn, session.config.store, settings, told)
            last = fact.version if isinstance(fact, PolicyEvaluated) else 0
            if isinstance(fact, PolicyStep) and not settings.eval_every:
                last = fact.step
            if last >= settings.steps:
                return


def _score(fact: PolicyEvaluated) -> str:
    """A score with its interval, and the rollouts that are in none."""
    if fact.score is None or fact.low is None or fact.high is None:
        return f"no score, none of {fact.ungraded} rollouts has a verdict"
    left = f", {fact.ungraded} without a verdict" if fact.ungraded else ""
    return f"{fact.score:.1%} [{fact.low:.1%}, {fact.high:.1%}] of {fact.tasks} tasks{left}"


def _warn(store: str, settings: RlSettings, told: set[int]) -> None:
    """Names the policy versions, except those in `told`, that significantly exceed the limit of cheating."""
    if not settings.impossible:
        return
    with open_tables(store, views=["hack_rates"]) as tables:
        rates = hack_rates(tables, settings.run)
    for rate in rates:
        if rate.low > settings.hack_limit and rate.version not in told:
            told.add(rate.version)
            console.print(
                f"[bold red]{rate}: this is cheating.[/] Read some before more is trained: "
                "`orchard tasks hacks` has the rates of all.",
                highlight=False,
            )


@app.command()
def coordinator(
    context: typer.Context,
    config: Config,
    served: Annotated[
        bool,
        typer.Option("--served", help="Ask for rollouts when the engine serves the log's newest policy."),
    ] = False,
) -> None:
    """Run only the run's coordinator: requests rollouts and makes groups. `orchard rl CONFIG.toml` starts
    it."""
    start_logging()
    uvloop.run(_coordinator(context.obj, config, served))


async def _coordinator(session: Session, config: Path, served: bool) -> None:
    from orchard.pipelines.rl.engines import all_serve
    from orchard.processes.rl_run import enter, serving_engines

    settings = read_settings(config)
    plan, start = await enter(session, settings)
    wait = partial(all_serve, serving_engines(session, settings)) if served else None
    async with session.connection("coordinator") as connection:
        await Coordinator(connection, plan, wait, blobs=session.blobs).run(start)


@app.command()
def trainer(context: typer.Context, config: Config) -> None:
    """Run only the run's trainer: trains on groups and makes policies. `orchard rl CONFIG.toml` starts it."""
    require_torch("orchard rl trainer")
    start_logging()
    uvloop.run(_trainer(context.obj, config))


async def _trainer(session: Session, config: Path) -> None:
    from orchard.pipelines.rl.trainer import RlTrainer
    from orchard.pipelines.sft.processes import joined
    from orchard.processes.rl_run import enter, serving_engines, teacher_endpoint

    settings = read_settings(config)
    plan, start = await enter(session, settings)
    with joined(settings.threads) as processes:
        async with session.connection("trainer") as connection:
            trainer = RlTrainer(
                settings,
                plan,
                connection,
                session.blobs,
                processes,
                engines=serving_engines(session, settings),
                teacher=teacher_endpoint(session, settings),
            )
            await trainer.run(start)


@app.command()
def export(
    context: typer.Context,
    run: Annotated[str, typer.Argument(help="Name of the run.")],
    out: Annotated[Path, typer.Argument(help="JSON lines file to write.")],
    layout: Annotated[str, typer.Option(help="slime, prime-rl or verl.")] = "prime-rl",
    baseline: Annotated[
        Baseline | None,
        typer.Option(help="How rewards became advantages, where the run's plan is too old to say."),
    ] = None,
) -> None:
    """Write a run's groups, with sampled ids, log-probabilities and advantages, for another trainer.

    Groups that the run's own trainer dropped, or would drop, are skipped; the command tells how many and why.
    """
    require_torch("orchard rl export")
    from orchard.actions.rl import export_groups

    with reporting() as told:
        written, skipped = uvloop.run(export_groups(context.obj, run, out, layout, baseline, told))
    console.print(f"{written} records in {out}", highlight=False)
    for reason, drops in sorted(skipped.items()):
        first = f"{drops[0].group_id}: {drops[0].detail}" if drops[0].detail else drops[0].group_id
        console.print(f"{len(drops)} groups are skipped as {reason}, the first is {first}", highlight=False)


rl_facts.register(app)

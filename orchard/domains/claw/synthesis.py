"""`tasks synthesize claw`: runs the synthesis loop and prints its report."""

import os
import socket
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import NamedTuple

import msgspec
from rich.table import Table

from orchard.actions.session import Session
from orchard.configuration.config import ConfigError
from orchard.pipelines.domains.claw.author import MODEL, Author
from orchard.pipelines.domains.claw.loop import Run, SynthesisGoal
from orchard.pipelines.domains.claw.report import Report, table
from orchard.pipelines.domains.claw.steps import StepWorker, queue_of
from orchard.schemas.campaigns import ModelSpec
from orchard.schemas.identity import check_name
from orchard.schemas.llm_calls import ModelKind
from orchard.schemas.synthesis import SynthesisAction, SynthesisStep
from orchard.schemas.tasks import Task
from orchard.streams.claims import Claims
from orchard.streams.consumer import Consumer
from orchard.streams.publisher import Publisher
from orchard.streams.topology import declare
from orchard.terminal.console import console, reporting
from orchard.workers.attempts.deadletters import DeadLetters
from orchard.workers.attempts.dependencies import AttemptDependencies
from orchard.workers.llm.client import ModelClient
from orchard.workers.llm.endpoint_rests import RestTracker
from orchard.workers.llm.settings import EndpointSettings

SEEDED = ModelSpec(name=MODEL, endpoint=MODEL, kind=ModelKind.ORACLE)
"""Author that is no model; a run with an `Author` serves its endpoint."""


class SynthesisResult(msgspec.Struct, frozen=True):
    """Result of a run."""

    tasks: list[Task]
    """Accepted tasks in the order of their slots, in registry and tables."""
    report: Report


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


async def synthesized(
    session: Session,
    wanted: SynthesisGoal,
    author: Author | None = None,
    told: Callable[[SynthesisStep], None] = lambda _: None,
) -> SynthesisResult:
    """Starts or resumes a run, whose steps any worker does, this process too. With `author`, the endpoint of
    SEEDED is that one, served here."""
    async with AsyncExitStack() as stack:
        connection = await stack.enter_async_context(session.connection("synthesis"))
        queue = queue_of(wanted.run, wanted.author)
        await declare(connection, session.config.nats, [queue])
        endpoints = session.endpoints()
        if author is not None:
            await stack.enter_async_context(author)
            endpoints = {**endpoints, SEEDED.endpoint: EndpointSettings(base_url=author.url)}
        rests = await stack.enter_async_context(RestTracker(connection, "synthesis"))
        models = ModelClient(endpoints, rests)
        stack.push_async_callback(models.close)
        dependencies = AttemptDependencies(
            worker=f"{socket.gethostname()}-{os.getpid()}",
            publisher=Publisher(connection),
            blobs=session.blobs,
            sandboxes=await stack.enter_async_context(session.sandboxes()),
            sandbox_settings=session.config.sandbox,
            models=models,
            judge=session.config.judge,
        )
        claims = await stack.enter_async_context(Claims(connection, queue))
        handlers = {queue.kind: StepWorker(dependencies)}
        run = Run(connection, session.blobs, wanted, told)
        tasks = await run.make(
            Consumer(claims, DeadLetters(connection), handlers, slots=wanted.slots, shutdown_seconds=0.0)
        )
        await session.committed(connection)
    return SynthesisResult(tasks, run.report)

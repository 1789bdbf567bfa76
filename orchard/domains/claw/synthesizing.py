"""Runs the synthesis loop in this process, with a session's connection, blobs and tables."""

import os
import socket
from collections.abc import Callable
from contextlib import AsyncExitStack

import msgspec

from orchard.actions.session import Session
from orchard.pipelines.domains.claw.author import MODEL, Author
from orchard.pipelines.domains.claw.loop import Run, SynthesisGoal, queue_of
from orchard.pipelines.domains.claw.report import Report
from orchard.schemas.campaigns import ModelSpec
from orchard.schemas.llm_calls import ModelKind
from orchard.schemas.synthesis import SynthesisStep
from orchard.schemas.tasks import Task
from orchard.streams.claims import Claims
from orchard.streams.publisher import Publisher
from orchard.streams.topology import declare
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


async def synthesized(
    session: Session,
    wanted: SynthesisGoal,
    author: Author | None = None,
    told: Callable[[SynthesisStep], None] = lambda _: None,
) -> SynthesisResult:
    """Starts or resumes a run. With `author`, the endpoint of SEEDED is that one, served here."""
    async with AsyncExitStack() as stack:
        connection = await stack.enter_async_context(session.connection("synthesis"))
        queue = queue_of(wanted.run)
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
        run = Run(connection, dependencies, wanted, told)
        tasks = await run.make(await stack.enter_async_context(Claims(connection, queue)))
        await session.committed(connection)
    return SynthesisResult(tasks, run.report)

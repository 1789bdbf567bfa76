"""Annotates unresolved trajectories step by step until each has a verdict."""

import asyncio
import os
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

from orchard.actions.reporter import SILENT, Reporter
from orchard.actions.session import Session
from orchard.configuration.config import ConfigError
from orchard.pipelines.values.annotator import Annotator, Cases
from orchard.pipelines.values.requests import QUEUE, Asking, offer, open_requests
from orchard.schemas.events import Event
from orchard.storage.reader import open_tables
from orchard.streams.claims import Claims
from orchard.streams.connection import Connection
from orchard.streams.consumer import Consumer, WorkerLifetime
from orchard.streams.publisher import Publisher
from orchard.streams.topology import declare
from orchard.workers.attempts.deadletters import DeadLetters
from orchard.workers.llm.client import ModelClient
from orchard.workers.llm.endpoint_rests import RestTracker


async def annotate_campaign(
    session: Session, campaign: str, asking: Asking, slots: int, told: Reporter = SILENT
) -> dict[str, int]:
    """Offers open annotations and works on the queue until all have a verdict. Returns the number of each
    kind.

    Raises ConfigError for a campaign without an outcome.
    """
    async with AsyncExitStack() as stack:
        connection = await stack.enter_async_context(session.connection("values"))
        await declare(connection, session.config.nats, [QUEUE])
        await session.committed(connection)
        with open_tables(session.config.store) as tables:
            if (
                tables.execute("select 1 from rollouts where campaign = ? limit 1", [campaign]).fetchone()
                is None
            ):
                raise ConfigError(
                    f"no rollout of {campaign!r} has ended: `orchard status` lists the campaigns"
                )
            requests = open_requests(tables, campaign, asking)
        if not requests:
            return {}
        await offer(Publisher(connection), requests, f".again-{os.getpid()}" if asking.again else "")
        missing = {request.rollout_id for request in requests}
        verdicts: Counter[str] = Counter()

        def count(event: Event) -> None:
            verdicts[event.type] += 1
            missing.discard(event.rollout_id or "")
            told.progress(campaign, len(requests) - len(missing), len(requests))
            if not missing:
                consumer.drain()

        consumer = await stack.enter_async_context(
            annotating(session, connection, slots, WorkerLifetime(), count)
        )
        annotators = {one.annotator for one in requests}
        watching = asyncio.create_task(_watch(session, annotators, missing, consumer.drain))
        await consumer.run()
        watching.cancel()
        await session.committed(connection)
    return verdicts


@asynccontextmanager
async def annotating(
    session: Session,
    connection: Connection,
    slots: int,
    lifetime: WorkerLifetime,
    done: Callable[[Event], None] | None = None,
) -> AsyncIterator[Consumer]:
    """A consumer of annotation requests to be run; `done` receives each verdict."""
    async with (
        RestTracker(connection, "annotator") as rests,
        ModelClient(session.endpoints(), rests) as models,
        Claims(connection, QUEUE) as claims,
    ):
        cases = Cases(session.config.store)
        name = f"{socket.gethostname()}-{os.getpid()}"
        annotator = Annotator(Publisher(connection), models, cases, name=name, done=done)
        dead = DeadLetters(connection)
        try:
            yield Consumer(claims, dead, {QUEUE.kind: annotator}, slots=slots, lifetime=lifetime)
        finally:
            cases.close()


async def _watch(session: Session, annotators: set[str], missing: set[str], over: Callable[[], None]) -> None:
    """Removes what other consumers have done; sets `over` when nothing is left."""
    while missing:
        await asyncio.sleep(5.0)
        missing -= await asyncio.to_thread(_judged, session.config.store, annotators)
    over()


def _judged(store: str, annotators: set[str]) -> set[str]:
    query = "select rollout_id from values_all where list_contains($names, annotator)"
    with open_tables(store) as tables:
        rows = tables.execute(query, {"names": sorted(annotators)}).fetchall()
    return {row[0] for row in rows}

"""Values of unresolved trajectories, step by step: asked for until each trajectory has a verdict."""

import asyncio
import os
import socket
from contextlib import AsyncExitStack

from orchard.actions.reporter import SILENT, Reporter
from orchard.actions.session import Session
from orchard.configuration.config import ConfigError
from orchard.pipelines.values.annotator import Annotator, Cases
from orchard.pipelines.values.requests import QUEUE, Asking, offer, open_requests
from orchard.schemas.events import Event
from orchard.storage.reader import open_tables
from orchard.streams.claims import Claims
from orchard.streams.publisher import Publisher
from orchard.streams.topology import declare
from orchard.workers.llm.client import ModelClient
from orchard.workers.llm.rests import Rests


async def annotate_campaign(
    session: Session, campaign: str, asking: Asking, slots: int, told: Reporter = SILENT
) -> dict[str, int]:
    """Offer what is open, and work on the queue until all of it has its verdict: how many of each kind.

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
        publisher = Publisher(connection)
        await offer(publisher, requests, f".again-{os.getpid()}" if asking.again else "")
        missing = {request.rollout_id for request in requests}
        verdicts: dict[str, int] = {}
        stop = asyncio.Event()

        def count(event: Event) -> None:
            verdicts[event.type] = verdicts.get(event.type, 0) + 1
            missing.discard(event.rollout_id or "")
            told.progress(campaign, len(requests) - len(missing), len(requests))
            if not missing:
                stop.set()

        rests = await stack.enter_async_context(Rests(connection, "annotator"))
        models = ModelClient(session.endpoints(), rests)
        stack.push_async_callback(models.close)
        claims = await stack.enter_async_context(Claims(connection, QUEUE))
        cases = Cases(session.config.store)
        stack.callback(cases.close)
        watching = asyncio.create_task(_watch(session, {one.annotator for one in requests}, missing, stop))
        name = f"{socket.gethostname()}-{os.getpid()}"
        worker = Annotator(publisher, claims, models, cases, name=name, slots=slots, done=count)
        await worker.run(stop)
        watching.cancel()
        await session.committed(connection)
    return verdicts


async def _watch(session: Session, annotators: set[str], missing: set[str], stop: asyncio.Event) -> None:
    """Strike off what others on the queue have done, and stop when nothing is left to wait for."""
    while not stop.is_set():
        await asyncio.sleep(5.0)
        done = await asyncio.to_thread(_judged, session.config.store, annotators)
        missing -= done
        if not missing:
            stop.set()


def _judged(store: str, annotators: set[str]) -> set[str]:
    query = "select rollout_id from values_all where list_contains($names, annotator)"
    with open_tables(store) as tables:
        rows = tables.execute(query, {"names": sorted(annotators)}).fetchall()
    return {row[0] for row in rows}

"""Annotates unresolved trajectories step by step until each has a verdict."""

import asyncio
import os
import socket
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field

from orchard.actions.reporter import SILENT, Reporter
from orchard.actions.session import Session
from orchard.configuration.config import ConfigError
from orchard.pipelines.values.annotator import Annotator, Cases
from orchard.pipelines.values.requests import QUEUE, Asking, offer, open_requests
from orchard.schemas.events import Event, payload
from orchard.schemas.requests import InvalidRequest, read_annotation_request
from orchard.schemas.values import AnnotationFailed
from orchard.storage.reader import open_tables
from orchard.streams.claims import Claims
from orchard.streams.connection import Connection
from orchard.streams.consumer import Consumer, WorkerLifetime
from orchard.streams.deadletter_codec import DeadLetter
from orchard.streams.publisher import Publisher
from orchard.streams.topology import declare
from orchard.workers.attempts.deadletters import DeadLetters
from orchard.workers.llm.client import ModelClient
from orchard.workers.llm.endpoint_rests import RestTracker

LOOK_SECONDS = 5.0
"""Seconds between checks of what other consumers have done."""


@dataclass(frozen=True)
class AnnotationRound:
    """What became of the trajectories of a campaign."""

    verdicts: Counter[str] = field(default_factory=Counter)
    """Number of each type of event."""
    faults: Counter[str] = field(default_factory=Counter)
    """Number of each reason for which a trajectory has no values."""

    @property
    def failed(self) -> bool:
        """Whether no trajectory got values, although some were asked about."""
        return bool(self.faults) and not self.verdicts["value.annotated"]


async def annotate_campaign(
    session: Session, campaign: str, asking: Asking, slots: int, told: Reporter = SILENT
) -> AnnotationRound:
    """Offers open annotations and works on the queue until each has a verdict or is a dead letter.

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
            return AnnotationRound()
        letters = DeadLetters(connection)
        before = {letter.sequence for letter in await letters.list()}
        await offer(Publisher(connection), requests, f".again-{os.getpid()}" if asking.again else "")
        missing = {request.rollout_id for request in requests}
        done = AnnotationRound()

        def count(event: Event) -> None:
            done.verdicts[event.type] += 1
            if isinstance(verdict := payload(event), AnnotationFailed):
                done.faults[f"{verdict.fault}: {verdict.detail}"] += 1
            missing.discard(event.rollout_id or "")
            told.progress(campaign, len(requests) - len(missing), len(requests))
            if not missing:
                consumer.drain()

        consumer = await stack.enter_async_context(
            annotating(session, connection, slots, WorkerLifetime(), count)
        )
        annotators = {one.annotator for one in requests}

        async def others() -> set[str]:
            judged = await asyncio.to_thread(_judged, session.config.store, annotators)
            buried = _buried([one for one in await letters.list() if one.sequence not in before])
            lost = buried.keys() & missing
            done.faults.update(buried[rollout] for rollout in lost)
            return judged | lost

        watching = asyncio.create_task(_watch(missing, others, consumer.drain))
        await consumer.run()
        watching.cancel()
        await session.committed(connection)
    return done


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


async def _watch(
    missing: set[str], others: Callable[[], Awaitable[set[str]]], over: Callable[[], None]
) -> None:
    """Removes what other consumers have done or buried; calls `over` when nothing is left."""
    while missing:
        await asyncio.sleep(LOOK_SECONDS)
        missing -= await others()
    over()


def _buried(letters: Iterable[DeadLetter]) -> dict[str, str]:
    """Reason of each annotation among dead letters, by its rollout."""
    found = dict[str, str]()
    for letter in letters:
        if letter.consumer == QUEUE.consumer:
            with suppress(InvalidRequest):
                found[read_annotation_request(letter.body).rollout_id] = letter.reason
    return found


def _judged(store: str, annotators: set[str]) -> set[str]:
    query = "select rollout_id from values_all where list_contains($names, annotator)"
    with open_tables(store) as tables:
        rows = tables.execute(query, {"names": sorted(annotators)}).fetchall()
    return {row[0] for row in rows}

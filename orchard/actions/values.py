"""Annotates trajectories step by step until each has a verdict."""

import asyncio
import logging
import os
import socket
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import duckdb

from orchard.actions.reporter import SILENT, Reporter
from orchard.actions.session import Session
from orchard.configuration.config import ConfigError
from orchard.pipelines.values.annotator import Annotator, Cases
from orchard.pipelines.values.requests import QUEUE, Asking, layer_cost, offer, open_requests
from orchard.schemas.campaigns import ModelSpec
from orchard.schemas.events import Event, payload
from orchard.schemas.llm_calls import ModelKind
from orchard.schemas.positions import Position
from orchard.schemas.requests import InvalidRequest, read_annotation_request
from orchard.schemas.values import AnnotationFacts, AnnotationFailed, AnnotationRequest
from orchard.storage.errors import StorageError
from orchard.storage.reader import open_tables, position
from orchard.streams.claims import Claims
from orchard.streams.connection import Connection
from orchard.streams.consumer import Consumer, WorkerLifetime
from orchard.streams.deadletter_codec import DeadLetter
from orchard.streams.errors import StreamsError
from orchard.streams.publisher import Publisher
from orchard.streams.tasks import end
from orchard.streams.topology import declare
from orchard.workers.attempts.deadletters import DeadLetters
from orchard.workers.llm.client import ModelClient
from orchard.workers.llm.endpoint_rests import RestTracker

log = logging.getLogger(__name__)

LOOK_SECONDS = 5.0
"""Seconds between checks of what other consumers have done."""


@dataclass
class AnnotationRound:
    """What became of the trajectories of a campaign."""

    verdicts: Counter[str] = field(default_factory=Counter)
    """Number of each type of event."""
    faults: Counter[str] = field(default_factory=Counter)
    """Number of each reason for which a trajectory has no values."""
    cost_usd: float = 0.0
    """Price of this round's answers, as far as known."""
    left_out: int = 0
    """Trajectories that were not asked about, since the layer has cost its cap."""

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
    async with session.connection("values") as connection:
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
            spent = layer_cost(tables, requests[0].annotator) if requests else 0.0
        if asking.max_cost_usd is not None:
            check_priced(session, [one.model for one in requests])
        done = AnnotationRound()
        size = slots if asking.max_cost_usd is not None else max(len(requests), 1)
        for start in range(0, len(requests), size):
            batch = requests[start : start + size]
            if asking.max_cost_usd is not None and spent + done.cost_usd >= asking.max_cost_usd:
                done.left_out += len(batch)
                continue
            await _annotate(session, connection, batch, slots, done, told, len(requests))
        await session.committed(connection)
    return done


def check_priced(session: Session, models: Iterable[ModelSpec]) -> None:
    """Raises ConfigError for a model without a price: a cap in USD would never hold."""
    endpoints = session.endpoints()
    for model in models:
        known = endpoints[model.endpoint].prices if model.endpoint in endpoints else {}
        if model.kind is not ModelKind.ORACLE and model.endpoint != "oracle" and model.name not in known:
            raise ConfigError(
                f"the model {model.name} has no price at endpoint {model.endpoint!r}, so --max-cost would "
                f"never stop it: set endpoints.{model.endpoint}.prices, or leave --max-cost out"
            )


async def _annotate(
    session: Session,
    connection: Connection,
    requests: Sequence[AnnotationRequest],
    slots: int,
    done: AnnotationRound,
    told: Reporter,
    total: int,
) -> None:
    """Offers requests and works on the queue until each has a verdict or is a dead letter."""
    letters = DeadLetters(connection)
    before = {letter.sequence for letter in await letters.list()}
    again = any(one.again for one in requests)
    since = await asyncio.to_thread(position, session.config.store)
    await offer(Publisher(connection), requests, f".again-{os.getpid()}" if again else "")
    missing = {request.rollout_id for request in requests}
    ended = done.verdicts.total()

    def count(event: Event) -> None:
        done.verdicts[event.type] += 1
        verdict = payload(event)
        if isinstance(verdict, AnnotationFailed):
            done.faults[f"{verdict.fault}: {verdict.detail}"] += 1
        if isinstance(verdict, AnnotationFacts):
            done.cost_usd += verdict.cost_usd or 0.0
        missing.discard(event.rollout_id or "")
        told.progress(requests[0].campaign, ended + len(requests) - len(missing), total)
        if not missing:
            consumer.drain()

    annotators = {one.annotator for one in requests}

    async def others() -> set[str]:
        judged = await asyncio.to_thread(_judged, session.config.store, annotators, since)
        buried = _buried([one for one in await letters.list() if one.sequence not in before])
        lost = buried.keys() & missing
        done.faults.update(buried[rollout] for rollout in lost)
        return judged | lost

    async with (
        annotating(session, connection, slots, WorkerLifetime(), count) as consumer,
        asyncio.TaskGroup() as tasks,  # a watch that ends by a defect ends the command
    ):
        watching = tasks.create_task(_watch(missing, others, consumer.drain))
        await consumer.run()
        await end(watching)


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
    """Removes what other consumers have done or buried; calls `over` when nothing is left. A look that fails
    is logged and repeated."""
    while missing:
        await asyncio.sleep(LOOK_SECONDS)
        try:
            missing -= await others()
        except (StorageError, StreamsError, duckdb.Error) as error:
            log.warning(
                "what others have annotated is not known, the next look is in %g s: %s", LOOK_SECONDS, error
            )
    over()


def _buried(letters: Iterable[DeadLetter]) -> dict[str, str]:
    """Reason of each annotation among dead letters, by its rollout."""
    found = dict[str, str]()
    for letter in letters:
        if letter.consumer == QUEUE.consumer:
            with suppress(InvalidRequest):
                found[read_annotation_request(letter.body).rollout_id] = letter.reason
    return found


def _judged(store: str, annotators: set[str], since: Position) -> set[str]:
    """Rollouts that the layers judged after this position of the log: an older verdict may be asked again."""
    query = f"select rollout_id from values_all where list_contains($names, annotator) and not {since.sql()}"
    with open_tables(store) as tables:
        rows = tables.execute(query, {"names": sorted(annotators)}).fetchall()
    return {row[0] for row in rows}

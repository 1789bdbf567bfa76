"""Has a teacher write the rubrics of tasks."""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from orchard.actions.reporter import SILENT, Reporter
from orchard.actions.session import Session
from orchard.actions.values import check_priced
from orchard.configuration.config import ConfigError
from orchard.pipelines.tasks.registry import read_task_refs
from orchard.pipelines.values.rubric_writer import (
    RubricWriter,
    Teaching,
    campaign_tasks,
    spent_on,
    with_solution,
)
from orchard.schemas.campaigns import TaskRef
from orchard.schemas.events import payload
from orchard.schemas.values import RubricFacts, RubricFailed, RubricWritten
from orchard.storage.reader import open_tables
from orchard.streams.publisher import Publisher
from orchard.streams.topology import declare
from orchard.workers.failures import InfrastructureError
from orchard.workers.llm.client import ModelClient
from orchard.workers.llm.endpoint_rests import RestTracker


@dataclass
class RubricRound:
    """What became of the tasks of a round."""

    written: int = 0
    without_solution: int = 0
    left_out: int = 0
    """Tasks that were not asked about, since the layer has cost its cap."""
    cost_usd: float = 0.0
    """Price of this round's answers, as far as known."""
    faults: Counter[str] = field(default_factory=Counter)
    """Number of each reason for which a task has no rubric."""


async def write_rubrics(
    session: Session,
    teaching: Teaching,
    *,
    campaign: str | None = None,
    source: str | None = None,
    slots: int = 4,
    max_cost_usd: float | None = None,
    told: Reporter = SILENT,
) -> RubricRound:
    """Writes the rubric of each task of a campaign, or of a source, that the layer does not have. What a
    stopped round wrote is not asked for again.

    Raises ConfigError where there is no such task, and for a cap on a model without a price.
    """
    if max_cost_usd is not None:
        check_priced(session, [teaching.model])
    async with session.connection("rubrics") as connection:
        await declare(connection, session.config.nats, [])
        await session.committed(connection)
        with open_tables(session.config.store) as tables:
            refs = campaign_tasks(tables, campaign) if campaign is not None else []
            spent = spent_on(tables, teaching.teacher)
        if campaign is None:
            refs = read_task_refs(session.config.store, source=source, only_valid=False)
        if not refs:
            raise ConfigError(
                f"no task is of {campaign or source!r}: `orchard status` lists campaigns, `orchard tasks "
                "list` sources"
            )
        able = with_solution(session.blobs, refs)
        done = RubricRound(without_solution=len(refs) - len(able))
        async with (
            RestTracker(connection, "rubrics") as rests,
            ModelClient(session.endpoints(), rests) as models,
        ):
            writer = RubricWriter(Publisher(connection), models, session.blobs, teaching)
            await _write_all(writer, able, done, slots, _room(spent, done, max_cost_usd), told)
        await session.committed(connection)
    return done


def _room(spent: float, done: RubricRound, cap: float | None) -> Callable[[], bool]:
    return lambda: cap is None or spent + done.cost_usd < cap


async def _write_all(
    writer: RubricWriter,
    refs: list[TaskRef],
    done: RubricRound,
    slots: int,
    room: Callable[[], bool],
    told: Reporter,
) -> None:
    places = asyncio.Semaphore(slots)
    ended = 0

    async def write(ref: TaskRef) -> None:
        nonlocal ended
        async with places:
            known = await writer.known(ref)
            if known is None and not room():
                done.left_out += 1
                return
            try:
                data = payload(known or await writer.write(ref))
            except InfrastructureError as error:
                done.faults[str(error)] += 1
                return
            finally:
                ended += 1
                told.progress("rubrics", ended, len(refs))
            if known is None and isinstance(data, RubricFacts):
                done.cost_usd += data.cost_usd or 0.0
            done.written += isinstance(data, RubricWritten)
            if isinstance(data, RubricFailed):
                done.faults[f"{data.fault}: {data.detail}"] += 1

    async with asyncio.TaskGroup() as group:
        for ref in refs:
            group.create_task(write(ref))

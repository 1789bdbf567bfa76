"""A run whose policy never succeeds: it says so, stops after a bounded number of rollouts, and can go on."""

import asyncio

import pytest

from orchard.pipelines.rl.barren import Barren, NothingToLearn, barren, stop_barren
from orchard.pipelines.rl.coordinator import Coordinator, begin
from orchard.pipelines.rl.plan import RunPlan
from orchard.schemas.campaigns import RolloutRequest
from orchard.storage.blobs import BlobStore
from orchard.streams.connection import Connection
from orchard.streams.tasks import end
from tests.pipelines.rl.test_coordinator import (
    Judge,
    blobs,
    connection,
    fair,
    finished,
    plan,
    train,
    workers,
)

__all__ = ["blobs", "connection"]
PATIENCE = 60


def never(_: RolloutRequest, __: int) -> float:
    return -1.0


def lost(_: RolloutRequest, __: int) -> None:
    return None


async def stopped(connection: Connection, run: RunPlan, start: int, judge: Judge) -> tuple[str, list[str]]:
    """What the run stops with, and what it said before."""
    said: list[str] = []
    async with asyncio.timeout(60), workers(connection, judge):
        working = asyncio.create_task(Coordinator(connection, run).run(start))
        try:
            with pytest.raises(NothingToLearn) as stop:
                await stop_barren(connection, run, start, PATIENCE, said.append)
        finally:
            await end(working)
    return str(stop.value), said


@pytest.mark.long
async def test_a_policy_that_never_succeeds_stops_its_run_which_then_goes_on(
    connection: Connection, blobs: BlobStore
) -> None:
    run = plan(steps=1)
    start = await begin(connection, blobs, run)
    why, said = await stopped(connection, run, start, never)
    assert "'run' stops after" in why and "(0 succeeded)" in why and "patience" in why
    assert said and all(line.endswith(f"the run stops at {PATIENCE}") for line in said)
    first = barren(await finished(connection, run, start)).rollouts
    assert first >= PATIENCE

    # What was spent does not count again: a policy that still fails has as much once more.
    await stopped(connection, run, start, never)
    assert barren(await finished(connection, run, start)).rollouts >= first + PATIENCE

    async with asyncio.timeout(60), workers(connection, fair):
        await asyncio.gather(
            train(connection, run, start),
            Coordinator(connection, run).run(start),
            stop_barren(connection, run, start, 1000, said.append),
        )
    assert len((await finished(connection, run, start)).trained) == run.groups


async def test_rollouts_that_infrastructure_takes_are_no_reason_to_wait_for_ever(
    connection: Connection, blobs: BlobStore
) -> None:
    run = plan(steps=1)
    start = await begin(connection, blobs, run)
    why, _ = await stopped(connection, run, start, lost)
    assert "aborted)" in why


async def test_a_group_with_both_classes_begins_the_count_anew(
    connection: Connection, blobs: BlobStore
) -> None:
    run = plan(steps=2)
    start = await begin(connection, blobs, run)
    async with asyncio.timeout(60), workers(connection, fair):
        await asyncio.gather(train(connection, run, start), Coordinator(connection, run).run(start))
    progress = await finished(connection, run, start)
    newest = max(progress.groups[name].prompt for name in progress.trained)
    later = [number for number in progress.prompts if number > newest]
    spent = barren(progress)
    assert spent.rollouts <= run.slots * len(later)
    assert barren(progress, first=1 + max(progress.prompts)) == Barren()

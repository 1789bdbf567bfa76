"""A campaign during an upgrade: NATS, writer, steward, sandbox service and one worker are of the previous
version, then of this one, and a worker of the other version runs beside them all the time."""

import os
import random
from pathlib import Path

import pytest

from orchard.pipelines.campaigns.commands import Campaigns
from orchard.pipelines.tasks.registry import TaskRegistry
from orchard.streams.publisher import Publisher
from tests.chaos import checks
from tests.chaos.run import spec_of
from tests.chaos.world import World, pipeline, session_for, until
from tests.tiny_tasks import build_tiny_image, tiny_task

TASKS = 2
ROLLOUTS = 24
BEFORE = 8
"""Rollouts that have an outcome when the upgrade begins."""


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_nothing_is_lost_and_both_versions_work(tmp_path: Path, previous: dict[str, str]) -> None:
    store = tmp_path / "store"
    session = session_for(store)
    world = World(store, session, ROLLOUTS, random.Random(0))

    async with (
        pipeline(store, workers=1, slots=1, environment=os.environ | previous),
        world.guest("later", {}) as later,
    ):
        async with session.sandboxes() as client:
            await build_tiny_image(client, TASKS)
        async with session.connection("test", hold=True) as connection:
            registry = TaskRegistry(Publisher(connection), session.blobs)
            refs = await registry.register(tiny_task(number) for number in range(TASKS))
            await session.committed(connection)  # the oracle reads tasks from the tables
            async for _ in Campaigns(connection, session.blobs).submit(spec_of(refs, ROLLOUTS)):
                pass
        await world.follow()
        await until(lambda: world.outcomes.settled >= BEFORE, "the first outcomes")
        await world.unfollow()
        begun = world.outcomes.begun
        assert begun[later] and begun.total() > begun[later], "both versions began rollouts"

    async with pipeline(store, workers=1, slots=1):
        async with world.guest("earlier", previous) as earlier:
            await world.follow()
            await until(lambda: world.over, "all outcomes", timeout=600.0)
            await world.unfollow()
            ended = world.outcomes.ended
            assert ended[earlier] and ended.total() > ended[earlier], "both versions ended rollouts"
        async with session.sandboxes() as client:
            assert await checks.no_sandboxes_left(client) == []
        code, said = await world.orchard("store", "check")
        assert code == 0, said
        async with world.connected() as connection:
            await session.committed(connection)
    assert checks.tables_hold(store, ROLLOUTS) + checks.no_false_rewards(store) == []
    assert await checks.rebuilds_equal(session, store) == []

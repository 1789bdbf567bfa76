"""The previous version, which reads one event stream, beside a store of several."""

import asyncio
import os
import random
from pathlib import Path

import pytest

from orchard.pipelines.campaigns.commands import Campaigns
from orchard.pipelines.tasks.registry import TaskRegistry
from orchard.streams.errors import TopologyError
from orchard.streams.health import reports
from orchard.streams.publisher import Publisher
from tests.chaos import checks
from tests.chaos.run import spec_of
from tests.chaos.world import World, pipeline, session_for, until
from tests.tiny_tasks import build_tiny_image, tiny_task

STREAMS = "ORCHARD_NATS__EVENT_STREAMS"
TASKS, ROLLOUTS = 2, 8


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_a_campaign_of_several_streams_waits_until_the_previous_version_is_gone(
    tmp_path: Path, previous: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "store"
    monkeypatch.setenv(STREAMS, "4")
    session = session_for(store)
    monkeypatch.delenv(STREAMS)  # the previous version would refuse the key
    world = World(store, session, ROLLOUTS, random.Random(0))

    async with pipeline(store, workers=1, slots=1, environment=os.environ | {STREAMS: "4"}):
        async with session.sandboxes() as client:
            await build_tiny_image(client, TASKS)
        async with session.connection("test", hold=True) as connection:
            registry = TaskRegistry(Publisher(connection), session.blobs)
            refs = await registry.register(tiny_task(number) for number in range(TASKS))
            await session.committed(connection)
            campaigns = Campaigns(connection, session.blobs)
            async with world.guest("previous", previous):
                while "previous" not in [heard.report.name for heard in await reports(connection)]:
                    await asyncio.sleep(0.1)
                with pytest.raises(TopologyError, match="previous of an earlier version would not"):
                    await anext(campaigns.submit(spec_of(refs, ROLLOUTS)))
            async for _ in campaigns.submit(spec_of(refs, ROLLOUTS)):
                pass
        await world.follow()
        await until(lambda: world.over, "all outcomes", timeout=600.0)
        await world.unfollow()
        async with world.connected() as connection:
            await session.committed(connection)
    assert checks.tables_hold(store, ROLLOUTS) == []

"""Ctrl-C hands back what runs, and the next `orchard up` goes on with it."""

import asyncio
from pathlib import Path

import pytest

from orchard.pipelines.campaigns.commands import Campaigns
from orchard.pipelines.tasks.registry import TaskRegistry
from orchard.storage.reader import open_tables
from orchard.streams.publisher import Publisher
from orchard.streams.replay import replay
from tests.chaos.checks import no_processes
from tests.chaos.run import spec_of
from tests.chaos.world import pipeline, session_for
from tests.tiny_tasks import build_tiny_image, tiny_task


@pytest.mark.slow
async def test_ctrl_c_hands_back_what_runs_and_the_next_start_finishes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "store"
    monkeypatch.setenv("ORCHARD_UP__SHUTDOWN_SECONDS", "0.01")
    session = session_for(store)
    async with pipeline(store, workers=1, slots=2):
        async with session.sandboxes() as client:
            await build_tiny_image(client, 2)
        async with session.connection("test") as connection:
            registry = TaskRegistry(Publisher(connection), session.blobs)
            refs = await registry.register([tiny_task(0), tiny_task(1)])
            await session.committed(connection)
            async for _ in Campaigns(connection, session.blobs).submit(spec_of(refs, 6)):
                pass
            async with asyncio.timeout(60):
                async for stored in replay(connection, follow=True):
                    if stored.event is not None and stored.event.type == "message.appended":
                        break  # a harness is at work: now stop
    assert no_processes(store) == []
    async with pipeline(store, workers=1, slots=2), session.connection("test") as connection:
        done: set[str | None] = set()
        async with asyncio.timeout(100):
            async for stored in replay(connection, subjects="orchard.events.done.>", follow=True):
                done.add(stored.event.rollout_id if stored.event else None)
                if len(done) == 6:
                    break
        await session.committed(connection)
    with open_tables(str(store)) as tables:
        endings = dict(tables.sql("select ending, count(*) from attempts group by 1").fetchall())
        statuses = {row[0] for row in tables.sql("select status from rollouts").fetchall()}
    assert endings.get("released", 0) >= 1
    assert "lost" not in endings
    assert statuses <= {"completed", "truncated"}

"""`orchard up` with its store on S3: tasks, a campaign, results, and nothing of the store on this machine."""

import asyncio
from pathlib import Path

import pytest

from orchard.actions.session import Session
from orchard.configuration.config import load
from orchard.pipelines.campaigns.commands import Campaigns
from orchard.pipelines.tasks.registry import TaskRegistry
from orchard.storage.reader import open_tables
from orchard.storage.upkeep.maintenance import check
from orchard.streams.publisher import Publisher
from tests.chaos.run import spec_of
from tests.chaos.world import Outcomes, pipeline, until
from tests.s3_server import CREDENTIALS, s3_service
from tests.tiny_tasks import build_tiny_image, tiny_task

TASKS = 2
STORE = "s3://orchard/here"


@pytest.mark.slow
async def test_a_campaign_from_tasks_to_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = tmp_path / "state"
    with s3_service("orchard") as url:
        settings = {"ORCHARD_STORE": STORE, "ORCHARD_STATE": str(state), "AWS_ENDPOINT_URL": url}
        for name, value in {**CREDENTIALS, **settings, "ORCHARD_ORACLE__MIX__RESOLVES": "1"}.items():
            monkeypatch.setenv(name, value)
        session, outcomes = Session(load()), Outcomes()
        async with pipeline(state, workers=1, slots=2, url=STORE):
            async with session.sandboxes() as client:
                await build_tiny_image(client, TASKS)
            async with session.connection("test") as connection:
                registry = TaskRegistry(Publisher(connection), session.blobs)
                refs = await registry.register(tiny_task(number) for number in range(TASKS))
                await session.committed(connection)  # the oracle reads tasks from the tables
                async for _ in Campaigns(connection, session.blobs).submit(spec_of(refs, TASKS)):
                    pass
            following = asyncio.create_task(outcomes.follow(session))
            await until(lambda: len(outcomes.finished) == TASKS, "both outcomes")
            following.cancel()
        assert await asyncio.to_thread(check, STORE) == []
        with open_tables(STORE) as tables:
            rows = tables.sql("select count(*), sum(resolved::int) from rollouts").fetchall()
    assert rows == [(TASKS, TASKS)]
    assert not (state / "tables").exists() and not (state / "blobs").exists()

"""`orchard watch`: a campaign is over when the tables, which may lag behind, have what was said of it."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from orchard.actions import campaigns
from orchard.actions.campaign_status import CampaignView
from orchard.actions.campaigns import all_campaigns
from orchard.actions.session import Session
from orchard.configuration.config import load
from orchard.pipelines.campaigns.commands import Campaigns
from orchard.schemas.queues import Queue
from orchard.storage.writing.writer import Writer
from orchard.streams import names
from orchard.streams.connection import Connection
from orchard.streams.topology import declare
from orchard.terminal.campaign_tables import watch_campaign
from tests.orchard.test_submission import plan

NAME = "c"


async def written(session: Session, connection: Connection) -> None:
    stop = asyncio.Event()
    stop.set()
    await Writer(session.config.store, connection).run(stop)


@pytest.mark.long
async def test_a_campaign_that_is_resumed_is_not_over_by_the_outcomes_of_before(
    nats_server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = Session(load({"store": str(tmp_path / "store"), "nats": {"url": nats_server.url}}))
    looked = asyncio.Queue[CampaignView]()
    read_status = campaigns.read_status

    async def noted(*args: Any, **more: Any) -> Any:
        found = await read_status(*args, **more)
        looked.put_nowait(found.campaigns[0])
        return found

    monkeypatch.setattr(campaigns, "read_status", noted)
    async with session.reading_connection("test") as connection, asyncio.timeout(60):
        await declare(connection, session.config.nats, [Queue()])
        commands = Campaigns(connection, session.blobs)
        for steps in (commands.submit(plan()), commands.cancel(NAME)):
            async for _ in steps:
                pass
        await written(session, connection)
        async for _ in commands.resume(NAME):
            pass

        watch = asyncio.create_task(watch_campaign(session, NAME, every=0.01))
        for _ in range(3):
            assert (await looked.get()).over  # as the tables have it
        assert not watch.done()
        await written(session, connection)
        while (await looked.get()).over:
            pass
        assert not watch.done()
        async for _ in commands.cancel(NAME):
            pass
        await written(session, connection)
        assert (await watch).over


async def test_a_campaign_knows_how_many_requests_of_others_are_before_its_own(
    nats_server: Any, tmp_path: Path
) -> None:
    """Of its own queue, and not those that are delivered."""
    session = Session(load({"store": str(tmp_path / "store"), "nats": {"url": nats_server.url}}))
    async with session.reading_connection("test") as connection, asyncio.timeout(60):
        await declare(connection, session.config.nats, [Queue(), Queue(priority="high")])
        commands = Campaigns(connection, session.blobs)
        for name, samples, priority in (
            ("first", 3, "normal"),
            ("urgent", 5, "high"),
            ("second", 2, "normal"),
            ("third", 4, "normal"),
        ):
            async for _ in commands.submit(plan(priority, name=name, samples=samples)):
                pass

        async def ahead() -> dict[str, int]:
            return {view.name: view.ahead for view in (await all_campaigns(session)).campaigns}

        assert await ahead() == {"first": 0, "urgent": 0, "second": 3, "third": 5}
        pulled = await connection.jetstream.pull_subscribe_bind(Queue().consumer, names.WORK)
        for delivered, second, third in ((1, 2, 4), (2, 0, 2)):
            await pulled.fetch(delivered)
            assert await ahead() == {"first": 0, "urgent": 0, "second": second, "third": third}

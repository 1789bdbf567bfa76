"""The roles' rights where events have several streams: over a real server with the chart's accounts."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from orchard.pipelines.campaigns.archiving import Archiving
from orchard.schemas.events import Event, SandboxDeleted, make_event
from orchard.schemas.identity import rollout_stream, spread
from orchard.storage.blobs import BlobStore
from orchard.storage.settings import ArchiveSettings
from orchard.storage.upkeep.restore import restore_stream
from orchard.storage.writing.writer import Writer
from orchard.streams.connection import Connection, connect
from orchard.streams.event_streams import log_end, usable_streams
from orchard.streams.publisher import Publisher
from orchard.streams.replay import replay
from orchard.streams.settings import NatsSettings
from orchard.streams.topology import declare
from tests.infra.conftest import Manifests, Server
from tests.infra.test_chart import rendered


@pytest.fixture(scope="session")
def built() -> dict[str, Manifests]:
    return {"cloud": Manifests(rendered("--set", "nats.eventStreams=3"))}


def event(number: int) -> Event:
    rollout = spread(f"{number:024x}", 3)
    return make_event(
        SandboxDeleted(sandbox_id="s"), id=f"e{number}", source="test", campaign="demo", rollout_id=rollout
    )


@pytest.mark.long
async def test_each_role_may_do_its_work_on_every_stream(
    server: Server, secrets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with AsyncExitStack() as stack:
        roles: dict[str, Connection] = {}
        for role in ("writer", "worker", "steward", "archiver", "operator"):
            monkeypatch.setenv(f"TEST_{role}", (secrets / "orchard" / "nats-users" / role).read_text())
            settings = NatsSettings(
                url=server.url,
                user=role,
                password_env=f"TEST_{role}",
                tls_ca=str(server.ca),
                patience=5.0,
                event_streams=3,
            )
            roles[role] = await stack.enter_async_context(connect(settings, name=role))
        await declare(roles["writer"], roles["writer"].settings, [])
        for role in ("worker", "operator"):
            await declare(roles[role], roles[role].settings, [])
            assert await usable_streams(roles[role]) == 3

        events = [event(number) for number in range(6)]
        assert {rollout_stream(one.rollout_id or "") for one in events} == {0, 1, 2}
        await Publisher(roles["worker"]).events(events[:3])
        await Publisher(roles["steward"]).events(events[3:])
        store, stop = str(tmp_path / "store"), asyncio.Event()
        stop.set()
        await Writer(store, roles["writer"]).run(stop)
        archiving = Archiving(roles["archiver"], store, BlobStore(store), ArchiveSettings())
        async for _ in archiving.archive("demo"):
            pass

        left = [one.event.type async for one in replay(roles["archiver"]) if one.event]
        assert left == ["campaign.archived"] * 3
        await Writer(store, roles["writer"]).run(stop)
        restored = await restore_stream(
            store, roles["operator"], roles["operator"].settings, tmp_path / "work"
        )
        assert restored.put_back == 0
        assert await log_end(roles["operator"]) == await log_end(roles["writer"])

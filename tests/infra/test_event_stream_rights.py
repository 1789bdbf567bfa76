"""The roles' rights where events have several streams: over a real server, with the accounts that the chart
and `make-files.sh` write."""

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator
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
from orchard.streams import reader
from orchard.streams.connection import Connection, connect
from orchard.streams.errors import StoreRefused
from orchard.streams.event_streams import log_end, usable_streams
from orchard.streams.publisher import Publisher
from orchard.streams.reading import bounds
from orchard.streams.replay import replay
from orchard.streams.settings import NatsSettings
from orchard.streams.topology import declare
from tests.infra.conftest import INFRA, Manifests, Server
from tests.infra.test_chart import rendered

ROLES = ("writer", "worker", "steward", "archiver", "operator", "reader", "submitter")
STREAMS = 4


def made_files(place: Path, streams: str | None) -> str:
    """The accounts that `make-files.sh` writes for the log host."""
    place.mkdir(exist_ok=True)
    (place / "store.env").write_text("ORCHARD_STORE=s3://bucket/store\n")
    (place / "orchard.toml").write_text("[up]\n")
    given = {} if streams is None else {"EVENT_STREAMS": streams}
    subprocess.run(
        ["sh", str(INFRA / "hosts" / "make-files.sh"), str(place), "10.0.0.1", "10.0.0.2"],
        check=True,
        env={"PATH": os.environ["PATH"], **given},
    )
    return (place / "hosts" / "10.0.0.1" / "accounts.conf").read_text()


def with_accounts(text: str) -> dict[str, Manifests]:
    config = {"kind": "ConfigMap", "metadata": {"name": "nats"}, "data": {"accounts.conf": text}}
    return {"cloud": Manifests([config])}


@pytest.fixture(scope="session", params=["chart", "hosts", "before"])
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Manifests]:
    match request.param:
        case "chart":
            return {"cloud": Manifests(rendered("--set", f"nats.eventStreams={STREAMS}"))}
        case "hosts":
            return with_accounts(made_files(tmp_path_factory.mktemp("hosts"), str(STREAMS)))
    return with_accounts((INFRA / "chart" / "files" / "accounts.conf").read_text())


renewed = pytest.mark.parametrize("built", ["chart", "hosts"], indirect=True)
before = pytest.mark.parametrize("built", ["before"], indirect=True)


def event(number: int) -> Event:
    rollout = spread(f"{number:024x}", STREAMS)
    return make_event(
        SandboxDeleted(sandbox_id="s"), id=f"e{number}", source="test", campaign="demo", rollout_id=rollout
    )


@pytest.fixture
async def roles(
    server: Server, secrets: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[dict[str, Connection]]:
    """All roles, on a server whose streams the writer has made."""
    async with AsyncExitStack() as stack:
        found: dict[str, Connection] = {}
        for role in ROLES:
            monkeypatch.setenv(f"TEST_{role}", (secrets / "orchard" / "nats-users" / role).read_text())
            settings = NatsSettings(
                url=server.url,
                user=role,
                password_env=f"TEST_{role}",
                tls_ca=str(server.ca),
                patience=5.0,
                event_streams=STREAMS,
            )
            found[role] = await stack.enter_async_context(connect(settings, name=role))
        await declare(found["writer"], found["writer"].settings, [])
        yield found


async def write(store: str, connection: Connection) -> None:
    stop = asyncio.Event()
    stop.set()
    await Writer(store, connection).run(stop)


@renewed
@pytest.mark.long
async def test_each_role_may_do_its_work_on_every_stream(
    roles: dict[str, Connection], tmp_path: Path
) -> None:
    for role in ("worker", "operator"):
        await declare(roles[role], roles[role].settings, [])
    for role in ("worker", "operator", "reader", "submitter"):
        assert await usable_streams(roles[role]) == STREAMS

    events = [event(number) for number in range(2 * STREAMS)]
    assert {rollout_stream(one.rollout_id or "") for one in events} == set(range(STREAMS))
    await Publisher(roles["worker"]).events(events[:STREAMS])
    await Publisher(roles["steward"]).events(events[STREAMS:])
    store = str(tmp_path / "store")
    await write(store, roles["writer"])
    archiving = Archiving(roles["archiver"], store, BlobStore(store), ArchiveSettings())
    async for _ in archiving.archive("demo"):
        pass

    left = [one.event.type async for one in replay(roles["archiver"]) if one.event]
    assert left == ["campaign.archived"] * STREAMS
    await write(store, roles["writer"])
    last = await log_end(roles["writer"])
    await roles["operator"].jetstream.delete_stream("ORCHARD_EVENTS_3")
    await restore_stream(store, roles["operator"], roles["operator"].settings, tmp_path / "work")
    assert await log_end(roles["operator"]) == last
    for stream in range(1, STREAMS):
        before = (await bounds(roles["reader"], f"ORCHARD_EVENTS_{stream}")).last
        await roles["submitter"].ask(f"orchard.events-{stream}.demo.00.rollout.requested", b"{}", timeout=5.0)
        assert (await bounds(roles["reader"], f"ORCHARD_EVENTS_{stream}")).last == before + 1


@renewed
@pytest.mark.long
async def test_no_role_may_do_more_on_a_further_stream(roles: dict[str, Connection]) -> None:
    stream, subject = "ORCHARD_EVENTS_3", "orchard.events-3"
    refused = {
        "worker": [f"$JS.API.STREAM.PURGE.{stream}", f"$JS.API.STREAM.DELETE.{stream}"],
        "writer": [f"{subject}.done.x", f"$JS.API.STREAM.PURGE.{stream}", f"$JS.API.STREAM.DELETE.{stream}"],
        "steward": [f"$JS.API.STREAM.PURGE.{stream}", f"$JS.API.CONSUMER.CREATE.{stream}.x"],
        "archiver": [f"$JS.API.STREAM.DELETE.{stream}", f"$JS.API.STREAM.UPDATE.{stream}"],
        "reader": [f"{subject}.demo.00.rollout.requested", f"$JS.API.CONSUMER.CREATE.{stream}.x"],
        "submitter": [f"{subject}.done.x", f"{subject}.demo.00.rollout.finished"],
    }
    for role, subjects in refused.items():
        for one in subjects:
            await roles[role].nats.publish(one, b"{}")
            async with asyncio.timeout(20):
                while f'publish to "{one.lower()}"' not in str(roles[role].last_error):
                    await asyncio.sleep(0.01)


@before
async def test_who_lacks_the_rights_of_a_new_stream_is_told_what_renews_them(
    roles: dict[str, Connection], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "_SILENCE", 0.5)
    renew = r"make-files\.sh.*nats\.eventStreams"
    with pytest.raises(
        StoreRefused, match=rf"NATS user worker may not publish on orchard\.events-1.*{renew}"
    ):
        await Publisher(roles["worker"]).event(event(1))
    await Publisher(roles["operator"]).events([event(number) for number in range(STREAMS)])
    with pytest.raises(
        StoreRefused, match=rf"NATS user writer may not read the stream ORCHARD_EVENTS_.*{renew}"
    ):
        await write(str(tmp_path / "store"), roles["writer"])


def test_rights_of_streams_that_were_made_stay(tmp_path: Path) -> None:
    """With fewer streams for new campaigns, when a host is added, and when the number is none."""
    place = tmp_path / "secrets"
    plain = (INFRA / "chart" / "files" / "accounts.conf").read_text()
    settings = place / "hosts" / "10.0.0.2" / "settings.env"
    found = []
    for given in (None, "4", "2", None):
        accounts = made_files(place, given)
        streams = settings.read_text().partition("ORCHARD_NATS__EVENT_STREAMS=")[2].partition("\n")[0]
        found.append(
            (accounts == plain, "ORCHARD_EVENTS_3" in accounts, "ORCHARD_EVENTS_4" in accounts, streams)
        )
    assert found == [(True, False, False, ""), *((False, True, False, one) for one in ("4", "2", "4"))]
    with pytest.raises(subprocess.CalledProcessError):
        made_files(place, "four")
    assert (place / "event-streams").read_text().strip() == "4"

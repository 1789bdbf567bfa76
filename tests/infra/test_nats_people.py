"""The NATS users of people: who reads can write nothing, who submits can only offer work."""

import asyncio
from pathlib import Path

import aiohttp
import msgspec
import pytest

from orchard.actions.campaigns import (
    all_campaigns,
    follow_campaign,
    pause_campaign,
    resume_campaign,
    submit_campaign,
)
from orchard.actions.session import Session
from orchard.configuration.config import Config
from orchard.pipelines.campaigns.commands import Campaigns
from orchard.schemas.access import Principal, UserRole
from orchard.schemas.campaigns import CampaignState
from orchard.storage.blobs import BlobStore
from orchard.streams import names
from orchard.streams.campaigns import CampaignBook
from orchard.streams.claims import Claims
from orchard.streams.connection import Connection, connect
from orchard.streams.errors import StoreRefused
from orchard.streams.health import reporting
from orchard.streams.publisher import Publisher
from orchard.streams.reading import bounds, consumers, moment
from orchard.streams.settings import NatsSettings
from orchard.streams.stream_check import StreamGuard
from orchard.streams.stream_state import ExpectedStream
from orchard.streams.topology import declare
from orchard.workers.attempts.deadletters import DeadLetters
from tests.entries import named
from tests.infra.cluster import SERVERS, members, url_of
from tests.infra.conftest import Manifests, Server
from tests.infra.test_nats_accounts import QUEUE, SPEC, connect_as, roles
from tests.infra.test_nats_cluster import all_ready, started

__all__ = ["connect_as", "roles"]

STREAMS = (names.WORK, names.LATER, names.EVENTS, names.DEAD, names.CAMPAIGNS_STREAM, names.ENDPOINTS_STREAM)


def session(server: Server, store: Path, user: str, role: UserRole) -> Session:
    """Of a person whose configuration has this user of NATS."""
    nats = {
        "url": server.url,
        "user": user,
        "password_env": f"TEST_{user}",
        "tls_ca": str(server.ca),
        "patience": 5.0,
    }
    config = msgspec.convert({"store": str(store), "nats": nats}, Config)
    return Session(config, Principal(user=user, role=role))


async def held(connection: Connection) -> dict[str, int]:
    """Sequence of the newest message of each stream."""
    return {stream: (await bounds(connection, stream)).last for stream in STREAMS}


@pytest.fixture(autouse=True)
def versions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchard.pipelines.campaigns.commands.planned_versions", lambda _: {})


async def test_a_reader_sees_campaigns_processes_queues_and_dead_letters(
    roles: dict[str, Connection], server: Server, tmp_path: Path
) -> None:
    async for _ in Campaigns(roles["operator"], BlobStore(str(tmp_path))).submit(SPEC):
        pass
    async with Claims(roles["worker"], QUEUE) as claims:
        claim = await claims.next(timeout=10)
        assert claim is not None
        await DeadLetters(roles["worker"]).reject(claim, "poison")
    reading = session(server, tmp_path, "reader", UserRole.READ)
    async with reporting(roles["worker"], "worker", "w", serves=QUEUE.consumer):
        async with asyncio.timeout(20):
            while not (seen := await all_campaigns(reading)).pipeline or not seen.pipeline.processes:
                await asyncio.sleep(0.05)
        [view] = seen.campaigns
        assert (view.name, view.size, seen.pipeline.processes) == ("demo", 3, {"worker": 1})
        async for status in follow_campaign(reading, "demo", 0.0):
            assert status.pipeline.dead_letters == 1
            break
    [letter] = await DeadLetters(roles["reader"]).list()
    assert "poison" in letter.reason


async def test_a_reader_writes_nothing_not_even_by_an_answer(roles: dict[str, Connection]) -> None:
    """The server publishes an answer where its request says, and asks no one's permission for that."""
    before = await held(roles["operator"])
    reader = roles["reader"].nats
    targets = [f"{QUEUE.subject}.x", "orchard.events.done.x", f"{names.CAMPAIGNS_PREFIX}demo"]
    for target in targets:
        await reader.publish(f"$JS.API.STREAM.INFO.{names.EVENTS}", b"", reply=target)
        await reader.publish(f"$JS.API.DIRECT.GET.{names.CAMPAIGNS_STREAM}", b'{"seq": 1}', reply=target)
    await moment(roles["reader"], names.EVENTS)  # after those, on the same connection
    assert await held(roles["operator"]) == before
    await roles["operator"].nats.publish(f"$JS.API.STREAM.INFO.{names.EVENTS}", b"", reply=targets[0])
    await moment(roles["operator"], names.EVENTS)
    assert await held(roles["operator"]) != before, "so it is in the account of the streams"


async def test_a_reader_who_submits_is_told_that_the_user_may_not(
    roles: dict[str, Connection], server: Server, tmp_path: Path
) -> None:
    await StreamGuard(roles["writer"], roles["writer"].settings, whole, settle=0.0).check()
    before = await held(roles["operator"])
    with pytest.raises(StoreRefused, match="the NATS user reader may not publish on"):
        await submit_campaign(session(server, tmp_path, "reader", UserRole.OPERATE), SPEC)
    assert await held(roles["operator"]) == before


async def whole() -> ExpectedStream:
    return ExpectedStream()


async def test_a_submitter_offers_work_that_workers_claim_pauses_it_and_resumes(
    roles: dict[str, Connection], server: Server, tmp_path: Path
) -> None:
    own = session(server, tmp_path, "submitter", UserRole.SUBMIT)
    await StreamGuard(roles["writer"], roles["writer"].settings, whole, settle=0.0).check()
    await submit_campaign(own, SPEC)
    async with Claims(roles["worker"], QUEUE) as claims:
        claim = await claims.next(timeout=10)
        assert claim is not None and claim.queue == QUEUE
    await pause_campaign(own, "demo")
    known = await CampaignBook(roles["operator"]).get("demo")
    assert known is not None and known[0].state is CampaignState.PAUSED
    assert known[0].submitter == "submitter"
    await resume_campaign(own, "demo", aborted=False)
    known = await CampaignBook(roles["operator"]).get("demo")
    assert known is not None and known[0].state is CampaignState.RUNNING


@pytest.mark.parametrize(
    "kind", ["campaign.tagged", "rollout.noted", "evaluation.planned", "command.given", "rollout.requested"]
)
async def test_a_submitter_publishes_events_that_say_what_was_asked_for(
    roles: dict[str, Connection], kind: str
) -> None:
    answer = await roles["submitter"].ask(f"orchard.events.demo.00.{kind}", b"{}")
    assert msgspec.json.decode(answer.data)["stream"] == names.EVENTS


async def test_a_submitter_reaches_nothing_else_by_an_answer(roles: dict[str, Connection]) -> None:
    before = await held(roles["operator"])
    submitter = roles["submitter"].nats
    for target in ("orchard.events.done.x", "orchard.dead.x", f"{names.ENDPOINTS_PREFIX}key"):
        await submitter.publish(f"$JS.API.STREAM.INFO.{names.EVENTS}", b"", reply=target)
        await submitter.publish(f"$JS.API.DIRECT.GET.{names.CAMPAIGNS_STREAM}", b'{"seq": 1}', reply=target)
    await moment(roles["submitter"], names.EVENTS)
    assert await held(roles["operator"]) == before


@pytest.mark.long
async def test_people_reach_the_streams_by_each_server_of_the_cluster(
    built: dict[str, Manifests], secrets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever server leads a stream, an answer comes back into the account of who asked."""
    for user in ("operator", "reader", "submitter"):
        monkeypatch.setenv(f"TEST_{user}", (secrets / "orchard" / "nats-users" / user).read_text())

    def settings(user: str, url: str) -> NatsSettings:
        authority = str(secrets / "orchard" / "nats-ca" / "ca.crt")
        return NatsSettings(
            url=url, user=user, password_env=f"TEST_{user}", tls_ca=authority, replicas=SERVERS, patience=30.0
        )

    cluster = members(built["cloud"].one("ConfigMap", "nats")["data"], secrets, tmp_path)
    processes = [await started(member) for member in cluster]
    try:
        async with aiohttp.ClientSession() as http, asyncio.timeout(120):
            await all_ready(http, cluster)
            own = settings("operator", url_of(cluster))
            async with connect(own, name="operator") as operator:
                await declare(operator, own, [QUEUE])
            for number, member in enumerate(cluster):
                url = f"tls://localhost:{member.client}"
                async with connect(settings("submitter", url), name="submitter") as submitter:
                    await Publisher(submitter).offer(named(QUEUE, f"r{number}", b"{}"))
                async with connect(settings("reader", url), name="reader") as reader:
                    assert (await bounds(reader, names.WORK)).messages == number + 1
                    [queue] = await consumers(reader, names.WORK)
                    assert queue.name == QUEUE.consumer
    finally:
        for process in processes:
            process.kill()
            await process.wait()

"""The cluster's own configuration on three real servers: quorum, one lost, how KEDA finds the lag there."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from orchard.schemas.events import Event, RolloutReopened, make_event
from orchard.schemas.outcomes import AbortCause
from orchard.schemas.queues import Queue
from orchard.storage.writing.writer import Writer
from orchard.streams import names, reader
from orchard.streams.claims import Claim, Claims
from orchard.streams.connection import Connection, ConnectionLost, connect
from orchard.streams.errors import OutcomeRefused
from orchard.streams.publish import UNSETTLED
from orchard.streams.publisher import Publisher
from orchard.streams.reading import bounds, consumers, subject_count
from orchard.streams.replay import arrivals
from orchard.streams.settings import NatsSettings
from orchard.streams.topology import declare
from tests.entries import named
from tests.infra.cluster import SERVERS, Member, lag_of, members, url_of
from tests.infra.conftest import INFRA, Manifests
from tests.infra.scaling import ScalingError, Trigger

QUEUE = Queue()
EVENTS = 500
Running = dict[str, asyncio.subprocess.Process]


@pytest.fixture
def cluster(built: dict[str, Manifests], secrets: Path, tmp_path: Path) -> list[Member]:
    return members(built["cloud"].one("ConfigMap", "nats")["data"], secrets, tmp_path)


@pytest.fixture
async def processes(cluster: list[Member]) -> AsyncIterator[Running]:
    """Of the servers, by their names."""
    running: Running = {}
    try:
        for member in cluster:
            running[member.name] = await started(member)
        yield running
    finally:
        for process in running.values():
            if process.returncode is None:
                process.kill()
            await process.wait()


async def started(member: Member) -> asyncio.subprocess.Process:
    with (member.home / "log").open("ab") as log:
        return await asyncio.create_subprocess_exec(*member.command, env=member.environment, stderr=log)


@pytest.fixture
def operator(
    cluster: list[Member], secrets: Path, built: dict[str, Manifests], monkeypatch: pytest.MonkeyPatch
) -> NatsSettings:
    """Of a client with all rights."""
    monkeypatch.setenv("OPERATOR_PASSWORD", (secrets / "orchard/nats-users/operator").read_text())
    return NatsSettings(
        url=url_of(cluster),
        user="operator",
        password_env="OPERATOR_PASSWORD",
        tls_ca=str(secrets / "orchard" / "nats-ca" / "ca.crt"),
        replicas=int(built["cloud"].one("ConfigMap", "settings")["data"]["ORCHARD_NATS__REPLICAS"]),
    )


async def all_ready(http: aiohttp.ClientSession, cluster: list[Member]) -> None:
    """Until each server's readiness probe is content."""
    async with asyncio.timeout(60):
        while not all([await member.healthy(http) for member in cluster]):
            await asyncio.sleep(0.05)


async def monitored(http: aiohttp.ClientSession, member: Member, path: str) -> Any:
    async with http.get(f"http://{member.endpoint}/{path}") as reply:
        return msgspec.json.decode(await reply.read())


async def seen_by_keda(http: aiohttp.ClientSession, cluster: list[Member], trigger: Trigger) -> int:
    """The lag, once a leader says one."""
    while True:
        try:
            return await lag_of(http, cluster, trigger)
        except ScalingError:
            await asyncio.sleep(0.05)


@pytest.mark.long
async def test_the_cluster_works_with_one_server_lost_and_keda_finds_the_leader(
    cluster: list[Member],
    processes: Running,
    operator: NatsSettings,
    built: dict[str, Manifests],
) -> None:
    metadata = built["cloud"].one("ScaledJob", QUEUE.consumer)["spec"]["triggers"][0]["metadata"]
    trigger = Trigger.of_metadata(metadata)
    async with aiohttp.ClientSession() as http:
        await all_ready(http, cluster)

        async with connect(operator, name="test") as connection:
            await declare(connection, operator, [QUEUE])
            publisher = Publisher(connection)
            await publisher.offer(named(QUEUE, "one", b"one"))
            async with asyncio.timeout(20):  # the leader may store it after the two that made the quorum
                while await seen_by_keda(http, cluster, trigger) != 1:
                    await asyncio.sleep(0.05)
            info = await connection.jetstream.consumer_info(names.WORK, QUEUE.consumer)
            assert info.cluster is not None
            (leader,) = [member for member in cluster if member.name == info.cluster.leader]
            seen = await monitored(http, leader, "jsz")
            assert seen["meta_cluster"]["cluster_size"] == SERVERS
            about = await monitored(http, leader, "varz")
            assert len(about["connect_urls"]) == SERVERS

            processes[leader.name].kill()
            await processes[leader.name].wait()

            await publisher.offer(named(QUEUE, "two", b"two"))
            async with asyncio.timeout(30):
                while await seen_by_keda(http, cluster, trigger) != 2:
                    await asyncio.sleep(0.05)
            async with Claims(connection, QUEUE) as claims:
                got = set()
                while len(got) < 2:
                    claim = await claims.next(timeout=30)
                    assert claim is not None, "a request was lost with the server"
                    got.add(claim.body)
                    await claim.complete()
            assert got == {b"one", b"two"}


@pytest.mark.long
async def test_a_follower_goes_on_whose_consumer_died_with_another_server(
    cluster: list[Member], processes: Running, operator: NatsSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own connection lives, nobody tells it, and it waits no longer than the writer for one batch."""
    monkeypatch.setattr(reader, "_HEARTBEAT", 0.5)
    monkeypatch.setattr(reader, "_SILENCE", 1.5)
    async with aiohttp.ClientSession() as http, asyncio.timeout(120):
        await all_ready(http, cluster)
        async with connect(operator, name="test") as connection:
            await declare(connection, operator, [QUEUE])
            while True:
                following = arrivals(connection, 1, until=None, idle=0.2)
                assert await anext(following) == []
                listed = await consumers(connection, names.EVENTS)  # a new one may not stand in it yet
                assert connection.nats.connected_url is not None
                leaders = [info.cluster.leader for info in listed if info.cluster is not None]
                (holder,) = [member for member in cluster if [member.name] == leaders] or [None]
                if holder is not None and holder.client != connection.nats.connected_url.port:
                    break
                await following.aclose()
            assert await anext(following) == []  # it has asked, and waits to be answered
            processes[holder.name].kill()
            await processes[holder.name].wait()
            await Publisher(connection).event(happened(1))
            while not (arrived := await anext(following)):
                pass
            assert [msgspec.json.decode(one.data)["id"] for one in arrived] == ["e1"]
            await following.aclose()


@pytest.mark.slow
async def test_who_asks_while_no_server_leads_waits_for_one(
    cluster: list[Member], processes: Running, operator: NatsSettings
) -> None:
    """Two of three are gone, and the third says that JetStream is unavailable for a time."""
    async with aiohttp.ClientSession() as http, asyncio.timeout(240):
        await all_ready(http, cluster)
        async with connect(operator, name="test") as connection:
            await declare(connection, operator, [QUEUE])
            for member in cluster[1:]:
                processes[member.name].kill()
                await processes[member.name].wait()
            while True:
                with suppress(ConnectionLost, TimeoutError):
                    answer = await connection.ask(f"$JS.API.STREAM.INFO.{names.EVENTS}", timeout=2.0)
                    if msgspec.json.decode(answer.data)["error"]["err_code"] == UNSETTLED:
                        break
                await asyncio.sleep(0.2)
            asked = asyncio.gather(
                declare(connection, operator, [QUEUE]),
                bounds(connection, names.EVENTS),
                consumers(connection, names.WORK),
                Publisher(connection).outcome("r"),
            )
            for member in cluster[1:]:
                processes[member.name] = await started(member)
            assert (await asked)[3] is None


def happened(number: int) -> Event:
    data = RolloutReopened(reason="test", superseded_sequence=0, cause=AbortCause.CANCELLED)
    return make_event(data, id=f"e{number}", source="t", campaign="c", rollout_id=f"r{number}")


async def exchanged(cluster: list[Member], processes: Running, lost: list[Member]) -> None:
    """The servers are gone, and start with empty volumes."""
    for member in lost:
        processes[member.name].kill()
        await processes[member.name].wait()
        shutil.rmtree(member.home / "data")
    for member in lost:
        processes[member.name] = await started(member)
    async with aiohttp.ClientSession() as http:
        await all_ready(http, cluster)


@pytest.mark.slow
async def test_a_server_whose_volume_is_lost_copies_from_the_others(
    cluster: list[Member], processes: Running, operator: NatsSettings
) -> None:
    async with aiohttp.ClientSession() as http, connect(operator, name="test") as connection:
        await all_ready(http, cluster)
        await declare(connection, operator, [QUEUE])
        await Publisher(connection).events([happened(number) for number in range(EVENTS)])
        await exchanged(cluster, processes, cluster[1:2])
        async with asyncio.timeout(60):
            while True:
                seen = await monitored(http, cluster[1], "jsz?acc=ORCHARD&streams=true")
                [account] = seen.get("account_details") or [{"stream_detail": []}]
                held = {one["name"]: one["state"]["messages"] for one in account["stream_detail"]}
                if held.get(names.EVENTS) == EVENTS:
                    break
                await asyncio.sleep(0.1)


@pytest.mark.slow
async def test_after_a_lost_quorum_the_stream_is_restored_from_the_tables(
    cluster: list[Member], processes: Running, operator: NatsSettings, tmp_path: Path
) -> None:
    """By the runbook's command, on three empty servers."""
    store = tmp_path / "store"
    async with aiohttp.ClientSession() as http, connect(operator, name="test") as connection:
        await all_ready(http, cluster)
        await declare(connection, operator, [QUEUE])
        await Publisher(connection).events([happened(number) for number in range(EVENTS)])
        stop = asyncio.Event()
        stop.set()
        await Writer(str(store), connection).run(stop)
    await exchanged(cluster, processes, cluster)

    given = {
        "ORCHARD_NATS__URL": operator.url,
        "ORCHARD_NATS__USER": operator.user,
        "ORCHARD_NATS__PASSWORD_ENV": operator.password_env,
        "ORCHARD_NATS__TLS_CA": operator.tls_ca,
        "ORCHARD_NATS__REPLICAS": str(operator.replicas),
    }
    restoring = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "orchard", "--store", str(store), "store", "restore-stream"),
        env={**os.environ, **{name: str(value) for name, value in given.items()}, "COLUMNS": "200"},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
    )
    said, _ = await restoring.communicate()
    assert f"restored {EVENTS} events from the tables; the stream ends at {EVENTS}" in said.decode()
    async with connect(operator, name="test") as connection:
        assert (await bounds(connection, names.EVENTS)).messages == EVENTS
        info = await connection.jetstream.stream_info(names.EVENTS)
        assert info.config.num_replicas == SERVERS


class Answers:
    """A campaign in small: requests are offered, claimed and answered until it is told to end."""

    def __init__(self, connection: Connection, claims: Claims) -> None:
        self._publisher, self._claims = Publisher(connection), claims
        self._over = False
        self.offered: set[str] = set()
        self.accepted: Counter[str] = Counter()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """At the end all that was offered is answered."""
        async with asyncio.TaskGroup() as tasks:
            for work in (self._offer, *4 * [self._answer]):
                tasks.create_task(work())
            yield
            self._over = True

    async def _offer(self) -> None:
        while not self._over:
            name = f"r{len(self.offered)}"
            await self._publisher.offer(named(QUEUE, name, name.encode()))
            self.offered.add(name)

    async def _answer(self) -> None:
        while not (self._over and set(self.accepted) == self.offered):
            claim = await self._claims.next(timeout=2.0)
            if claim is not None:
                await self._finish(claim)

    async def _finish(self, claim: Claim) -> None:
        rollout = claim.body.decode()
        ended = RolloutReopened(reason="test", superseded_sequence=0, cause=AbortCause.CANCELLED)
        event = make_event(
            ended, id=f"{rollout}-{claim.deliveries}", source="t", campaign="c", rollout_id=rollout
        )
        with suppress(OutcomeRefused):  # of a request that was delivered again
            await self._publisher.terminal(event, fence=0)
            self.accepted[rollout] += 1
        await claim.complete()


@pytest.mark.slow
async def test_servers_are_replaced_one_after_the_other_while_a_campaign_runs(
    cluster: list[Member], processes: Running, operator: NatsSettings
) -> None:
    """As a StatefulSet does it: told to end in its own time, started anew on its volume, the next one when it
    is ready again."""
    settings = msgspec.structs.replace(operator, ack_wait=10.0, heartbeat=2.0, connect_timeout=60.0)
    async with aiohttp.ClientSession() as http, asyncio.timeout(280):
        await all_ready(http, cluster)
        async with connect(settings, name="test") as connection:
            await declare(connection, settings, [QUEUE])
            async with (
                Claims(connection, QUEUE) as claims,
                (campaign := Answers(connection, claims)).running(),
            ):
                for member in cluster:
                    before = len(campaign.accepted)
                    processes[member.name].terminate()
                    await processes[member.name].wait()
                    processes[member.name] = await started(member)
                    await all_ready(http, cluster)
                    while len(campaign.accepted) < before + 20:
                        await asyncio.sleep(0.05)
            stored = await subject_count(connection, names.EVENTS)

    assert set(campaign.accepted) == campaign.offered and len(campaign.offered) >= 60
    assert set(campaign.accepted.values()) == {1}, "an outcome was accepted twice"
    assert stored >= len(campaign.offered)


@pytest.mark.long
async def test_servers_find_each_other_at_each_step_of_a_new_authority(
    built: dict[str, Manifests], secrets: Path, tmp_path: Path
) -> None:
    """One is started anew after the certificate, and one after the old authority has gone."""
    place = tmp_path / "exchanged"
    shutil.copytree(secrets, place)
    cluster = members(built["cloud"].one("ConfigMap", "nats")["data"], place, tmp_path / "servers")
    running = {member.name: await started(member) for member in cluster}

    async def made() -> None:
        script = ("sh", str(INFRA / "make-secrets.sh"), str(place))
        await asyncio.to_thread(subprocess.run, script, check=True)
        for member in cluster:
            log = member.home / "log"
            reloads = log.read_text().count("Reloaded server configuration")
            running[member.name].send_signal(signal.SIGHUP)
            async with asyncio.timeout(30):
                while log.read_text().count("Reloaded server configuration") == reloads:
                    await asyncio.sleep(0.05)

    async def anew(member: Member) -> None:
        running[member.name].kill()
        await running[member.name].wait()
        running[member.name] = await started(member)
        await all_ready(http, cluster)

    try:
        async with aiohttp.ClientSession() as http:
            await all_ready(http, cluster)
            (place / "ca" / "ca.crt").rename(place / "ca" / "old.crt")
            (place / "ca" / "ca.key").unlink()
            await made()
            (place / "orchard/nats-tls/tls.key").unlink()
            await made()
            await anew(cluster[0])
            (place / "ca" / "old.crt").unlink()
            await made()
            await anew(cluster[1])
    finally:
        for process in running.values():
            process.kill()
            await process.wait()

"""The cluster's own configuration on three real servers: quorum, one lost, how KEDA finds the lag there."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from orchard.streams import names
from orchard.streams.claims import Claims
from orchard.streams.connection import connect
from orchard.streams.publisher import Publisher
from orchard.streams.settings import NatsSettings, Queue
from orchard.streams.topology import declare
from tests.entries import named
from tests.infra.cluster import SERVERS, Member, leaders_answer, members, url_of
from tests.infra.conftest import Manifests
from tests.infra.scaling import ScalingError, Trigger, lag

QUEUE = Queue()
Running = dict[str, asyncio.subprocess.Process]


@pytest.fixture
def cluster(built: dict[str, Manifests], secrets: Path, tmp_path: Path) -> list[Member]:
    return members(built["cloud"].one("ConfigMap", "nats")["data"], secrets, tmp_path)


@pytest.fixture
async def processes(cluster: list[Member]) -> AsyncIterator[Running]:
    """Of the servers, by their names."""
    started = {}
    async with AsyncExitStack() as stack:
        for member in cluster:
            with (member.home / "log").open("wb") as log:
                started[member.name] = await asyncio.create_subprocess_exec(
                    *member.command, env=member.environment, stderr=log
                )
            stack.push_async_callback(stopped, started[member.name])
        yield started


async def stopped(process: asyncio.subprocess.Process) -> None:
    """Killed, unless it is gone already."""
    if process.returncode is None:
        process.kill()
    await process.wait()


async def monitored(http: aiohttp.ClientSession, member: Member, path: str) -> Any:
    async with http.get(f"http://127.0.0.1:{member.monitoring}/{path}") as reply:
        return msgspec.json.decode(await reply.read())


async def seen_by_keda(http: aiohttp.ClientSession, cluster: list[Member], trigger: Trigger) -> int:
    """The lag, once a leader says one."""
    while True:
        try:
            return lag(await leaders_answer(http, cluster, trigger), trigger)
        except ScalingError:
            await asyncio.sleep(0.05)


async def test_the_cluster_works_with_one_server_lost_and_keda_finds_the_leader(
    cluster: list[Member],
    processes: Running,
    secrets: Path,
    built: dict[str, Manifests],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPERATOR_PASSWORD", (secrets / "orchard/nats-users/operator").read_text())
    replicas = int(built["cloud"].one("ConfigMap", "settings")["data"]["ORCHARD_NATS__REPLICAS"])
    settings = NatsSettings(
        url=url_of(cluster),
        user="operator",
        password_env="OPERATOR_PASSWORD",
        tls_ca=str(secrets / "orchard" / "nats-ca" / "ca.crt"),
        replicas=replicas,
    )
    metadata = built["cloud"].one("ScaledJob", QUEUE.consumer)["spec"]["triggers"][0]["metadata"]
    trigger = Trigger.of_metadata(metadata)
    async with aiohttp.ClientSession() as http:
        async with asyncio.timeout(60):
            while not all([await member.healthy(http) for member in cluster]):
                await asyncio.sleep(0.05)

        async with connect(settings, name="test") as connection:
            await declare(connection, settings, [QUEUE])
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
            assert not about.get("connect_urls"), "KEDA must go by the names of the routes"
            assert len(about["cluster"]["urls"]) == SERVERS

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

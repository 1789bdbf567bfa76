"""What KEDA sees of the chart's NATS cluster, by the names of its Services: each server gone while each one
leads, all of them replaced, monitoring with TLS."""

import asyncio
import itertools
import signal
import ssl
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import aiohttp
import msgspec
import pytest

from orchard.schemas.queues import Queue
from orchard.streams import names
from orchard.streams.connection import Connection, ConnectionLost, connect
from orchard.streams.errors import NatsRefused
from orchard.streams.publisher import Publisher
from orchard.streams.settings import NatsSettings
from orchard.streams.topology import declare
from tests.entries import named
from tests.infra.cluster import MONITORING, SERVERS, SERVICE, Member, Names, members, url_of
from tests.infra.conftest import Manifests
from tests.infra.keda import Scaler
from tests.infra.scaling import ScalingError, Trigger, jobs_to_create
from tests.infra.test_nats_cluster import all_ready, started

pytestmark = pytest.mark.long

QUEUE = Queue()
WAITING = 40
"""Requests on the queue."""
JOBS = 3
"""Those of 16 slots that they need."""
LAME_DUCK = signal.SIGUSR2
"""What `nats-server --signal ldm` sends, as the Pod's hook does before it ends."""


@dataclass
class Watched:
    """The servers, and KEDA before them."""

    cluster: list[Member]
    processes: dict[str, asyncio.subprocess.Process]
    names: Names
    http: aiohttp.ClientSession
    trigger: Trigger
    url: str
    authority: str
    connection: Connection

    async def leader(self) -> str:
        """Of the queue's consumer; empty without one."""
        with suppress(ConnectionLost, TimeoutError):
            asked = f"$JS.API.CONSUMER.INFO.{names.WORK}.{QUEUE.consumer}"
            answer = msgspec.json.decode((await self.connection.ask(asked, timeout=2.0)).data)
            return str(answer.get("cluster", {}).get("leader", ""))
        return ""

    async def lead(self, wanted: Member) -> None:
        """Has this server lead the consumer."""
        subject = f"$JS.API.CONSUMER.LEADER.STEPDOWN.{names.WORK}.{QUEUE.consumer}"
        while await self.leader() != wanted.name:
            placement = {"placement": {"preferred": wanted.name}}
            with suppress(ConnectionLost, TimeoutError):
                await self.connection.ask(subject, msgspec.json.encode(placement), timeout=2.0)
            await asyncio.sleep(0.1)

    async def settled(self) -> Scaler:
        """A scaler that has found the leader, which knows all that waits."""
        while True:
            scaler = Scaler(self.http, self.trigger)
            with suppress(ScalingError):  # a server may not know yet who leads
                if await scaler.poll() == WAITING:
                    return scaler
            await asyncio.sleep(0.05)

    async def end(self, member: Member, number: signal.Signals) -> None:
        """Ends a server; from then on it is not ready."""
        self.names.ready.remove(member.host)
        self.processes[member.name].send_signal(number)
        await self.processes[member.name].wait()

    async def begin(self, member: Member) -> None:
        """Starts it anew, and waits until it is ready."""
        self.processes[member.name] = await started(member)
        await all_ready(self.http, self.cluster)
        self.names.ready.append(member.host)

    async def advertised(self, member: Member) -> list[str]:
        """The servers that it tells clients of."""
        async with self.http.get(f"{member.url}/varz") as reply:
            found: list[str] = msgspec.json.decode(await reply.read())["connect_urls"]
            return found

    async def jobs(self, scaler: Scaler) -> int:
        """What the scaler asks for, where none runs."""
        return jobs_to_create(
            await scaler.poll(), trigger=self.trigger, running=0, pending=0, max_replicas=200
        )


@asynccontextmanager
async def watched(
    built: dict[str, Manifests], secrets: Path, home: Path, scheme: Literal["http", "https"]
) -> AsyncIterator[Watched]:
    cluster = members(built["cloud"].one("ConfigMap", "nats")["data"], secrets, home, scheme)
    metadata = built["cloud"].one("ScaledJob", QUEUE.consumer)["spec"]["triggers"][0]["metadata"]
    assert metadata["natsServerMonitoringEndpoint"] == f"{MONITORING}:8222"
    endpoint = cluster[0].endpoint.replace(f"nats-0.{SERVICE}", MONITORING)
    trigger = msgspec.structs.replace(Trigger.of_metadata(metadata), endpoint=endpoint, scheme=scheme)
    authority = str(secrets / "orchard" / "nats-ca" / "ca.crt")
    settings = NatsSettings(
        url=url_of(cluster),
        user="operator",
        password_env="OPERATOR_PASSWORD",
        tls_ca=authority,
        replicas=SERVERS,
    )
    resolver = Names(cluster)
    connector = aiohttp.TCPConnector(
        resolver=resolver,
        use_dns_cache=False,
        force_close=True,
        ssl=ssl.create_default_context(cafile=authority),
    )
    processes = {member.name: await started(member) for member in cluster}
    try:
        async with aiohttp.ClientSession(connector=connector) as http:
            await all_ready(http, cluster)
            async with connect(settings, name="test") as connection:
                await declare(connection, settings, [QUEUE])
                publisher = Publisher(connection)
                for number in range(WAITING):
                    await publisher.offer(named(QUEUE, f"r{number}", b"{}"))
                yield Watched(
                    cluster, processes, resolver, http, trigger, url_of(cluster), authority, connection
                )
    finally:
        for process in processes.values():
            if process.returncode is None:
                process.kill()
            await process.wait()


@pytest.fixture(autouse=True)
def password(secrets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a client with all rights."""
    monkeypatch.setenv("OPERATOR_PASSWORD", (secrets / "orchard/nats-users/operator").read_text())


@pytest.mark.parametrize(
    "cases",
    [
        pytest.param([(0, 0), (1, 2)], id="two"),
        pytest.param([*itertools.product(range(SERVERS), repeat=2)], id="all", marks=pytest.mark.slow),
    ],
)
async def test_no_poll_fails_whichever_server_is_gone_and_whichever_leads(
    built: dict[str, Manifests], secrets: Path, tmp_path: Path, cases: list[tuple[int, int]]
) -> None:
    """Whichever living server is asked first, and whether it knew the leader before or not."""
    async with watched(built, secrets, tmp_path, "http") as seen, asyncio.timeout(280):
        for leader, gone in cases:
            await seen.lead(seen.cluster[leader])
            knowing = await seen.settled()
            await seen.end(seen.cluster[gone], signal.SIGKILL)
            if gone == leader:  # another one has to lead first
                while await seen.leader() in ("", f"nats-{gone}"):
                    await asyncio.sleep(0.05)
                await seen.settled()
            for scaler in (knowing, *(Scaler(seen.http, seen.trigger) for _ in range(SERVERS))):
                assert [await seen.jobs(scaler) for _ in range(2)] == [JOBS] * 2, (leader, gone)
            await seen.begin(seen.cluster[gone])


@pytest.mark.parametrize("scheme", ["http", pytest.param("https", marks=pytest.mark.slow)])
async def test_no_poll_fails_while_the_servers_are_replaced(
    built: dict[str, Manifests], secrets: Path, tmp_path: Path, scheme: Literal["http", "https"]
) -> None:
    """One after the other, as a StatefulSet does it, by lame duck mode. With TLS KEDA trusts the chart's
    authority alone. It has no user of NATS, and without one nobody can do more than monitor."""
    async with watched(built, secrets, tmp_path, scheme) as seen, asyncio.timeout(280):
        knowing, asked, over = await seen.settled(), Counter[int](), False

        async def poll() -> None:
            while not over:
                for scaler in (knowing, Scaler(seen.http, seen.trigger)):
                    asked[await seen.jobs(scaler)] += 1
                await asyncio.sleep(0.05)

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(poll())
            for member in seen.cluster:
                await seen.end(member, LAME_DUCK)
                await seen.begin(member)
                polls = asked.total()
                while asked.total() < polls + 2 * SERVERS:
                    await asyncio.sleep(0.05)
            over = True
        assert asked.keys() == {JOBS}
        with pytest.raises(NatsRefused):
            async with connect(NatsSettings(url=seen.url, tls_ca=seen.authority), name="keda"):
                pass


@pytest.mark.slow
async def test_a_server_that_hangs_is_passed_over_once_it_is_not_ready(
    built: dict[str, Manifests], secrets: Path, tmp_path: Path
) -> None:
    """Its connections stay, and the others advertise it until it has missed three pings: 15 s, not 90."""
    async with watched(built, secrets, tmp_path, "http") as seen, asyncio.timeout(200):
        await seen.lead(seen.cluster[1])
        await seen.settled()
        hanging = seen.cluster[0]
        seen.names.ready.remove(hanging.host)
        seen.processes[hanging.name].send_signal(signal.SIGSTOP)
        async with asyncio.timeout(45):
            while any([len(await seen.advertised(member)) == SERVERS for member in seen.cluster[1:]]):
                await asyncio.sleep(0.2)
        for scaler in [Scaler(seen.http, seen.trigger) for _ in range(SERVERS)]:
            assert await seen.jobs(scaler) == JOBS

"""The cluster's own configuration on three real servers: quorum, one lost, and how KEDA finds the lag there.

Addresses and paths are replaced; everything else is what the ConfigMap has.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from orchard.streams import names
from orchard.streams.claims import Claims
from orchard.streams.connection import connect
from orchard.streams.publisher import Publisher
from orchard.streams.server import find_binary
from orchard.streams.settings import NatsSettings, Queue
from orchard.streams.topology import declare
from tests.entries import named
from tests.infra.conftest import Manifests, free_ports
from tests.infra.scaling import Trigger, lag

QUEUE = Queue()
SERVERS = 3


@dataclass
class Server:
    """One of the three."""

    name: str
    client: int
    monitoring: int
    process: asyncio.subprocess.Process


@pytest.fixture
async def cluster(
    built: dict[str, Manifests], secrets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[list[Server]]:
    data = built["cloud"].one("ConfigMap", "nats")["data"]
    tls = secrets / "orchard" / "nats-tls"
    for path in (secrets / "orchard" / "nats-users").iterdir():
        monkeypatch.setenv(f"{path.name.upper()}_PASSWORD", path.read_text())
    ports = free_ports(3 * SERVERS)
    clients, routes, monitors = ports[:3], ports[3:6], ports[6:]
    servers = []
    async with AsyncExitStack() as stack:
        for number in range(SERVERS):
            home = tmp_path / f"nats-{number}"
            home.mkdir()
            text = data["nats.conf"]
            changes = {
                "listen: 0.0.0.0:4222": f"listen: 127.0.0.1:{clients[number]}",
                "listen: 0.0.0.0:6222": f"listen: 127.0.0.1:{routes[number]}",
                "http: 0.0.0.0:8222": f"http: 127.0.0.1:{monitors[number]}",
                "/data": str(home / "data"),
                "/run/nats": str(home),
                "/etc/nats/tls": str(tls),
            } | {
                f"nats-{other}.nats.orchard.svc.cluster.local:6222": f"localhost:{routes[other]}"
                for other in range(SERVERS)
            }
            for old, new in changes.items():
                assert old in text, f"the configuration has no {old}"
                text = text.replace(old, new)
            (home / "nats.conf").write_text(text)
            (home / "accounts.conf").write_text(data["accounts.conf"])
            with (home / "log").open("wb") as log:
                process = await asyncio.create_subprocess_exec(
                    str(find_binary()),
                    "-c",
                    str(home / "nats.conf"),
                    env={**os.environ, "POD_NAME": f"nats-{number}"},
                    stderr=log,
                )
            stack.push_async_callback(stopped, process)
            servers.append(Server(f"nats-{number}", clients[number], monitors[number], process))
        yield servers


async def stopped(process: asyncio.subprocess.Process) -> None:
    """Killed, unless it is gone already."""
    if process.returncode is None:
        process.kill()
    await process.wait()


async def ready(http: aiohttp.ClientSession, server: Server) -> None:
    """Until the readiness probe of the StatefulSet is content."""
    async with asyncio.timeout(60):
        while True:
            with suppress(aiohttp.ClientConnectionError):  # it does not listen yet
                async with http.get(f"http://127.0.0.1:{server.monitoring}/healthz") as reply:
                    if reply.status == 200:
                        return
            await asyncio.sleep(0.05)


async def monitored(http: aiohttp.ClientSession, url: str) -> Any:
    async with http.get(url) as reply:
        return msgspec.json.decode(await reply.read())


async def test_the_cluster_works_with_one_server_lost_and_keda_finds_the_leader(
    cluster: list[Server], secrets: Path, built: dict[str, Manifests]
) -> None:
    url = ",".join(f"tls://localhost:{server.client}" for server in cluster)
    ca = str(secrets / "orchard" / "nats-ca" / "ca.crt")
    replicas = int(built["cloud"].one("ConfigMap", "settings")["data"]["ORCHARD_NATS__REPLICAS"])
    settings = NatsSettings(
        url=url, user="operator", password_env="OPERATOR_PASSWORD", tls_ca=ca, replicas=replicas
    )
    metadata = built["cloud"].one("ScaledJob", QUEUE.consumer)["spec"]["triggers"][0]["metadata"]
    async with aiohttp.ClientSession() as http:
        for server in cluster:
            await ready(http, server)

        async with connect(settings, name="test") as connection:
            await declare(connection, settings, [QUEUE])
            publisher = Publisher(connection)
            await publisher.offer(named(QUEUE, "one", b"one"))
            info = await connection.jetstream.consumer_info(names.WORK, QUEUE.consumer)
            assert info.cluster is not None
            (leader,) = [server for server in cluster if server.name == info.cluster.leader]

            trigger = Trigger.of_metadata(
                {**metadata, "natsServerMonitoringEndpoint": f"127.0.0.1:{leader.monitoring}"}
            )
            async with asyncio.timeout(20):  # the leader may store it after the two that made the quorum
                while True:
                    seen = await monitored(http, trigger.url)
                    if lag(msgspec.json.encode(seen), trigger) == 1:
                        break
                    await asyncio.sleep(0.05)
            assert seen["meta_cluster"]["cluster_size"] == SERVERS
            about = await monitored(http, f"http://127.0.0.1:{leader.monitoring}/varz")
            assert not about.get("connect_urls"), "KEDA must go by the names of the routes"
            assert len(about["cluster"]["urls"]) == SERVERS

            leader.process.kill()
            await leader.process.wait()

            await publisher.offer(named(QUEUE, "two", b"two"))
            async with Claims(connection, QUEUE) as claims:
                got = set()
                while len(got) < 2:
                    claim = await claims.next(timeout=30)
                    assert claim is not None, "a request was lost with the server"
                    got.add(claim.body)
                    await claim.complete()
            assert got == {b"one", b"two"}

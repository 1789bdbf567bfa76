"""The three NATS servers of the cluster on this machine, from the configuration that the chart renders.

Addresses and paths are replaced; everything else is what the ConfigMap has. Each server has an address of its
own, and all have one monitoring port, as Pods have.
"""

import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import aiohttp
import msgspec
from aiohttp.abc import AbstractResolver, ResolveResult

from orchard.streams.server import find_binary
from tests.infra.conftest import Manifest, free_ports, password_variables
from tests.infra.keda import Scaler
from tests.infra.scaling import ScalingError, Trigger

SERVERS = 3
SERVICE = "nats.orchard.svc.cluster.local"
"""Headless: the servers have their names below it."""
MONITORING = "nats-monitoring.orchard.svc.cluster.local"
"""Of those that are ready."""


@dataclass(frozen=True)
class Member:
    """One of the three: where it listens, and how it is started."""

    name: str
    host: str
    client: int
    url: str
    """Of its monitoring."""
    home: Path
    environment: Mapping[str, str]

    @property
    def command(self) -> list[str]:
        """What starts it."""
        return [str(find_binary()), "-c", str(self.home / "nats.conf")]

    @property
    def endpoint(self) -> str:
        """`host:port` of its monitoring."""
        return self.url.partition("//")[2]

    async def healthy(self, http: aiohttp.ClientSession) -> bool:
        """Whether the readiness probe of the StatefulSet is content."""
        with suppress(aiohttp.ClientError):  # it does not listen, or has just ended
            async with http.get(f"{self.url}/healthz") as reply:
                return reply.status == 200
        return False


def members(
    config: Manifest, secrets: Path, home: Path, scheme: Literal["http", "https"] | None = None
) -> list[Member]:
    """Writes the configuration of each below `home`, from the data of the ConfigMap and the Secrets' files;
    what the servers have stored there stays.

    With a scheme, monitoring speaks it, and is advertised by the names that the servers have in the cluster,
    which `Names` resolves; without one, by addresses.
    """
    monitoring, *ports = free_ports(1 + 2 * SERVERS)
    clients, routes = ports[:SERVERS], ports[SERVERS:]
    passwords = password_variables(secrets)
    found = []
    for number in range(SERVERS):
        place = home / f"nats-{number}"
        place.mkdir(parents=True, exist_ok=True)
        text, host = config["nats.conf"], f"127.0.0.{1 + number}"
        told = f"nats-{number}.{SERVICE}" if scheme else host
        changes = {
            "listen: 0.0.0.0:4222": f"listen: 0.0.0.0:{clients[number]}",
            "listen: 0.0.0.0:6222": f"listen: 127.0.0.1:{routes[number]}",
            "http: 0.0.0.0:8222": f"{scheme or 'http'}: {host}:{monitoring}",
            "/data": str(place / "data"),
            "/run/nats": str(place),
            "/etc/nats/tls": str(secrets / "orchard" / "nats-tls"),
        } | {f"nats-{other}.{SERVICE}:6222": f"localhost:{routes[other]}" for other in range(SERVERS)}
        for old, new in changes.items():
            assert old in text, f"the configuration has no {old}"
            text = text.replace(old, new)
        (place / "nats.conf").write_text(text)
        (place / "accounts.conf").write_text(config["accounts.conf"])
        own = {"POD_NAME": f"nats-{number}", "CLIENT_ADVERTISE": f"{told}:{clients[number]}"}
        environment = {**os.environ, **passwords, **own}
        url = f"{scheme or 'http'}://{told}:{monitoring}"
        found.append(Member(f"nats-{number}", host, clients[number], url, place, environment))
    return found


class Names(AbstractResolver):
    """The cluster's DNS, for a connector: the servers, and the Service of the ready ones, each in turn."""

    def __init__(self, cluster: list[Member]) -> None:
        self.ready = [member.host for member in cluster]
        self._servers = {f"{member.name}.{SERVICE}": member.host for member in cluster}

    async def resolve(
        self,
        host: str,
        port: int = 0,
        family: socket.AddressFamily = socket.AF_INET,  # noqa: ARG002
    ) -> list[ResolveResult]:
        """One address. OSError for an unknown name."""
        if host == MONITORING:
            self.ready.append(self.ready.pop(0))
        found = self.ready[0] if host == MONITORING else self._servers.get(host)
        if found is None:
            raise OSError(None, f"{host}: no such name")
        flags = socket.AI_NUMERICHOST
        return [
            ResolveResult(hostname=host, host=found, port=port, family=socket.AF_INET, proto=0, flags=flags)
        ]

    async def close(self) -> None:
        """Nothing to close."""


def url_of(cluster: list[Member]) -> str:
    """For clients."""
    return ",".join(f"tls://localhost:{member.client}" for member in cluster)


async def lag_of(http: aiohttp.ClientSession, cluster: list[Member], trigger: Trigger) -> int:
    """What KEDA learns at a poll, from the first server that answers, as where the Service's name leads it.

    Raises ScalingError as KEDA reports an error, for example during an election.
    """
    for member in cluster:
        if await member.healthy(http):
            asked = msgspec.structs.replace(trigger, endpoint=member.endpoint)
            return await Scaler(http, asked).poll()
    raise ScalingError("no server answers")

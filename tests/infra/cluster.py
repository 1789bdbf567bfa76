"""The three NATS servers of the cluster on this machine, from the configuration that the chart renders.

Addresses and paths are replaced; everything else is what the ConfigMap has.
"""

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import msgspec

from orchard.streams.server import find_binary
from tests.infra.conftest import Manifest, free_ports, password_variables
from tests.infra.scaling import ScalingError, Trigger

SERVERS = 3


@dataclass(frozen=True)
class Member:
    """One of the three: where it listens, and how it is started."""

    name: str
    client: int
    monitoring: int
    home: Path
    environment: Mapping[str, str]

    @property
    def command(self) -> list[str]:
        """What starts it."""
        return [str(find_binary()), "-c", str(self.home / "nats.conf")]

    async def healthy(self, http: aiohttp.ClientSession) -> bool:
        """Whether the readiness probe of the StatefulSet is content."""
        with suppress(aiohttp.ClientError):  # it does not listen, or has just ended
            async with http.get(f"http://127.0.0.1:{self.monitoring}/healthz") as reply:
                return reply.status == 200
        return False


def members(config: Manifest, secrets: Path, home: Path) -> list[Member]:
    """Writes the configuration of each below `home`, from the data of the ConfigMap and the Secrets' files;
    what the servers have stored there stays."""
    ports = free_ports(3 * SERVERS)
    clients, routes, monitors = ports[:3], ports[3:6], ports[6:]
    passwords = password_variables(secrets)
    found = []
    for number in range(SERVERS):
        place = home / f"nats-{number}"
        place.mkdir(parents=True, exist_ok=True)
        text = config["nats.conf"]
        changes = {
            "listen: 0.0.0.0:4222": f"listen: 127.0.0.1:{clients[number]}",
            "listen: 0.0.0.0:6222": f"listen: 127.0.0.1:{routes[number]}",
            "http: 0.0.0.0:8222": f"http: 127.0.0.1:{monitors[number]}",
            "/data": str(place / "data"),
            "/run/nats": str(place),
            "/etc/nats/tls": str(secrets / "orchard" / "nats-tls"),
        } | {
            f"nats-{other}.nats.orchard.svc.cluster.local:6222": f"localhost:{routes[other]}"
            for other in range(SERVERS)
        }
        for old, new in changes.items():
            assert old in text, f"the configuration has no {old}"
            text = text.replace(old, new)
        (place / "nats.conf").write_text(text)
        (place / "accounts.conf").write_text(config["accounts.conf"])
        environment = {**os.environ, **passwords, "POD_NAME": f"nats-{number}"}
        found.append(Member(f"nats-{number}", clients[number], monitors[number], place, environment))
    return found


def url_of(cluster: list[Member]) -> str:
    """For clients."""
    return ",".join(f"tls://localhost:{member.client}" for member in cluster)


async def leaders_answer(http: aiohttp.ClientSession, cluster: list[Member], trigger: Trigger) -> bytes:
    """What KEDA reads the lag from: the answer of the server that leads the consumer.

    Raises ScalingError while no server that answers is the leader, as during an election.
    """
    for member in cluster:
        asked = msgspec.structs.replace(trigger, endpoint=f"127.0.0.1:{member.monitoring}")
        with suppress(aiohttp.ClientError):
            async with http.get(asked.url) as reply:
                answer = await reply.read()
            for account in msgspec.json.decode(answer).get("account_details", []):
                for stream in account.get("stream_detail", []):
                    for consumer in stream.get("consumer_detail", []):
                        leads = consumer.get("cluster", {}).get("leader") == member.name
                        if consumer["name"] == trigger.consumer and leads:
                            return answer
    raise ScalingError(f"no server says that it leads the consumer {trigger.consumer}")

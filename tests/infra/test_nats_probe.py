"""The liveness probe of the NATS Pods, run by busybox as there, against a real server on a full disk."""

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchard.streams.connection import connect
from orchard.streams.errors import StoreRefused
from orchard.streams.publish import OutgoingMessage, store
from orchard.streams.server import EmbeddedServer
from orchard.streams.settings import NatsSettings
from orchard.streams.topology import declare
from tests.infra.conftest import Manifests, containers, pod_template

pytestmark = pytest.mark.long

MIB = 1024 * 1024
Probe = Callable[[EmbeddedServer, Path], int]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MiB."""
    place = tmp_path / "small"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(place)], check=True)
    yield place
    subprocess.run(["umount", str(place)], check=True)


@pytest.fixture
def probe(built: dict[str, Manifests], tmp_path: Path) -> Probe:
    """The exit status of the probe's command; 2 MiB are space enough here."""
    pod = pod_template(built["cloud"].one("StatefulSet", "nats"))
    (container,) = [box for box in containers(pod) if box["name"] == "nats"]
    command = container["livenessProbe"]["exec"]["command"]
    busybox = shutil.which("busybox")
    assert busybox, "the tests of infra/ need busybox: install the Debian package busybox-static"
    applets = tmp_path / "applets"
    applets.mkdir()
    for name in ("sh", "nc", "grep", "df", "awk"):
        (applets / name).symlink_to(busybox)

    def run(server: EmbeddedServer, data: Path) -> int:
        environment = {
            "PATH": str(applets),
            "MONITORING_PORT": str(server.monitoring_port),
            "DATA": str(data),
            "RESERVE_KB": "2048",
        }
        return subprocess.run([*command], executable=str(applets / "sh"), env=environment).returncode

    return run


async def test_a_stuck_server_is_restarted_when_there_is_space_again(
    small_disk: Path, probe: Probe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchard.streams.publish.ACK_TIMEOUT", 0.3)
    monkeypatch.setattr("orchard.streams.publish.STALL_GRACE", 0.5)
    ballast = small_disk / "ballast"
    async with EmbeddedServer(small_disk / "nats", monitoring=True) as server:
        assert probe(server, small_disk) == 0
        async with connect(NatsSettings(), name="test", url=server.url) as connection:
            await declare(connection, NatsSettings(), [])
            ballast.write_bytes(b"x" * 6 * MIB)
            with pytest.raises(StoreRefused, match="look for a full disk"):
                for number in range(100):
                    await store(
                        connection, OutgoingMessage("orchard.events.a.00.b", b"x" * 100_000, str(number))
                    )
            assert probe(server, small_disk) == 0, "a restart without space is no help"

            ballast.unlink()
            assert probe(server, small_disk) == 1

            await server.stop()
            await server.start()
            assert probe(server, small_disk) == 0
            await store(connection, OutgoingMessage("orchard.events.a.00.b", b"x", "after"))
        await server.stop()
        assert probe(server, small_disk) == 1
        await server.start()

"""The configuration of NATS changes while it runs: the command of its container, by busybox as there, and
files that are exchanged as a kubelet does it."""

import asyncio
import json
import os
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml
from nats.errors import Error as NatsError
from nats.errors import NoRespondersError

from orchard.schemas.queues import Queue
from orchard.streams.connection import Connection, connect
from orchard.streams.errors import NatsRefused
from orchard.streams.server import find_binary
from orchard.streams.settings import NatsSettings
from orchard.streams.tasks import end
from tests.infra.conftest import (
    INFRA,
    Manifests,
    containers,
    listening,
    password_variables,
    pod_template,
)
from tests.infra.test_chart import CHART, helm

SOON = 30.0
APPLETS = ("sh", "sleep", "find", "cat", "md5sum", "rm")
LATE_FIND = """
find() {
  if [ ! -e {place}/looked ]; then
    : > {place}/looked
    sleep 0.3
    [ ! -e {place}/serving ] || while [ ! -e {place}/changed ]; do sleep 0.1; done
  fi
  command find "$@"
}
"""
"""Whose first look comes after the change, if the server does not wait for it."""
SERVER = """#!{programs}/sh
: > {place}/serving
exec {server} "$@"
"""


@dataclass
class Volume:
    """A ConfigMap or a Secret in a Pod: links that are turned to another directory at once."""

    place: Path
    versions: int = field(default=0)

    def put(self, files: dict[str, str]) -> None:
        """Have these files in place of those before."""
        self.versions += 1
        made = self.place / f"..{self.versions}"
        made.mkdir(parents=True)
        for name, text in files.items():
            (made / name).write_text(text)
            with suppress(FileExistsError):
                (self.place / name).symlink_to(f"..data/{name}")
        turned = self.place / "..new"
        turned.symlink_to(made.name)
        turned.rename(self.place / "..data")


@dataclass
class Server:
    """One that was started by the container's command."""

    config: Volume
    tls: Volume
    url: str
    authority: Path
    log: Path

    @property
    def port(self) -> int:
        """Of clients."""
        return int(self.url.rpartition(":")[2])


def certificates(directory: Path) -> dict[str, str]:
    return {name: (directory / name).read_text() for name in ("tls.crt", "tls.key", "ca.crt")}


@asynccontextmanager
async def started(
    built: dict[str, Manifests], secrets: Path, tmp_path: Path, *, late: bool = False
) -> AsyncIterator[Server]:
    pod = pod_template(built["cloud"].one("StatefulSet", "nats"))
    (container,) = [box for box in containers(pod) if box["name"] == "nats"]
    busybox = shutil.which("busybox")
    assert busybox, "the tests of infra/ need busybox: install the Debian package busybox-static"
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in APPLETS:
        (programs / name).symlink_to(busybox)
    server = SERVER.format(programs=programs, place=tmp_path, server=find_binary())
    (programs / "nats-server").write_text(server)
    (programs / "nats-server").chmod(0o755)
    *shell, script = container["command"]
    if late:
        script = LATE_FIND.replace("{place}", str(tmp_path)) + script
    files = tmp_path / "nats"
    config, tls = Volume(files / "config"), Volume(files / "tls")
    tls.put(certificates(secrets / "orchard" / "nats-tls"))
    here = files / "tls"
    config.put(
        {
            "nats.conf": f"""
            listen: 127.0.0.1:-1
            ports_file_dir: "{tmp_path}"
            pid_file: "{tmp_path}/nats.pid"
            jetstream {{ store_dir: "{tmp_path}/data" }}
            tls {{ cert_file: "{here}/tls.crt", key_file: "{here}/tls.key", ca_file: "{here}/ca.crt" }}
            include accounts.conf
            """,
            "accounts.conf": built["cloud"].one("ConfigMap", "nats")["data"]["accounts.conf"],
        }
    )
    log = tmp_path / "log"
    process = await asyncio.create_subprocess_exec(
        str(programs / "sh"),
        *shell[1:],
        script,
        env={
            **password_variables(secrets),
            "PATH": str(programs),
            "FILES": str(files),
            "PID_FILE": str(tmp_path / "nats.pid"),
            "EVERY": "0.1",
        },
        stderr=log.open("wb"),
        start_new_session=True,
    )
    try:
        ports = await listening(tmp_path)
        port = ports["nats"][0].rpartition(":")[2]
        authority = secrets / "orchard" / "nats-ca" / "ca.crt"
        yield Server(config, tls, f"tls://localhost:{port}", authority, log)
    finally:
        os.killpg(process.pid, 15)
        await process.wait()


@pytest.fixture(autouse=True)
def password(secrets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a worker."""
    monkeypatch.setenv("TEST_WORKER", (secrets / "orchard" / "nats-users" / "worker").read_text())


@pytest.fixture
async def running(built: dict[str, Manifests], secrets: Path, tmp_path: Path) -> AsyncIterator[Server]:
    async with started(built, secrets, tmp_path) as server:
        yield server


async def refused(server: Server, subject: str) -> bool:
    """Whether a worker may not publish there; who may is told that nobody listens."""
    settings = NatsSettings(
        url=server.url, user="worker", password_env="TEST_WORKER", tls_ca=str(server.authority)
    )
    while True:
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        async def hear(error: Exception, answer: asyncio.Future[bool] = answer) -> None:
            if "permissions violation" in str(error).lower() and not answer.done():
                answer.set_result(True)

        try:
            async with connect(settings, name="worker") as connection:
                connection.nats._error_cb = hear
                asking = asyncio.create_task(_no_responders(connection, subject))
                await asyncio.wait([asking, answer], return_when=asyncio.FIRST_COMPLETED)
                await end(asking)
        except NatsRefused:
            continue  # in the instant in which the server changes its accounts
        if answer.done():
            return True
        if asking.result():
            return False  # else it was disconnected, as those are whose rights change


async def _no_responders(connection: Connection, subject: str) -> bool:
    try:
        await connection.nats.request(subject, timeout=2.0)
    except NoRespondersError:
        return True
    except (NatsError, TimeoutError):
        return False
    raise AssertionError("somebody has answered")


@pytest.mark.long
async def test_a_new_queue_is_for_workers_without_a_restart(running: Server) -> None:
    queue = Queue(domain="claw")
    assert await refused(running, f"{queue.subject}.a.b")

    entry = {"kind": "rollout", "domain": "claw", "priority": "normal", "maxWorkers": 1, "lends": []}
    text = helm(
        "template",
        "orchard",
        str(CHART),
        "--namespace",
        "orchard",
        "--set-json",
        f"queues=[{json.dumps(entry)}]",
    )
    data = Manifests([one for one in yaml.safe_load_all(text) if one]).one("ConfigMap", "nats")["data"]
    now = (running.config.place / "nats.conf").read_text()
    running.config.put({"nats.conf": now, "accounts.conf": data["accounts.conf"]})

    async with asyncio.timeout(SOON):
        while await refused(running, f"{queue.subject}.a.b") or not await refused(
            running, f"{Queue().subject}.a.b"
        ):  # which is not in the list any more
            await asyncio.sleep(0.05)


async def test_a_change_is_seen_that_comes_before_the_first_look_at_the_files(
    built: dict[str, Manifests], secrets: Path, tmp_path: Path
) -> None:
    """It is compared with what the server was started with."""
    async with started(built, secrets, tmp_path, late=True) as server:
        now = (server.config.place / "nats.conf").read_text()
        accounts = (server.config.place / "accounts.conf").read_text()
        server.config.put({"nats.conf": now, "accounts.conf": accounts + "# changed\n"})
        (tmp_path / "changed").touch()
        async with asyncio.timeout(SOON):
            while "Reloaded server configuration" not in server.log.read_text():
                await asyncio.sleep(0.05)


async def test_what_cannot_be_read_changes_nothing(running: Server) -> None:
    now = (running.config.place / "nats.conf").read_text()
    accounts = (running.config.place / "accounts.conf").read_text()
    running.config.put({"nats.conf": now, "accounts.conf": accounts[:-100]})
    async with asyncio.timeout(SOON):
        while "Failed to reload" not in running.log.read_text():
            await asyncio.sleep(0.05)
    assert not await refused(running, f"{Queue().subject}.a.b")


async def test_a_renewed_certificate_is_shown_without_a_restart(
    running: Server, secrets: Path, tmp_path: Path
) -> None:
    before = await shown(running)
    renewed = tmp_path / "renewed"
    shutil.copytree(secrets, renewed)
    (renewed / "orchard" / "nats-tls" / "tls.key").unlink()
    script = ["sh", str(INFRA / "make-secrets.sh"), str(renewed)]
    await asyncio.to_thread(subprocess.run, script, check=True)

    running.tls.put(certificates(renewed / "orchard" / "nats-tls"))

    async with asyncio.timeout(SOON):
        while await shown(running) == before:
            await asyncio.sleep(0.05)


async def test_the_authority_is_exchanged_under_a_connection_that_stays(
    running: Server, secrets: Path, tmp_path: Path
) -> None:
    """As docs/runbooks/cluster.md has it: both are trusted, then the certificate, then the new one alone."""
    place = tmp_path / "exchanged"
    shutil.copytree(secrets, place)
    tls, authority, old = place / "orchard/nats-tls", place / "orchard/nats-ca/ca.crt", running.authority

    async def made() -> None:
        """Has the server read what the script makes now."""
        script = ["sh", str(INFRA / "make-secrets.sh"), str(place)]
        await asyncio.to_thread(subprocess.run, script, check=True)
        reloads = running.log.read_text().count("Reloaded server configuration")
        running.tls.put(certificates(tls))
        async with asyncio.timeout(SOON):
            while running.log.read_text().count("Reloaded server configuration") == reloads:
                await asyncio.sleep(0.05)

    settings = NatsSettings(url=running.url, user="worker", password_env="TEST_WORKER", tls_ca=str(old))
    async with connect(settings, name="from before") as connection:
        (place / "ca" / "ca.crt").rename(place / "ca" / "old.crt")
        (place / "ca" / "ca.key").unlink()
        await made()
        assert await shown(running, old) == await shown(running, authority)

        (tls / "tls.key").unlink()
        await made()
        await shown(running, authority)
        with pytest.raises(ssl.SSLCertVerificationError):
            await shown(running, old)

        (place / "ca" / "old.crt").unlink()
        await made()
        await shown(running, authority)
        assert await _no_responders(connection, f"{Queue().subject}.a.b")
        assert connection.nats.stats["reconnects"] == 0


async def shown(server: Server, authority: Path | None = None) -> bytes:
    """The certificate that a client is shown, who trusts the authorities of a file."""
    context = ssl.create_default_context(cafile=str(authority or server.authority))
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    assert (await reader.readline()).startswith(b"INFO")
    await writer.start_tls(context, server_hostname="localhost")
    found = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    assert isinstance(found, bytes)
    return found

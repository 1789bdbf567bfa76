"""The unit of the front, run on hosts of their own: one address, and sandboxes of two machines behind it."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.infra.hosts.network import UNITS, Host, network

FRONT, WORKERS = "10.77.0.1", ("10.77.0.2", "10.77.0.3")
CLIENT = """
import json, os
from orchard import SandboxClient

with SandboxClient(os.environ["ORCHARD_SANDBOX__URL"], retry_seconds=120) as client:
    made = [client.create_sandbox("host", sandbox_id=f"{name}-one", cpu="1", memory="64Mi") for name in NAMES]
    print(json.dumps([[one.sandbox_id, one.exec("echo here", cwd="/").stdout] for one in made]))
"""


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """What make-files.sh makes."""
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    (secrets / "store.env").write_text("ORCHARD_STORE=/nowhere\n")
    (secrets / "fronts").write_text(f"{FRONT}\n")
    (secrets / "orchard.toml").write_text("[endpoints]\n")
    subprocess.run(["sh", str(UNITS / "make-files.sh"), str(secrets), FRONT, *WORKERS], check=True)
    return secrets / "hosts"


@asynccontextmanager
async def started(units: dict[str, list[Host]]) -> AsyncIterator[None]:
    for unit, hosts in units.items():
        for host in hosts:
            host.start(unit)
    try:
        yield
    finally:
        for unit, hosts in reversed(units.items()):
            await asyncio.gather(*(host.stop(unit) for host in hosts))


@pytest.mark.long
@pytest.mark.needs_root("network namespaces")
async def test_one_address_has_the_sandboxes_of_all_hosts(files: Path, tmp_path: Path) -> None:
    with network(tmp_path, "log", "first", "second", "laptop") as hosts:
        log, first, second = hosts["log"], hosts["first"], hosts["second"]
        for host in (log, first, second):
            host.install(files / host.address)
        units = {
            "orchard-agent.service": [first, second],
            "orchard-orchestrator.service": [first, second],
            "orchard-front.service": [log],
        }
        operator = files / "operator"
        lines = (operator / f"{FRONT}-front.env").read_text().splitlines()
        environment = dict(line.split("=", 1) for line in lines)
        environment["SANDBOX_TLS_CA"] = str(operator / "ca.crt")
        text = (files / FRONT / "front.toml").read_text()
        names = [line[len("[upstreams.") : -1] for line in text.splitlines() if line.startswith("[")]
        async with started(units):
            ran = await asyncio.to_thread(
                subprocess.run,
                hosts["laptop"].inside(sys.executable, "-c", f"NAMES = {names}\n{CLIENT}"),
                env={**os.environ, **environment},
                capture_output=True,
                text=True,
            )
        assert ran.returncode == 0, ran.stderr
        assert json.loads(ran.stdout) == [[f"{name}-one", "here\n"] for name in names]

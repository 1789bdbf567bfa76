"""docs/several-hosts.md, followed: one process tree for each host, each in a network namespace of its own."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
import yaml

from tests.infra.hosts.laptop import Line
from tests.infra.hosts.network import SWITCH, UNITS, Host, network
from tests.infra.hosts.outside import MODEL_PORT, S3_PORT
from tests.s3_server import CREDENTIALS

ROOT = Path(__file__).parents[3]
BUCKET, TASKS = "orchard", 2
LOG_HOST = (
    "orchard-nats.service",
    "orchard-writer.service",
    "orchard-steward.service",
    "orchard-metrics.service",
)
WORKER_HOST = ("orchard-agent.service", "orchard-orchestrator.service", "orchard-worker@.service")
QUICK = {
    "ORCHARD_NATS__ACK_WAIT": "4",
    "ORCHARD_NATS__HEARTBEAT": "1",
    "ORCHARD_SANDBOX__TTL_SECONDS": "20",
    "ORCHARD_SANDBOX__HEARTBEAT_SECONDS": "4",
    "ORCHARD_WRITER__COMMIT_SECONDS": "0.5",
}
"""Short leases, so that what a lost host had is taken over within seconds."""


class Laptop:
    """The operator, on a fourth host."""

    def __init__(self, host: Host, files: Path) -> None:
        self.host = host
        lines = [(files / name).read_text() for name in ("settings.env", "operator.env")]
        pairs = (line.split("=", 1) for line in "".join(lines).splitlines() if line)
        self.environment = {**os.environ, **dict(pairs), "COLUMNS": "200"}
        self.starts: list[Line] = []
        self.outcomes: list[Line] = []

    async def orchard(self, *words: str) -> str:
        """What a command says; it must succeed."""
        process = await asyncio.create_subprocess_exec(
            *self.host.inside(sys.executable, "-m", "orchard", *words),
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        said, _ = await process.communicate()
        assert process.returncode == 0, said.decode()
        return said.decode()

    @asynccontextmanager
    async def following(self, *services: str) -> AsyncIterator[None]:
        """After the tasks and their image are made: keeps `starts` and `outcomes` up to date."""
        words = (sys.executable, "-m", "tests.infra.hosts.laptop", str(TASKS), *services)
        process = await asyncio.create_subprocess_exec(
            *self.host.inside(*words),
            env=self.environment,
            cwd=ROOT,
            stdout=subprocess.PIPE,
        )
        assert process.stdout is not None
        try:
            first = await process.stdout.readline()
            assert msgspec.json.decode(first, type=Line).type == "prepared"
            reading = asyncio.create_task(self._read(process.stdout))
            yield
        finally:
            process.kill()
            await process.wait()
        await reading

    async def _read(self, lines: asyncio.StreamReader) -> None:
        async for line in lines:
            found = msgspec.json.decode(line, type=Line)
            (self.starts if found.type == "rollout.started" else self.outcomes).append(found)

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for something that the log tells."""
        async with asyncio.timeout(150):
            while not condition():
                await asyncio.sleep(0.05)
        assert condition(), what

    def running(self, worker: str) -> set[str]:
        """Rollouts that a worker has begun and nobody has ended."""
        ended = {line.rollout for line in self.outcomes}
        return {line.rollout for line in self.starts if line.worker.endswith(worker)} - ended


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """What make-files.sh makes for hosts of the addresses of `network`."""
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    store = {"ORCHARD_STORE": f"s3://{BUCKET}/store", **CREDENTIALS, **QUICK}
    store["AWS_ENDPOINT_URL"] = f"http://{SWITCH}:{S3_PORT}"
    (secrets / "store.env").write_text("".join(f"{name}={value}\n" for name, value in store.items()))
    (secrets / "orchard.toml").write_text(
        f'[endpoints.oracle]\nbase_url = "http://{SWITCH}:{MODEL_PORT}/v1"\n'
    )
    hosts = ("10.77.0.1", "10.77.0.2", "10.77.0.3")
    subprocess.run(
        ["sh", str(UNITS / "make-files.sh"), str(secrets), *hosts],
        check=True,
        env={**os.environ, "MAX_FILE_STORE": "1GB"},
    )
    for host in hosts[1:]:  # fewer slots than rollouts, so that none does them all
        worker = secrets / "hosts" / host / "worker.env"
        worker.write_text(worker.read_text().replace("SLOTS=8", "SLOTS=4"))
    return secrets / "hosts"


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.needs_root("network namespaces")
async def test_a_host_that_is_cut_off_costs_nothing(files: Path, tmp_path: Path) -> None:
    with network(tmp_path, "log", "first", "second", "laptop") as hosts:
        log, first, second = hosts["log"], hosts["first"], hosts["second"]
        laptop = Laptop(hosts["laptop"], files / "operator")
        for host in (log, first, second):
            host.install(files / host.address)
        async with outside(hosts["switch"], laptop.environment), running(*hosts.values()):
            for unit in LOG_HOST:
                log.start(unit)
            for host in (first, second):
                for unit in WORKER_HOST:
                    host.start(unit, "1")
            await campaigns(laptop, first, second, files)
            assert "sound" in await laptop.orchard("store", "check")
            assert "no campaign" in await log.run("orchard-archiver.service")
            await figures(log, files / log.address)
    assert not Path("/.orchard").exists(), "a service has written to the directory in which systemd starts it"


async def figures(log: Host, files: Path) -> None:
    """Each address that the log host's Prometheus asks answers, but for exporters that are not here."""
    asked = yaml.safe_load((files / "prometheus.yml").read_text())["scrape_configs"]
    for job in asked:
        for target in [each for entry in job["static_configs"] for each in entry["targets"]]:
            url = f"{job.get('scheme', 'http')}://{target}/metrics"
            command = ("curl", "-sS", "--fail", "--cacert", str(log.root / "etc" / "ca.crt"), url)
            ran = await asyncio.to_thread(
                subprocess.run, log.inside(*command), capture_output=True, text=True
            )
            ours = job["job_name"] not in ("nats", "log-host")
            assert ("orchard_" in ran.stdout) == ours, (url, ran.stderr)


async def campaigns(laptop: Laptop, first: Host, second: Host, files: Path) -> None:
    """Eight rollouts, in the middle of which one host is cut off, and two that this one does alone."""
    services = []
    for host in (first, second):
        lines = (files / "operator" / f"{host.address}.env").read_text().splitlines()
        services.append("=".join(line.split("=", 1)[1] for line in lines))
    options = ("--model", "oracle", "--unproven", "--steps", "12", "--samples")
    async with laptop.following(*services):
        await laptop.orchard("submit", "one", *options, "4")
        await laptop.until(lambda: bool(laptop.running("second-1")), "the second host to work")
        second.plug(on=False)
        cut_off = laptop.running("second-1")
        await laptop.until(lambda: len(laptop.outcomes) == 8, "all outcomes")
        elsewhere = [line for line in laptop.outcomes if line.rollout in cut_off]
        assert elsewhere and all(line.worker.endswith("first-1") for line in elsewhere)
        second.plug(on=True)
        await first.stop("orchard-worker@.service")  # the guide's way to drain a host
        await laptop.orchard("submit", "two", *options, "1")
        await laptop.until(lambda: len(laptop.outcomes) == 10, "the outcomes of the second campaign")
    assert {line.type for line in laptop.outcomes} == {"rollout.finished"}
    assert len({line.rollout for line in laptop.outcomes}) == 10
    assert all(line.worker.endswith("second-1") for line in laptop.outcomes[8:])


@asynccontextmanager
async def outside(switch: Host, environment: dict[str, str]) -> AsyncIterator[None]:
    """S3 and the model's endpoint, where every host can reach them."""
    process = await asyncio.create_subprocess_exec(
        *switch.inside(sys.executable, "-m", "tests.infra.hosts.outside", SWITCH, BUCKET),
        env=environment,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdout is not None
    try:
        assert await process.stdout.readline() == b"ready\n"
        yield
    finally:
        process.kill()
        await process.wait()


@asynccontextmanager
async def running(*hosts: Host) -> AsyncIterator[None]:
    """Stops what was started on the hosts, workers first, as a shutdown would; at once after a failure."""
    number = signal.SIGKILL
    try:
        yield
        number = signal.SIGTERM
    finally:
        for unit in reversed(LOG_HOST + WORKER_HOST):
            await asyncio.gather(*(host.stop(unit, number) for host in hosts if unit in host.services))

"""The processes of the manifests, with their commands, roles and environments, run a campaign here.

Addresses and paths are replaced, and KEDA by hand: one worker is started when requests wait, and must end by
itself when none do.
"""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from orchard.configuration.config import load
from orchard.injector.client import AsyncSandboxClient
from orchard.pipelines.tasks.registry import TaskRegistry, stored_tasks
from orchard.storage.blobs import BlobStore
from orchard.storage.reader import open_tables
from orchard.streams.connection import connect
from orchard.streams.publisher import Publisher
from tests.chaos.world import until
from tests.infra.conftest import Manifest, Manifests, Server, containers, free_ports, pod_template
from tests.infra.test_processes import environment, worker_of
from tests.tiny_tasks import build_tiny_image, tiny_task

TASKS = 2
PYTHON = sys.executable


class Place:
    """Where this machine stands in for the cluster."""

    kept: Sequence[str] = ("PATH", "HOME")
    """Variables of this machine that every process has."""

    def __init__(self, manifests: Manifests, secrets: Path, server: Server, store: Path) -> None:
        self.manifests = manifests
        self.secrets = secrets
        self.server = server
        self.store = store
        self.sandboxes = ""
        self.oracle = ""

    def container(self, kind: str, name: str) -> Manifest:
        """The container of a workload."""
        workload = self.manifests.one(kind, name)
        return worker_of(workload) if kind == "ScaledJob" else containers(pod_template(workload))[0]

    def environment(self, container: Manifest) -> dict[str, str]:
        """The manifest's, with real secrets and this machine's addresses."""
        found = environment(self.manifests, container)
        for variable in container.get("env", []):
            if reference := variable.get("valueFrom", {}).get("secretKeyRef"):
                (path,) = self.secrets.glob(f"*/{reference['name']}/{reference['key']}")
                found[variable["name"]] = path.read_text()
        replaced = {
            "ORCHARD_STORE": str(self.store),
            "ORCHARD_NATS__URL": self.server.url,
            "ORCHARD_NATS__TLS_CA": str(self.server.ca),
            "ORCHARD_NATS__REPLICAS": "1",
            "ORCHARD_SANDBOX__URL": self.sandboxes,
            "ORCHARD_ENDPOINTS__ORACLE__BASE_URL": self.oracle,
        }
        found |= {name: value for name, value in replaced.items() if name in found}
        found.pop("ORCHARD_CONFIG", None)
        kept = {name: os.environ[name] for name in self.kept if name in os.environ}
        return {**kept, **found, "ORCHARD_WRITER__COMMIT_SECONDS": "0.5"}

    @asynccontextmanager
    async def running(self, container: Manifest, *command: str) -> AsyncIterator[asyncio.subprocess.Process]:
        """The container's process, until the block ends."""
        process = await asyncio.create_subprocess_exec(*command, env=self.environment(container))
        try:
            yield process
        finally:
            if process.returncode is None:
                process.terminate()
            await asyncio.wait_for(process.wait(), 60)

    async def console(self, *words: str) -> str:
        """A command in the operator's shell; its output."""
        process = await asyncio.create_subprocess_exec(
            PYTHON,
            "-m",
            "orchard",
            *words,
            env=self.environment(self.container("Deployment", "console")),
            stdout=asyncio.subprocess.PIPE,
        )
        output, _ = await process.communicate()
        assert process.returncode == 0, output.decode()
        return output.decode()


async def finished(*command: str) -> None:
    """Run a command to its end: the agent, which outlives its orchestrator, ends with the container there."""
    process = await asyncio.create_subprocess_exec(*command)
    assert await process.wait() == 0


@pytest.fixture
async def place(
    built: dict[str, Manifests], secrets: Path, server: Server, tmp_path: Path
) -> AsyncIterator[Place]:
    place = Place(built["kind"], secrets, server, tmp_path / "store")
    async with without_workers(place, tmp_path):
        yield place


@asynccontextmanager
async def without_workers(place: Place, home: Path) -> AsyncIterator[None]:
    """All but the workers: orchestrator, writer, steward."""
    store = place.store
    async with AsyncExitStack() as stack:
        orchestrator = place.container("Deployment", "orchestrator")
        assert orchestrator["command"][1:] == ["-m", "orchard.injector.orchestrator"]
        port_file = home / "port"
        state = ["--state", str(store / "sandboxes")]
        stack.push_async_callback(finished, PYTHON, "-m", "orchard.injector.agent", *state, "--stop")
        await stack.enter_async_context(
            place.running(
                orchestrator,
                PYTHON,
                *orchestrator["command"][1:],
                *state,
                "--port-file",
                str(port_file),
            )
        )
        await until(port_file.exists, "the orchestrator to start")
        place.sandboxes = f"http://127.0.0.1:{port_file.read_text().strip()}"
        orchard = [PYTHON, "-m", "orchard"]
        for name in ("writer", "steward"):
            container = place.container("Deployment", name)
            if name == "steward":  # in the cluster it restarts until the writer has made the streams
                await until((store / "writer.lock").exists, "the writer to start")
            await stack.enter_async_context(place.running(container, *orchard, *container["args"]))
        yield


def accounted_for(store: Path) -> int:
    """Rollouts with an outcome in the tables."""
    with open_tables(str(store)) as tables:
        (row,) = tables.sql("select count(*) from rollouts").fetchall()
        return int(row[0])


async def submitted(place: Place, *models: str) -> None:
    """Imports tasks, whose image is made first, and submits a campaign from the console."""
    console = place.environment(place.container("Deployment", "console"))
    client = AsyncSandboxClient(base_url=place.sandboxes, api_key=console["SANDBOX_API_KEY"])
    await build_tiny_image(client, TASKS)
    await client.close()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in console.items():
            patch.setenv(name, value)
        async with connect(load().nats, name="console") as connection:
            registry = TaskRegistry(Publisher(connection), BlobStore(str(place.store)))
            await registry.register(tiny_task(number) for number in range(TASKS))
    await until(lambda: len(stored_tasks(str(place.store))) == TASKS, "the tasks to be in the tables")
    await place.console("submit", "smoke", "--unproven", "--samples", "1", *models)


async def conserved(place: Place) -> None:
    output = await place.console("sql", "select * from conservation", "--format", "json")
    (row,) = json.loads(output)
    assert (row["requested"], row["finished"], row["holds"]) == (TASKS, TASKS, True)


@pytest.mark.slow
async def test_a_campaign_runs_and_its_worker_ends_by_itself(place: Place) -> None:
    await submitted(place, "--model", "oracle")
    job = place.manifests.one("ScaledJob", "rollout-swe-normal")
    (oracle,) = pod_template(job)["spec"]["initContainers"]
    (port,) = free_ports(1)
    place.oracle = f"http://127.0.0.1:{port}/v1"
    worker = worker_of(job)
    arguments = ["5" if argument == "60" else argument for argument in worker["args"]]
    async with (
        place.running(oracle, PYTHON, "-m", "orchard", "oracle", "--port", str(port)),
        place.running(worker, PYTHON, "-m", "orchard", *arguments) as process,
    ):
        assert await asyncio.wait_for(process.wait(), 120) == 0, "the worker ends when there is nothing to do"
        await until(lambda: accounted_for(place.store) == TASKS, "the outcomes to be in the tables")
    await conserved(place)

"""Several orchestrators over one cluster, replaced at any moment, and cut off from its API server."""

import asyncio
import json
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest

from orchard.injector.errors import SandboxConflict, SandboxFailed, SandboxNotFound
from orchard.schemas.sandboxes import JobStatus, SandboxStatus
from tests.kubernetes.conftest import KEY, Cluster, Service, kubeconfig_of, new_namespace, serving
from tests.kubernetes.test_cluster_life import DEADLINE, SIZES, SMALL, eventually

LEASE = 3.0
SETTINGS = {**SIZES, "reconcile_interval": 0.5, "lease": LEASE, "image_pull_policy": "Never"}
Start = Callable[..., Service]


def leader(cluster: Cluster, namespace: str) -> str:
    """Identity of the orchestrator that leads, or empty."""
    leases = {lease["metadata"]["name"]: lease for lease in cluster.get("leases", namespace)}
    return leases.get("orchard-orchestrator", {}).get("spec", {}).get("holderIdentity", "")


async def test_a_replaced_orchestrator_loses_no_sandbox_and_no_job(
    cluster: Cluster, orchestrator: Start
) -> None:
    first = orchestrator(**SETTINGS)
    async with first.client(timeout=DEADLINE) as client:
        sandbox = await client.create_sandbox(
            cluster.images.bare, sandbox_id="kept", idempotency_key="the-create", **SMALL
        )
        command = "echo begun; while [ ! -e /tmp/end ]; do sleep 0.1; done; echo ended"
        job = await sandbox.exec(command, cwd="/", wait=False, idempotency_key="the-job")
        starting = await client.create_sandbox(
            cluster.images.bare, sandbox_id="starting", wait_ready=False, **SMALL
        )
        first.stop(signal.SIGKILL)
        second = orchestrator(port=first.port, **SETTINGS)
        assert second.url == first.url
        again = await client.create_sandbox(
            cluster.images.bare, sandbox_id="kept", idempotency_key="the-create", **SMALL
        )
        assert again.sandbox_id == "kept"
        same = await again.exec(command, cwd="/", wait=False, idempotency_key="the-job")
        assert same.job_id == job.job_id, "it does not run twice"
        await again.upload_content(b"", "/tmp/end")
        done = await again.wait_job(job.job_id)
        assert (done.status, done.stdout) == (JobStatus.SUCCEEDED, "begun\nended\n")
        await eventually(lambda: _ready(starting))
        await asyncio.gather(sandbox.delete(), starting.delete())


async def _ready(sandbox: Any) -> bool:
    info = await sandbox.status()
    assert info.status is not SandboxStatus.FAILED, info
    return bool(info.ready)


@pytest.fixture(scope="module")
def shared(cluster: Cluster) -> Iterator[str]:
    """A namespace for the tests of two orchestrators with a warm pool."""
    with new_namespace(cluster) as name:
        yield name
        # Orchestrators leave their warm Pods to their successors; here are none.
        cluster.kubectl("delete", "pods", "-l", "orchard/warm", "-n", name, "--grace-period=0", "--force")


@pytest.fixture(scope="module")
def services(
    cluster: Cluster, shared: str, agent_secret: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Service, Service]]:
    pool = {cluster.images.bare: {"count": 3, "cpu": "250m", "memory": "64Mi"}}
    options = {"settings": {**SETTINGS, "warm": pool}}
    place = tmp_path_factory.mktemp("two")
    with (
        serving(cluster, shared, agent_secret, place, **options) as one,
        serving(cluster, shared, agent_secret, place, **options) as two,
    ):
        yield one, two


@pytest.fixture
async def clients(services: tuple[Service, Service]) -> AsyncIterator[list[Any]]:
    async with services[0].client(timeout=DEADLINE) as one, services[1].client(timeout=DEADLINE) as two:
        yield [one, two]


class TestTwo:
    @pytest.fixture(autouse=True)
    async def full_pool(self, cluster: Cluster, shared: str, clients: Any) -> None:  # noqa: ARG002
        """All warm Pods wait."""

        async def full() -> bool:
            pods = await asyncio.to_thread(cluster.get, "pods", shared)
            marks = [pod["metadata"] for pod in pods if "orchard/warm" in pod["metadata"]["labels"]]
            return (
                sum("orchard/introduced" in mark["annotations"] for mark in marks if "annotations" in mark)
                == 3
            )

        await eventually(full)

    async def test_creates_that_race_make_one_sandbox(
        self, cluster: Cluster, shared: str, clients: list[Any]
    ) -> None:
        wanted = {"image": cluster.images.bare, "cpu": "250m", "memory": "64Mi", "wait_ready": False}
        for number in range(3):
            options = {**wanted, "sandbox_id": None if number else "raced", "idempotency_key": f"k{number}"}
            made = await asyncio.gather(*(client.create_sandbox(**options) for client in clients * 3))
            assert len({sandbox.sandbox_id for sandbox in made}) == 1
            sandbox_id = made[0].sandbox_id
            pods = cluster.get("pods", shared)
            labels = [pod["metadata"]["labels"].get("sandbox-id") for pod in pods]
            assert labels.count(sandbox_id) == 1
            await made[0].delete()
            with pytest.raises(SandboxNotFound):
                await clients[1].get_sandbox(sandbox_id)

    async def test_an_id_is_given_once(self, cluster: Cluster, clients: list[Any]) -> None:
        for size in ("64Mi", "65Mi"):  # warm Pods, and Pods of their own
            results = await asyncio.gather(
                *(
                    client.create_sandbox(
                        cluster.images.bare, sandbox_id="once", cpu="250m", memory=size, wait_ready=False
                    )
                    for client in clients * 2
                ),
                return_exceptions=True,
            )
            made = [result for result in results if not isinstance(result, BaseException)]
            assert len(made) == 1
            assert sum(isinstance(result, SandboxConflict) for result in results) == 3
            await made[0].delete()

    async def test_a_warm_pod_is_claimed_once_and_works_on_both(
        self, cluster: Cluster, shared: str, clients: list[Any]
    ) -> None:
        wanted = {"cpu": "0.25", "memory": "64Mi", "timeout": 60}
        made = await asyncio.gather(
            *(client.create_sandbox(cluster.images.bare, **wanted) for client in (clients * 2)[:3])
        )
        infos = [await sandbox.status() for sandbox in made]
        assert len({info.pod_name for info in infos}) == 3
        assert Counter(info.pod_name.split("-")[0] for info in infos) == {"warm": 3}
        for sandbox in made:
            job = await sandbox.exec("echo $((6 * 7))", cwd="/", wait=False)
            assert job.job_id.startswith(f"{sandbox.sandbox_id}.")
            elsewhere = await clients[1].get_sandbox(sandbox.sandbox_id)
            done = await elsewhere.wait_job(job.job_id)
            assert (done.stdout, done.sandbox_id, done.job_id) == ("42\n", sandbox.sandbox_id, job.job_id)
        await asyncio.gather(*(sandbox.delete() for sandbox in made))
        assert not set(cluster.sandboxes(shared)) & {info.pod_name for info in infos}
        assert [lease["metadata"]["name"] for lease in cluster.get("leases", shared)] == [
            "orchard-orchestrator"
        ]

    async def test_what_one_learns_the_other_knows(self, cluster: Cluster, clients: list[Any]) -> None:
        one, two = clients
        here = await one.create_sandbox(cluster.images.bare, **SMALL)
        there = await two.get_sandbox(here.sandbox_id)
        assert (await there.exec("echo hi", cwd="/")).stdout == "hi\n"
        await here.delete()
        for call in (there.status, there.heartbeat, lambda: there.exec("true", cwd="/")):
            with pytest.raises(SandboxNotFound):
                await call()


async def test_when_the_leader_dies_another_cleans_up(
    cluster: Cluster, namespace: str, orchestrator: Start
) -> None:
    services = [orchestrator(**SETTINGS) for _ in range(2)]

    async def led() -> bool:
        return bool(await asyncio.to_thread(leader, cluster, namespace))

    await eventually(led)
    first = leader(cluster, namespace)
    log = [service for service in services if "leading" in service.log.read_text()]
    assert len(log) == 1, "one leads"
    other = next(service for service in services if service is not log[0])
    async with other.client(timeout=DEADLINE) as client:
        await client.create_sandbox(cluster.images.bare, wait_ready=False, ttl_seconds=1, **SMALL)
        log[0].stop(signal.SIGKILL)

        async def empty() -> bool:
            return not await asyncio.to_thread(cluster.sandboxes, namespace)

        await eventually(empty)
    assert leader(cluster, namespace) not in ("", first)


async def test_another_secret_is_no_reason_to_give_a_sandbox_up(
    cluster: Cluster, namespace: str, orchestrator: Start, tmp_path: Path
) -> None:
    service = orchestrator(**SETTINGS)
    with serving(
        cluster, namespace, "another secret of more than 32 characters", tmp_path, settings=SETTINGS
    ) as wrong:
        async with (
            service.client(timeout=DEADLINE) as client,
            aiohttp.ClientSession(headers={"X-API-Key": KEY}) as stranger,
        ):
            sandbox = await client.create_sandbox(cluster.images.bare, **SMALL)
            url = f"{wrong.url}/sandboxes/{sandbox.sandbox_id}/exec"
            async with stranger.post(url, json={"command": "true", "cwd": "/"}) as reply:
                assert (reply.status, "another agent secret" in await reply.text()) == (503, True)
            assert (await sandbox.exec("echo alive", cwd="/")).stdout == "alive\n"
            await sandbox.delete()


async def health(service: Service) -> int:
    """The status of one question, which the client would repeat."""
    async with aiohttp.ClientSession() as session, session.get(f"{service.url}/health") as reply:
        return reply.status


class Wire:
    """A way to the API server that can be cut."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._open: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self.port = 0

    async def mend(self) -> None:
        """Let connections through."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    def cut(self) -> None:
        """End all connections and take no more."""
        assert self._server is not None
        self._server.close()
        for writer in list(self._open):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        other_reader, other_writer = await asyncio.open_connection(*self._target)
        self._open |= {writer, other_writer}
        await asyncio.gather(self._copy(reader, other_writer), self._copy(other_reader, writer))
        self._open -= {writer, other_writer}

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass  # that is what it is for
        finally:
            writer.close()


@asynccontextmanager
async def wired(cluster: Cluster, namespace: str, place: Path) -> AsyncIterator[tuple[Wire, str]]:
    """A Wire, and a kubeconfig of the orchestrator's account that goes over it."""
    file = kubeconfig_of(cluster, namespace, place)
    config = json.loads(file.read_text())
    settings = config["clusters"][0]["cluster"]
    server = urlsplit(settings["server"])
    wire = Wire(str(server.hostname), server.port or 443)
    await wire.mend()
    settings["server"] = f"https://127.0.0.1:{wire.port}"
    if not settings.get("insecure-skip-tls-verify"):
        settings["tls-server-name"] = server.hostname
    file.write_text(json.dumps(config))
    try:
        yield wire, str(file)
    finally:
        wire.cut()


async def test_without_the_api_server_sandboxes_work_and_waits_stay(
    cluster: Cluster, namespace: str, orchestrator: Start, tmp_path: Path
) -> None:
    async with wired(cluster, namespace, tmp_path) as (wire, kubeconfig):
        service = await asyncio.to_thread(lambda: orchestrator(kubeconfig=kubeconfig, **SETTINGS))
        async with service.client(timeout=4 * DEADLINE) as client:
            sandbox = await client.create_sandbox(cluster.images.bare, sandbox_id="there", **SMALL)
            begun = asyncio.create_task(
                client.create_sandbox(cluster.images.bare, sandbox_id="begun", **SMALL)
            )

            async def made() -> bool:
                return "sandbox-begun" in await asyncio.to_thread(cluster.sandboxes, namespace)

            await eventually(made)
            wire.cut()
            assert await health(service) == 503
            assert (await sandbox.exec("echo works", cwd="/")).stdout == "works\n"
            asked = asyncio.create_task(
                client.create_sandbox(cluster.images.bare, sandbox_id="asked", **SMALL)
            )

            async def started() -> bool:
                pods = await asyncio.to_thread(cluster.get, "pods", namespace)
                return all(
                    status.get("started")
                    for pod in pods
                    for status in pod["status"].get("containerStatuses", [{}])
                )

            await eventually(started)
            assert not begun.done(), "nobody can know that it has started"
            await wire.mend()
            for waiting in (begun, asked):
                made_sandbox = await waiting
                assert (await made_sandbox.exec("echo up", cwd="/")).stdout == "up\n"
            cluster.kubectl("delete", "pod", "sandbox-begun", "-n", namespace, "--grace-period=0", "--force")
            running = [sandbox, await client.get_sandbox("asked")]
            await asyncio.gather(*(each.delete() for each in running))
            with pytest.raises((SandboxNotFound, SandboxFailed)):
                await (await begun).exec("true", cwd="/")

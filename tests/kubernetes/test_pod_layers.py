"""Harness programs in Pods: the layer is copied in, checked and read-only, and a program solves a task."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchard.injector.client import AsyncSandboxClient
from orchard.injector.errors import SandboxError, SandboxFailed, SandboxRequestInvalid
from orchard.schemas.events import RolloutFinished, payload
from orchard.schemas.outcomes import ExitStatus
from orchard.streams.server import EmbeddedServer
from orchard.workers import harnesses
from orchard.workers.harnesses.programs.layers import Layer
from orchard.workers.harnesses.programs.record import directory
from tests.attempts_world import world
from tests.kubernetes.conftest import KEY, Cluster, Service
from tests.tiny_tasks import tiny_task
from tests.workers.harnesses.tiny_program import HARNESS, SCRIPT, tiny_archive

SIZES = {"cpu_request_share": 0.02, "memory_request_share": 0.1, "ephemeral_storage_request": "1Mi"}
SMALL: dict[str, Any] = {"cpu": "500m", "memory": "128Mi", "timeout": 60}
FILES = directory("tiny")
FIX = "sed -i 's/left - right/left + right/' arithmetic/mod_1.py"


@pytest.fixture
def layer(tmp_path: Path) -> Layer:
    (tmp_path / "tiny").mkdir()
    return tiny_archive(tmp_path / "tiny")[0]


@pytest.fixture
def image(layer: Layer) -> str:
    """What containerd calls the archive that was loaded."""
    return os.environ.get("TEST_LAYER_IMAGE", f"docker.io/{layer.image}")


async def refused(client: AsyncSandboxClient, image: str, name: str) -> SandboxError:
    with pytest.raises((SandboxFailed, SandboxRequestInvalid)) as caught:
        await client.create_sandbox(image, layers=[name], **SMALL)
    return caught.value


async def test_a_layer_is_there_for_all_commands_and_none_changes_it(
    cluster: Cluster, namespace: str, orchestrator: Callable[..., Service], layer: Layer, image: str
) -> None:
    other = layer.image[:-64] + "0" * 64
    service = orchestrator(**SIZES, layers={layer.image: image, other: image})
    async with service.client() as client:
        assert [one.name for one in await client.list_images()] == [layer.image, other]
        sandbox = await client.create_sandbox(cluster.images.bare, layers=[layer.image], **SMALL)
        assert await sandbox.download_content(f"{FILES}/bin/tiny") == SCRIPT.encode()
        (pod,) = cluster.get("pods", namespace)
        assert "orchard-program" in pod["spec"]["initContainers"][1]["image"]
        tries = ("echo x > bin/tiny", "touch more", "rm bin/tiny", "mount -o remount,rw .", "chmod 777 .")
        for command in tries:
            done = await sandbox.exec(command, cwd=FILES)
            assert done.exit_code != 0, command
        assert (await sandbox.exec("cat bin/tiny", cwd=FILES)).stdout == SCRIPT
        await sandbox.delete()
        differs = await refused(client, cluster.images.bare, other)
        assert differs.reason == "start_failed" and f"{layer.digest} in place of {'0' * 64}" in differs.detail
        unknown = await refused(client, cluster.images.bare, "orchard-program/other:1")
        assert "orchard harness install" in unknown.detail
        for left in await client.list_sandboxes():
            await client.delete_sandbox(left.sandbox_id)


async def test_a_program_solves_a_task_in_a_pod(
    cluster: Cluster,
    nats_server: EmbeddedServer,
    orchestrator: Callable[..., Service],
    layer: Layer,
    image: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    harnesses._built_in.cache_clear()
    monkeypatch.setitem(harnesses._HARNESSES, "tiny", lambda: HARNESS)
    monkeypatch.setenv("SANDBOX_API_KEY", KEY)
    service = orchestrator(**SIZES, layers={layer.image: image})
    async with world(nats_server.url, service.url, tmp_path / "store", (FIX,)) as place:
        task = tiny_task(1, image=cluster.images.full)
        (rollout,) = await place.submit(task, harnesses=("tiny",), max_tries=1)
        async with place.working():
            data = payload((await place.outcomes(rollout))[rollout])
    assert isinstance(data, RolloutFinished), data
    assert (data.exit_status, data.reward, data.turns) == (ExitStatus.FINISHED, 1.0, 2)
    assert (data.harness_version, data.harness_digest) == ("1.0", layer.digest)

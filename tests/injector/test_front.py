"""Several services behind one address: all works by a sandbox's id, and one that is down costs its own."""

import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp
import pytest

from orchard.injector.client import AsyncSandboxClient
from orchard.injector.errors import (
    SandboxConflict,
    SandboxNotFound,
    SandboxRequestInvalid,
    SandboxUnavailable,
    SandboxUnsupported,
)
from orchard.injector.front.upstreams import FrontSettings, Upstreams, UpstreamSettings, load
from orchard.schemas.sandboxes import Amounts

if TYPE_CHECKING:
    from tests.injector.conftest import Service

SMALL = {"cpu": "1", "memory": "64Mi"}
DEADLINE = 60.0


class Fleet:
    """Two services and a front before them."""

    def __init__(self, place: Path, one: "Service", two: "Service") -> None:
        self.services = {"one": one, "two": two}
        file = place / "front.toml"
        file.write_text(
            "".join(f'[upstreams.{name}]\nurl = "{each.url}"\n' for name, each in self.services.items())
        )
        port = place / "front.port"
        line = [
            sys.executable,
            "-m",
            "orchard.injector.front",
            "--upstreams",
            str(file),
            "--port-file",
            str(port),
        ]
        self.process = subprocess.Popen(line)
        deadline = time.monotonic() + DEADLINE
        while not port.exists():
            assert self.process.poll() is None and time.monotonic() < deadline, "the front serves"
            time.sleep(0.02)
        self.url = f"http://127.0.0.1:{port.read_text().strip()}"

    def client(self, **options: object) -> AsyncSandboxClient:
        return AsyncSandboxClient(self.url, **options)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory, start_service: "type[Service]") -> Iterator[Fleet]:
    place = tmp_path_factory.mktemp("front")
    services = [start_service(place / name / "state") for name in ("one", "two")]
    running = Fleet(place, *services)
    yield running
    running.process.terminate()
    assert running.process.wait(DEADLINE) == 0
    for service in services:
        service.stop()


@pytest.fixture
async def client(fleet: Fleet) -> AsyncIterator[AsyncSandboxClient]:
    async with fleet.client() as client:
        yield client


async def test_a_sandbox_is_used_by_its_id_whatever_is_asked(client: AsyncSandboxClient) -> None:
    sandbox = await client.create_sandbox("host", **SMALL)
    assert sandbox.sandbox_id.partition("-")[0] in ("one", "two")
    assert (await sandbox.exec("cat; exit 3", stdin="in")).exit_code == 3
    job = await sandbox.exec("echo later", wait=False)
    assert (await sandbox.wait_job(job.job_id)).stdout == "later\n"
    content = bytes(range(256)) * 5000
    await sandbox.upload_content(content, "/workspace/f\udcff")
    assert await sandbox.download_content("/workspace/f\udcff") == content
    async with await sandbox.exec(["sh", "-c", "read x; echo got $x"], pty=True) as shell:
        await shell.write_stdin("word\n")
        assert await shell.wait() == 0
        assert b"got word" in await shell.read_all()
    (fork,) = await sandbox.fork()
    assert fork.sandbox_id.partition("-")[0] == sandbox.sandbox_id.partition("-")[0]
    assert await fork.download_content("/workspace/f\udcff") == content
    assert {sandbox.sandbox_id, fork.sandbox_id} <= {one.sandbox_id for one in await client.list_sandboxes()}
    assert len((await client.resources()).nodes) == 2
    await sandbox.delete()
    with pytest.raises(SandboxNotFound):
        await sandbox.status()


async def test_a_creation_that_is_repeated_makes_no_second_one(client: AsyncSandboxClient) -> None:
    made = [await client.create_sandbox("host", **SMALL, idempotency_key="again") for _ in range(3)]
    assert len({one.sandbox_id for one in made}) == 1


async def test_an_id_is_taken_on_all_services(client: AsyncSandboxClient) -> None:
    await client.create_sandbox("host", **SMALL, sandbox_id="mine")
    with pytest.raises(SandboxConflict):
        await client.create_sandbox("host", **SMALL, sandbox_id="mine")


async def test_what_is_not_routed_says_so(client: AsyncSandboxClient) -> None:
    with pytest.raises(SandboxNotFound):
        await client.get_sandbox("three-abc")
    with pytest.raises(SandboxUnsupported, match="one at http"):
        await client.list_images()


async def test_one_that_is_down_loses_only_its_own(fleet: Fleet) -> None:
    async with fleet.client(retry_seconds=1.0) as client:
        held = [
            await client.create_sandbox("host", **SMALL, sandbox_id=f"{name}-kept") for name in ("one", "two")
        ]
        fleet.services["one"].kill()
        with pytest.raises(SandboxUnavailable, match="no answer from one"):
            await held[0].exec("true")
        assert (await held[1].exec("echo fine")).stdout == "fine\n"
        made = [await client.create_sandbox("host", **SMALL) for _ in range(3)]
        assert {one.sandbox_id.partition("-")[0] for one in made} == {"two"}
        assert (await client.health()).status == "healthy"
        fleet.services["one"].start()
        assert (await held[0].exec("echo back")).stdout == "back\n", "its agent kept it"


async def test_the_most_room_comes_first_and_what_was_made_counts() -> None:
    settings = FrontSettings(upstreams={name: UpstreamSettings(url="http://x") for name in ("a", "b", "c")})
    async with aiohttp.ClientSession() as session:
        upstreams = Upstreams(settings, session, None)
        large, small, _ = upstreams.all
        large.room, small.room = Amounts(cpu=8, memory_bytes=2 << 30), Amounts(cpu=9, memory_bytes=1 << 30)
        assert [one.name for one in upstreams.up] == ["a", "b"], "c does not answer"
        large.took("1", "1536Mi")
        assert [one.name for one in upstreams.up] == ["b", "a"]


@pytest.mark.parametrize("text", ["", "[upstreams.Large]\nurl = 'http://x'\n", "[upstreams.a]\n", "x = 1\n"])
def test_settings_that_cannot_work_name_the_file(tmp_path: Path, text: str) -> None:
    file = tmp_path / "front.toml"
    file.write_text(text)
    with pytest.raises(SandboxRequestInvalid, match=r"front\.toml"):
        load(file)

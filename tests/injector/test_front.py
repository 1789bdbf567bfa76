"""Several services behind one address: all works by a sandbox's id, and one that is down costs its own."""

from collections import Counter
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
from tests.injector.front import FrontProcess

if TYPE_CHECKING:
    from tests.injector.conftest import Service

SMALL = {"cpu": "1", "memory": "64Mi"}


class Fleet:
    """Two services and a front before them."""

    def __init__(self, place: Path, services: "dict[str, Service]") -> None:
        self.services = services
        self.front = FrontProcess(place, {name: each.url for name, each in services.items()})

    def client(self, **options: object) -> AsyncSandboxClient:
        return AsyncSandboxClient(self.front.url, **options)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory, start_service: "type[Service]") -> Iterator[Fleet]:
    place = tmp_path_factory.mktemp("front")
    running = Fleet(place, {name: start_service(place / name / "state") for name in ("one", "two")})
    yield running
    running.front.stop()
    for service in running.services.values():
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
        await client.get_sandbox("nobody")
    with pytest.raises(SandboxUnsupported, match="one at http"):
        await client.list_images()


async def test_pages_of_others_are_refused_as_by_a_service(fleet: Fleet) -> None:
    async with aiohttp.ClientSession(fleet.front.url) as session:
        rebound = await session.get("/sandboxes", headers={"Host": "page.example"})
        foreign = await session.post("/sandboxes", headers={"Origin": "https://page.example"})
    assert (rebound.status, foreign.status) == (421, 403)


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


@pytest.fixture
async def upstreams() -> AsyncIterator[Upstreams]:
    settings = FrontSettings(upstreams={name: UpstreamSettings(url="http://x") for name in ("a", "b", "c")})
    async with aiohttp.ClientSession() as session:
        made = Upstreams(settings, session, None)
        made.all[0].room = Amounts(cpu=64, memory_bytes=30 << 30)
        made.all[1].room = Amounts(cpu=64, memory_bytes=10 << 30)
        yield made


def first_choices(upstreams: Upstreams, memory: str) -> Counter[str]:
    return Counter(upstreams.by_room("1", memory, f"key {number}")[0].name for number in range(1000))


async def test_creations_are_shared_by_free_memory_and_a_key_has_one_place(upstreams: Upstreams) -> None:
    shares = first_choices(upstreams, "1Gi")
    assert 700 < shares["a"] < 800 and shares["c"] == 0, "three quarters; c does not answer"
    assert first_choices(upstreams, "1Gi") == shares


async def test_one_without_room_comes_last_and_what_was_made_counts(upstreams: Upstreams) -> None:
    assert first_choices(upstreams, "20Gi") == {"a": 1000}
    upstreams.all[0].took("1", "25Gi")
    assert first_choices(upstreams, "8Gi") == {"b": 1000}
    assert [one.name for one in upstreams.by_room("1", "8Gi", "key")] == ["b", "a"]


@pytest.mark.parametrize("text", ["", "[upstreams.Large]\nurl = 'http://x'\n", "[upstreams.a]\n", "x = 1\n"])
def test_settings_that_cannot_work_name_the_file(tmp_path: Path, text: str) -> None:
    file = tmp_path / "front.toml"
    file.write_text(text)
    with pytest.raises(SandboxRequestInvalid, match=r"front\.toml"):
        load(file)

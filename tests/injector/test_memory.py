"""Neither the agent nor the orchestrator keeps more and more for a sandbox that lives long.

Objects are counted by kind, before and after requests; `make bench-sandboxes` measures the bytes.
"""

import asyncio
import gc
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import ClientSession
from aiohttp.test_utils import TestServer

from orchard.injector.agent.errors import NotFound
from orchard.injector.agent.jobs import RETAINED_JOBS, OutputForgotten, SandboxJobs, TrackedJob
from orchard.injector.agent.spawning import Entrance
from orchard.injector.client import AsyncSandbox
from orchard.injector.errors import SandboxConflict, SandboxNotFound
from orchard.injector.local.backend import LocalBackend
from orchard.injector.orchestrator.app import Orchestrator
from orchard.injector.orchestrator.keys import Keys

if TYPE_CHECKING:
    from tests.injector.conftest import Service

REQUESTS = 200


class InstantSpawner:
    """Every command succeeds as soon as it was started."""

    async def enter(
        self, _name: str, _entrance: Entrance, *, report: Callable[[int, None], None], **_: Any
    ) -> None:
        asyncio.get_running_loop().call_soon(report, 0, None)


class QuietMachine:
    """A machine of which nothing is asked."""

    entrance = Entrance(pidfd=None, cgroups=())
    environment: dict[str, str] = {}  # noqa: RUF012
    working_directory = "/"
    user = ""

    def oom_kills(self) -> int:
        return 0


def kinds() -> Counter[str]:
    """How many objects of each kind there are; frames of running coroutines come and go."""
    gc.collect()
    return Counter(type(one).__qualname__ for one in gc.get_objects())


def grown(before: Counter[str], after: Counter[str]) -> dict[str, int]:
    """Kinds of which every request left one or more."""
    return {kind: more for kind, more in (after - before).items() if more >= REQUESTS}


async def run(jobs: SandboxJobs, number: int) -> TrackedJob:
    job = await jobs.start({"command": "x" * 1000, "stdin": "y" * 10_000}, f"key-{number}")
    await job.done.wait()
    return job


async def test_of_a_long_life_the_newest_jobs_are_kept() -> None:
    jobs = SandboxJobs("s", InstantSpawner(), QuietMachine())  # type: ignore[arg-type]
    made = [(await run(jobs, number)).job_id for number in range(RETAINED_JOBS + 50)]
    before = kinds()
    for _ in range(REQUESTS):
        made.append((await run(jobs, len(made))).job_id)
    assert grown(before, kinds()) == {}
    newest, oldest = made[-RETAINED_JOBS:], made[:-RETAINED_JOBS]
    assert [jobs.get(job_id).status for job_id in newest] == ["succeeded"] * RETAINED_JOBS
    for job_id in oldest:
        with pytest.raises(NotFound, match="newest 1000 are kept"):
            jobs.get(job_id)


async def test_a_job_that_somebody_reads_is_kept() -> None:
    jobs = SandboxJobs("s", InstantSpawner(), QuietMachine())  # type: ignore[arg-type]
    first = await run(jobs, 0)
    with first.kept():
        for number in range(RETAINED_JOBS + 10):
            await run(jobs, number + 1)
        assert jobs.get(first.job_id) is first
    await run(jobs, RETAINED_JOBS + 20)
    with pytest.raises(NotFound):
        jobs.get(first.job_id)


@pytest.mark.long
async def test_a_command_never_runs_again_even_when_its_job_is_no_longer_kept(sandbox: AsyncSandbox) -> None:
    once = {"idempotency_key": "once"}
    first = await sandbox.exec("echo ran >> count", **once)  # type: ignore[call-overload]
    left = iter(range(RETAINED_JOBS))

    async def slot() -> None:
        for _ in left:
            assert (await sandbox.exec(["true"])).succeeded

    await asyncio.gather(*(slot() for _ in range(8)))
    with pytest.raises(SandboxConflict) as forgotten:
        await sandbox.exec("echo ran >> count", **once)  # type: ignore[call-overload]
    assert forgotten.value.reason == OutputForgotten.reason
    with pytest.raises(SandboxNotFound):
        await sandbox.get_job(first.job_id)
    assert (await sandbox.exec("cat count")).stdout == "ran\n"


@pytest.mark.long
async def test_the_orchestrator_keeps_nothing_of_a_request(service: "Service") -> None:
    app = Orchestrator(LocalBackend(service.state, start_agent=False), Keys([])).application()
    async with TestServer(app) as server, ClientSession(server.make_url("/")) as http:
        made = await (await http.post("/sandboxes", json={"image": "host"})).json()
        path = f"/sandboxes/{made['sandbox_id']}"
        await http.get(f"{path}/wait")

        async def requests(count: int) -> None:
            for _ in range(count):
                async with http.post(f"{path}/exec", json={"command": ["true"], "wait": True}) as reply:
                    assert (await reply.json())["exit_code"] == 0
                async with http.get(f"{path}/files", params={"path": "/nothing"}) as reply:
                    assert reply.status == 404

        await requests(20)
        before = kinds()
        await requests(REQUESTS)
        assert grown(before, kinds()) == {}
        await http.delete(path)

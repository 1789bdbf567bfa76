"""Any replica may answer any request: what one was asked, the other knows."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import pytest

from orchard.injector.client import AsyncSandbox, AsyncSandboxClient
from orchard.injector.errors import SandboxConflict, SandboxFailed, SandboxNotFound
from orchard.injector.results import JobResult
from tests.contract.deployment import Deployment
from tests.contract.fixtures import LIMIT, READY, create

Pair = tuple[AsyncSandboxClient, AsyncSandboxClient]


@pytest.fixture
async def pair(service: Deployment) -> AsyncIterator[Pair]:
    """A client of each of two replicas."""
    async with AsyncExitStack() as stack:
        first, second = [
            await stack.enter_async_context(AsyncSandboxClient(url, api_key=service.api_key))
            for url in service.urls[:2]
        ]
        yield first, second


async def _same(sandbox: AsyncSandbox, client: AsyncSandboxClient) -> AsyncSandbox:
    return await client.get_sandbox(sandbox.sandbox_id)


async def test_replicas_a_wait_at_one_ends_with_what_happens_at_the_other(
    pair: Pair, service: Deployment
) -> None:
    one, two = pair
    made = await one.create_sandbox(
        service.image, cpu="1", memory="256Mi", labels={"of": "pair"}, wait_ready=False
    )
    ready = await two._ready(made.sandbox_id, READY)
    assert ready.ready and ready.labels == {"of": "pair"}
    assert {info.sandbox_id for info in await two.list_sandboxes({"of": "pair"})} == {made.sandbox_id}


async def test_replicas_a_job_of_one_is_waited_for_and_cancelled_at_the_other(
    pair: Pair, service: Deployment
) -> None:
    first, second = await cancelled_at_the_other(pair, service)
    assert first == second
    assert (first.status, first.error) == ("failed", "cancelled")


async def cancelled_at_the_other(pair: Pair, service: Deployment) -> tuple[JobResult, JobResult]:
    """What each replica says of a job that was started at the first and cancelled at the second."""
    one = await create(pair[0], service.image)
    two = await _same(one, pair[1])
    job_id = await one.start("echo begun; sleep 1013", timeout_seconds=2000)
    waiting = asyncio.create_task(one.wait_job(job_id))
    assert (await two.get_job(job_id)).status == "running"
    await two.cancel_job(job_id)
    async with asyncio.timeout(LIMIT):
        return await waiting, await two.wait_job(job_id)


async def test_replicas_keys_used_at_one_hold_at_the_other(pair: Pair, service: Deployment) -> None:
    one = await create(pair[0], service.image, idempotency_key="both")
    two = await create(pair[1], service.image, idempotency_key="both")
    assert one.sandbox_id == two.sandbox_id
    with pytest.raises(SandboxConflict):
        await pair[1].create_sandbox(service.image, sandbox_id=one.sandbox_id)
    first = await one.exec("echo ran >> count", idempotency_key="once")
    again = await two.exec("echo ran >> count", idempotency_key="once")
    assert (first.job_id, (await two.exec("cat count")).stdout) == (again.job_id, "ran\n")


async def test_replicas_what_one_writes_the_other_reads(pair: Pair, service: Deployment) -> None:
    one = await create(pair[0], service.image)
    two = await _same(one, pair[1])
    await one.upload_content("written", "/workspace/file")
    assert await two.download_content("/workspace/file") == b"written"
    async with await one.exec("read line; echo $line > /workspace/file; sleep 1014", pty=True) as process:
        await process.write_stdin("typed\n")
        await two.exec("until grep -q typed file; do sleep 0.02; done", timeout_seconds=LIMIT)


async def test_replicas_a_deletion_at_one_is_known_at_the_other(pair: Pair, service: Deployment) -> None:
    one = await create(pair[0], service.image)
    two = await _same(one, pair[1])
    await one.exec("mkfifo begun")
    waiting = asyncio.create_task(two.exec("echo > begun; sleep 1015", timeout_seconds=2000))
    await one.exec("read line < begun")
    await one.delete()
    calls: tuple[Callable[[], Awaitable[object]], ...] = (
        two.status,
        two.heartbeat,
        lambda: two.exec("true"),
        lambda: two.download_content("/workspace/x"),
    )
    async with asyncio.timeout(LIMIT):
        for call in calls:
            with pytest.raises(SandboxNotFound):
                await call()
        try:
            job = await waiting
        except (SandboxNotFound, SandboxFailed) as error:
            assert "delete" in f"{error.reason} {error}" or isinstance(error, SandboxNotFound)
        else:
            assert job.failed and "delete" in str(job.error)

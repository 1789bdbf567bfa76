"""A sandbox as a whole: what it may reach, pauses, snapshots by name; or a refusal that names another way."""

import asyncio

import aiohttp
import pytest

from orchard.injector.client import AsyncSandbox, AsyncSandboxClient
from orchard.injector.errors import SandboxConflict, SandboxNotFound, SandboxUnsupported
from tests.contract.deployment import Deployment
from tests.contract.fixtures import LIMIT, create

TICKING = "i=0; while :; do i=$((i + 1)); echo $i > /workspace/ticks; done"


async def _ticks(sandbox: AsyncSandbox) -> bytes:
    """Read by the agent, so without a process of the sandbox."""
    return await sandbox.download_content("/workspace/ticks")


async def test_states_a_paused_sandbox_stands_still_until_it_is_resumed_or_says_it_cannot(
    sandbox: AsyncSandbox,
) -> None:
    await sandbox.upload_content(b"", "/workspace/ticks")
    ticking = await sandbox.start(TICKING, timeout_seconds=600)
    try:
        await sandbox.pause()
    except SandboxUnsupported as error:
        assert error.status == 501 and "stop its commands" in error.detail
        assert not (await sandbox.status()).paused
        return
    await sandbox.pause()
    assert (await sandbox.status()).paused and (await sandbox.status()).ready
    seen = await _ticks(sandbox)
    for _ in range(20):
        assert await _ticks(sandbox) == seen
    for refused in (sandbox.exec("true"), sandbox.apply_patch("x"), sandbox.exec("true", pty=True)):
        with pytest.raises(SandboxConflict) as conflict:
            await refused
        assert conflict.value.reason == "paused"
    await sandbox.upload_content(b"kept", "/workspace/file")
    await sandbox.resume()
    await sandbox.resume()
    assert not (await sandbox.status()).paused
    async with asyncio.timeout(LIMIT):
        while await _ticks(sandbox) in (b"", seen):
            await asyncio.sleep(0.01)
    assert (await sandbox.exec("cat file")).stdout == "kept"
    assert (await sandbox.get_job(ticking)).status == "running"


async def test_states_a_paused_sandbox_can_be_deleted(
    client: AsyncSandboxClient, sandbox: AsyncSandbox
) -> None:
    await sandbox.start("sleep 1012")
    try:
        await sandbox.pause()
    except SandboxUnsupported:
        return
    async with asyncio.timeout(LIMIT):
        await sandbox.delete()
    assert sandbox.sandbox_id not in {info.sandbox_id for info in await client.list_sandboxes()}


async def test_states_a_sandbox_goes_back_to_any_of_its_snapshots_or_says_it_cannot(
    sandbox: AsyncSandbox,
) -> None:
    assert await sandbox.list_snapshots() == []
    await sandbox.exec("echo one > file")
    try:
        first = await sandbox.take_snapshot("first")
    except SandboxUnsupported as error:
        assert error.status == 501 and "directory" in error.detail
        return
    await sandbox.exec("echo two > file; echo new > other")
    await sandbox.take_snapshot("second")
    assert [snapshot.name for snapshot in await sandbox.list_snapshots()] == ["first", "second"]
    assert first.size == len("one\n") and first.created_at > sandbox.info.created_at
    (fork,) = await sandbox.fork(snapshot="first")
    assert (await fork.exec("cat file; ls")).stdout == "one\nfile\n"
    running = await sandbox.start("echo begun; sleep 1013", timeout_seconds=2000)
    done = await sandbox.exec("echo a result; echo three > file")
    restored = await sandbox.restore("first")
    assert (restored.ready, restored.sandbox_id) == (True, sandbox.sandbox_id)
    assert (await sandbox.exec("cat file; ls; pgrep -f 'sleep 101[3]'")).stdout == "one\nfile\n"
    assert (await sandbox.wait_job(running)).error == "the sandbox was restored"
    assert (await sandbox.get_job(done.job_id)).stdout == "a result\n"
    await sandbox.restore("second")
    assert (await sandbox.exec("cat file other")).stdout == "two\nnew\n"
    await sandbox.exec("echo four > file")
    await sandbox.take_snapshot("second")
    await sandbox.delete_snapshot("first")
    assert [snapshot.name for snapshot in await sandbox.list_snapshots()] == ["second"]
    for missing in (
        sandbox.restore("first"),
        sandbox.delete_snapshot("first"),
        sandbox.fork(snapshot="first"),
    ):
        with pytest.raises(SandboxNotFound, match="there are: second") as error:
            await missing
        assert error.value.reason == "snapshot_missing"
    await sandbox.restore("second")
    assert (await sandbox.exec("cat file")).stdout == "four\n"


async def test_states_a_command_does_not_run_again_because_the_sandbox_was_restored(
    http: aiohttp.ClientSession, sandbox: AsyncSandbox
) -> None:
    try:
        await sandbox.take_snapshot("begin")
    except SandboxUnsupported:
        return
    first = await sandbox.exec("echo ran >> count", idempotency_key="once")
    await sandbox.restore("begin")
    assert (await sandbox.exec("echo ran >> count", idempotency_key="once")).job_id == first.job_id
    assert [entry.name for entry in await sandbox.list_files("/workspace")] == []
    reply = await http.put(f"/sandboxes/{sandbox.sandbox_id}/snapshots", params={"name": "a/b"})
    assert reply.status == 422 and "letters" in (await reply.json())["detail"]


async def test_states_rules_of_what_can_be_reached_are_checked_before_anything_is_made(
    http: aiohttp.ClientSession, service: Deployment
) -> None:
    for wrong in ("no-port.example", "*.example:443", "[::1]:443", "localhost:80"):
        reply = await http.post(
            "/sandboxes", json={"image": service.image, "egress": ["ok.example:1", wrong]}
        )
        (problem,) = (await reply.json())["detail"]
        assert (reply.status, problem["loc"]) == (422, ["body", "egress", 1]), wrong
    both = {"image": service.image, "egress": ["ok.example:1"], "block_network": False}
    reply = await http.post("/sandboxes", json=both)
    assert (reply.status, (await reply.json())["detail"][0]["loc"]) == (422, ["body", "egress"])


async def test_states_an_address_that_may_be_reached_is_all_that_the_sandbox_can_try(
    client: AsyncSandboxClient, service: Deployment
) -> None:
    sandbox = await create(client, service.image, egress=["203.0.113.9:443"])  # type: ignore[arg-type]
    code = "import socket; socket.getaddrinfo('elsewhere.example', 80)"
    asked = await sandbox.exec(["python3", "-c", code], timeout_seconds=LIMIT)
    assert "gaierror" in asked.stderr


async def test_states_gpus_and_volumes_are_given_as_the_administrator_allows(
    http: aiohttp.ClientSession, service: Deployment
) -> None:
    for wanted in ({"gpus": 1}, {"volumes": {"datasets": "/data"}}):
        reply = await http.post("/sandboxes", json={"image": service.image, **wanted})
        assert reply.status == 422
        said = str((await reply.json())["detail"])
        assert "cluster" in said or "administrator" in said

"""Sandboxes from creation to removal: ids, failures that end the wait at once, expiry, death."""

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from orchard.injector.agent.local.building import NAME
from orchard.injector.client import AsyncSandbox, AsyncSandboxClient
from orchard.injector.errors import (
    SandboxError,
    SandboxFailed,
    SandboxNotFound,
)

if TYPE_CHECKING:
    from tests.injector.conftest import Service


def directories(service: "Service", sandbox_id: str) -> bool:
    return (service.state / "sandboxes" / sandbox_id).exists()


def outside_pid(sandbox_id: str) -> int:
    """The sandbox's first process, found from outside by its host name."""
    for path in Path("/proc").glob("[0-9]*"):
        try:
            command = (path / "cmdline").read_text()
        except OSError:
            continue
        if command == f"{NAME}\0sandbox-{sandbox_id}\0":
            return int(path.name)
    raise AssertionError(f"no process of {sandbox_id}")


async def test_a_sandbox_leaves_nothing_behind(service: "Service", client: AsyncSandboxClient) -> None:
    async with await client.create_sandbox("host") as sandbox:
        await sandbox.exec("sleep 1006 & setsid sleep 1006 & touch /usr/bin/new; rm /usr/bin/patch")
        pid = outside_pid(sandbox.sandbox_id)
        groups = [path for path in service.cgroups() if path.name == sandbox.sandbox_id]
        assert groups or os.geteuid() != 0  # control groups are root's
    assert not Path(f"/proc/{pid}").exists()
    assert not directories(service, sandbox.sandbox_id)
    assert not any(path.exists() for path in groups)
    assert Path("/usr/bin/patch").exists() and not Path("/usr/bin/new").exists()


async def test_sandboxes_do_not_see_each_other(client: AsyncSandboxClient) -> None:
    one, two = await asyncio.gather(client.create_sandbox("host"), client.create_sandbox("host"))
    await one.exec("echo mine > /tmp/file; sleep 1007 &")
    found = await two.exec("cat /tmp/file; cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
    assert "mine" not in found.stdout and "sleep 1007" not in found.stdout


async def test_a_missing_image_ends_the_wait_at_once_and_says_how_to_fetch_it(
    client: AsyncSandboxClient,
) -> None:
    async with asyncio.timeout(60):
        with pytest.raises(SandboxFailed, match="orchard images pull no/such:image") as failed:
            await client.create_sandbox("no/such:image", timeout=3600, labels={"of": "nothing"})
    assert failed.value.reason == "image_missing"
    assert await client.list_sandboxes({"of": "nothing"}) == []


async def test_a_failed_sandbox_answers_failed_on_every_route(client: AsyncSandboxClient) -> None:
    sandbox = await client.create_sandbox("no/such:image", wait_ready=False)
    for call in (
        sandbox.exec("true"),
        sandbox.upload_content(b"", "/x"),
        sandbox.download_content("/x"),
        sandbox.list_files("/"),
        sandbox.apply_patch("x"),
        sandbox.snapshot("x:y"),
    ):
        with pytest.raises(SandboxFailed) as failed:
            await call
        assert failed.value.reason == "image_missing"
    info = await sandbox.status()
    assert (info.status, info.ready, info.reason) == ("failed", False, "image_missing")


async def test_the_list_is_filtered_by_labels(client: AsyncSandboxClient) -> None:
    labels = {"campaign": "c", "rollout": "1"}
    one = await client.create_sandbox("host", labels=labels)
    await client.create_sandbox("host", labels={"campaign": "c", "rollout": "2"})
    both = await client.list_sandboxes({"campaign": "c"})
    first = await client.list_sandboxes(labels)
    assert len(both) == 2
    assert [(info.sandbox_id, info.labels) for info in first] == [(one.sandbox_id, labels)]


async def test_delete_ends_running_jobs_and_tells_who_waits(client: AsyncSandboxClient) -> None:
    sandbox = await client.create_sandbox("host")
    await sandbox.exec("mkfifo begun")
    waiting = asyncio.create_task(sandbox.exec("echo > begun; sleep 1008", timeout_seconds=2000))
    await sandbox.exec("read line < begun")
    await sandbox.delete()
    job = await waiting
    assert (job.status, job.error) == ("failed", "the sandbox was deleted")
    with pytest.raises(SandboxNotFound):
        await sandbox.exec("true")


async def test_a_sandbox_without_a_sign_of_life_expires(
    service: "Service", client: AsyncSandboxClient, eventually: Callable[[Callable[[], bool], str], None]
) -> None:
    """Also while a command runs in it: its worker may be long dead."""
    sandbox = await client.create_sandbox("host", ttl_seconds=2.0)
    await sandbox.start("sleep 1009", timeout_seconds=2000)
    await asyncio.to_thread(eventually, lambda: not directories(service, sandbox.sandbox_id), "it expires")
    with pytest.raises(SandboxNotFound):
        await sandbox.exec("true")


async def test_a_worker_killed_while_it_waits_leaves_no_sandbox(
    service: "Service", client: AsyncSandboxClient, eventually: Callable[[Callable[[], bool], str], None]
) -> None:
    """Its broken connection is noticed through the orchestrator; the command goes on until it expires."""
    sandbox = await client.create_sandbox("host", ttl_seconds=2.0)
    code = (
        "import asyncio, sys\nfrom injector.client import AsyncSandboxClient\n"
        "async def main():\n"
        "    sandbox = await AsyncSandboxClient(sys.argv[1]).get_sandbox(sys.argv[2])\n"
        "    await sandbox.exec('echo > /begun; sleep 1014', timeout_seconds=2000)\n"
        "asyncio.run(main())\n"
    )
    await sandbox.exec("mkfifo /begun")
    worker = await asyncio.create_subprocess_exec(sys.executable, "-c", code, service.url, sandbox.sandbox_id)
    await sandbox.exec("read line < /begun")
    worker.kill()
    await worker.wait()
    await asyncio.to_thread(eventually, lambda: not directories(service, sandbox.sandbox_id), "it expires")


async def test_heartbeats_keep_a_sandbox(client: AsyncSandboxClient) -> None:
    kept = await client.create_sandbox("host", ttl_seconds=2.0)
    kept.start_heartbeat(0.1)
    lost = await client.create_sandbox("host", ttl_seconds=2.5)
    while lost.sandbox_id in {info.sandbox_id for info in await client.list_sandboxes()}:
        await asyncio.sleep(0.05)
    assert (await kept.exec("echo alive")).stdout == "alive\n"
    await kept.stop_heartbeat()


async def test_waiting_for_a_command_keeps_a_sandbox(client: AsyncSandboxClient) -> None:
    sandbox = await client.create_sandbox("host", ttl_seconds=2.0)
    assert (await sandbox.exec("sleep 3; echo kept")).stdout == "kept\n"


async def test_a_client_cleans_up_what_it_made(service: "Service") -> None:
    client = service.client()
    sandbox = await client.create_sandbox("host")
    await client.close()
    async with service.client() as other:
        with pytest.raises(SandboxNotFound):
            await other.get_sandbox(sandbox.sandbox_id)


async def test_every_error_is_a_sandbox_error(client: AsyncSandboxClient, sandbox: AsyncSandbox) -> None:
    for call in (client.get_sandbox("nobody"), sandbox.get_job("nobody.123"), sandbox.get_job("nonsense")):
        with pytest.raises(SandboxError):
            await call

"""What a job prints, followed while it runs."""

from typing import TYPE_CHECKING

import aiohttp
import pytest

from orchard import Exit, Output, SandboxClient
from orchard.injector.agent.output import BoundedOutput
from orchard.injector.client import AsyncSandbox, AsyncSandboxClient
from orchard.injector.errors import SandboxNotFound, SandboxRequestInvalid
from orchard.schemas.sandboxes import JobStatus

if TYPE_CHECKING:
    from tests.injector.conftest import Service


async def test_output_comes_while_the_command_runs_and_the_exit_last(sandbox: AsyncSandbox) -> None:
    await sandbox.exec("mkfifo gate")
    job = await sandbox.exec("echo begun; echo odd >&2; read line < gate; echo $line; exit 3", wait=False)
    seen: dict[str, bytes] = {"stdout": b"", "stderr": b""}
    last: Exit | None = None
    async for event in sandbox.follow(job.job_id):
        if isinstance(event, Exit):
            assert last is None
            last = event
            continue
        seen[event.stream] += event.data
        if seen == {"stdout": b"begun\n", "stderr": b"odd\n"}:  # so it is not done: it waits for this
            await sandbox.exec("echo opened > gate")
    assert seen == {"stdout": b"begun\nopened\n", "stderr": b"odd\n"}
    assert last is not None
    assert (last.status, last.exit_code, last.error, last.offset) == (JobStatus.FAILED, 3, None, "13.4")


async def test_it_goes_on_at_an_offset(sandbox: AsyncSandbox) -> None:
    job = await sandbox.exec("printf 0123456789; printf abc >&2")
    for offset, out, err in (("4.1", b"456789", b"bc"), ("10.3", b"", b""), ("99.99", b"", b"")):
        events = [event async for event in sandbox.follow(job.job_id, offset)]
        pieces = [event for event in events if isinstance(event, Output)]
        assert b"".join(one.data for one in pieces if one.stream == "stdout") == out
        assert b"".join(one.data for one in pieces if one.stream == "stderr") == err
        assert isinstance(events[-1], Exit) and events[-1].exit_code == 0
    for offset in ("", "1", "a.b", "1.2.3", "-1.0"):
        with pytest.raises(SandboxRequestInvalid, match="offset"):
            await anext(sandbox.follow(job.job_id, offset))
    with pytest.raises(SandboxNotFound):
        await anext(sandbox.follow(f"{sandbox.sandbox_id}.none"))


async def test_what_was_not_kept_is_said(sandbox: AsyncSandbox) -> None:
    job = await sandbox.exec("seq 100000", output_limit=2048)
    events = [event async for event in sandbox.follow(job.job_id)]
    pieces = [event for event in events if isinstance(event, Output)]
    assert sum(len(one.data) + one.skipped for one in pieces) == job.stdout_bytes == 588895
    assert pieces[0].text.startswith("1\n2\n") and pieces[-1].text.endswith("100000\n")
    assert sum(one.skipped for one in pieces) > 500_000


@pytest.mark.long
async def test_who_follows_outlives_an_orchestrator_that_is_killed(own_service: "Service") -> None:
    async with own_service.client() as client:
        sandbox = await client.create_sandbox("host")
        await sandbox.exec("mkfifo gate")
        job = await sandbox.exec("echo one; read line < gate; echo $line", wait=False)
        seen = b""
        async for event in sandbox.follow(job.job_id):
            if isinstance(event, Exit):
                break
            seen += event.data
            if seen == b"one\n":
                own_service.kill()
                own_service.start()
                await sandbox.exec("echo two > gate")
        assert seen == b"one\ntwo\n"


async def test_the_end_of_the_sandbox_is_the_end_of_the_job(client: AsyncSandboxClient) -> None:
    sandbox = await client.create_sandbox("host")
    job = await sandbox.exec("echo here; sleep 1000", wait=False)
    events: list[Output | Exit] = []
    async for event in sandbox.follow(job.job_id):
        events.append(event)
        if isinstance(event, Output):
            await sandbox.delete()
    assert isinstance(events[-1], Exit) and "deleted" in (events[-1].error or "")


async def test_on_the_wire_it_is_server_sent_events(service: "Service", sandbox: AsyncSandbox) -> None:
    job = await sandbox.exec("printf hi")
    async with aiohttp.ClientSession(service.url) as http:
        reply = await http.get(f"/jobs/{job.job_id}/events")
        assert (reply.status, reply.content_type) == (200, "text/event-stream")
        first, last, rest = (await reply.text()).split("\n\n")
    assert first == 'id: 2.0\nevent: stdout\ndata: {"data":"aGk="}'
    assert last.startswith('id: 2.0\nevent: exit\ndata: {"status":"succeeded","exit_code":0,') and not rest


def test_blocking_code_follows_too(service: "Service") -> None:
    with SandboxClient(service.url) as client, client.create_sandbox("host") as sandbox:
        job = sandbox.exec("echo a; echo b", wait=False)
        events = list(sandbox.follow(job.job_id))
    assert b"".join(one.data for one in events if isinstance(one, Output)) == b"a\nb\n"
    assert isinstance(events[-1], Exit)


def test_reading_bounded_output_from_anywhere() -> None:
    output = BoundedOutput(20)
    for number in range(100):
        output.add(b"%02d" % number)
    whole = b"".join(b"%02d" % number for number in range(100))
    for offset in range(210):
        place, data = output.read(offset, 7)
        assert place >= offset and data == whole[place : place + len(data)]
        assert data or offset >= 200

"""A file that takes no room in its sandbox must not take any elsewhere: sizes are looked at, and counted."""

import asyncio
import io
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import msgspec
import pytest
from aiohttp import web

from orchard.injector.agent import directories, files
from orchard.injector.agent.errors import RequestInvalid
from orchard.injector.client import AsyncSandbox, AsyncSandboxClient
from orchard.injector.errors import SandboxFileTooLarge
from orchard.schemas.sandboxes import FileContent, SandboxInfo, SandboxStatus
from orchard.schemas.tasks import StateCheck, Task
from orchard.workers.episode.machine import FileTooLarge
from orchard.workers.episode.patches import LARGEST_DIFF, state_left_behind
from orchard.workers.episode.sandboxes import SandboxMachine
from tests.injector.conftest import Service

MIB = 1024 * 1024
HOLE = 300 * MIB


def peak(pid: int) -> int:
    """The most memory that a process had so far, in bytes."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


@pytest.fixture
async def hole(sandbox: AsyncSandbox) -> str:
    assert (await sandbox.exec(f"truncate -s {HOLE} hole")).succeeded
    return "/workspace/hole"


async def test_a_file_as_json_passes_through_the_orchestrator(
    service: Service, sandbox: AsyncSandbox
) -> None:
    size = 128 * MIB
    assert (await sandbox.exec(f"truncate -s {size} hole")).succeeded
    before = peak(service.process.pid), peak(service.agent_pid)
    received = 0
    async with (
        aiohttp.ClientSession(service.url) as http,
        http.get(f"/sandboxes/{sandbox.sandbox_id}/files", params={"path": "/workspace/hole"}) as reply,
    ):
        assert reply.status == 200 and reply.content_type == "application/json"
        async for piece in reply.content.iter_chunked(MIB):
            received += len(piece)
    assert received > size * 4 // 3
    assert peak(service.process.pid) - before[0] < 64 * MIB
    assert peak(service.agent_pid) - before[1] < 64 * MIB


@pytest.mark.parametrize("size", [0, 1, 2, 3, MIB, MIB + 1, 3 * MIB + 2])
async def test_json_in_pieces_is_the_record_that_it_was(
    service: Service, sandbox: AsyncSandbox, size: int
) -> None:
    content = bytes(range(256)) * (size // 256 + 1)
    await sandbox.upload_content(content[:size], '/workspace/of "size"')
    async with aiohttp.ClientSession(service.url) as http:
        params = {"path": '/workspace/of "size"'}
        async with http.get(f"/sandboxes/{sandbox.sandbox_id}/files", params=params) as reply:
            record = await reply.json()
    assert set(record) == set(FileContent.__struct_fields__)
    assert (record["path"], record["size"]) == (params["path"], size)
    assert await sandbox.download_content(params["path"]) == content[:size]


REPOSITORY = "git init -q . && git -c user.email=a@b -c user.name=a commit -qm 1 --allow-empty"
TASK = Task(
    task_id="t",
    source="s",
    repo="r",
    base_commit="HEAD",
    statement="s",
    image="host",
    workdir="/workspace",
    grading=StateCheck(files={}, command="true"),
)
CALLER = """
import asyncio, json, sys
from pathlib import Path
from orchard.injector.client import AsyncSandboxClient
async def main(url, sandbox_id, path):
    async with AsyncSandboxClient(url, auto_cleanup=False) as client:
        sandbox = await client.get_sandbox(sandbox_id)
        said = []
        for call in (
            sandbox.download_content(path),
            sandbox.download_content(path, limit=1 << 20),
            sandbox.download_file(path, "file", limit=1 << 20),
            sandbox.download_directory("/workspace", "directory", limit=1 << 20),
        ):
            try:
                await call
            except Exception as error:
                said.append(type(error).__name__)
    peak = Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]
    print(json.dumps([said, int(peak) * 1024, [path.name for path in Path().iterdir()]]))
asyncio.run(main(*sys.argv[1:]))
"""


async def test_a_caller_is_told_and_takes_nothing(
    service: Service, sandbox: AsyncSandbox, hole: str, tmp_path: Path
) -> None:
    """Every method that reads, in a process of its own, with what it says beforehand by default too."""
    caller = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", CALLER, service.url, sandbox.sandbox_id, hole),
        cwd=tmp_path,
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await caller.communicate()
    said, most, left = json.loads(out)
    assert said == ["SandboxFileTooLarge"] * 4
    assert most < 200 * MIB
    assert left == []


@pytest.mark.long
async def test_the_worker_reads_what_was_left_behind_only_where_it_may_be_a_submission(
    sandbox: AsyncSandbox, hole: str
) -> None:
    machine = SandboxMachine(sandbox)
    with pytest.raises(FileTooLarge, match="more than"):
        await machine.read(hole)
    assert (await sandbox.exec(f"rm hole && {REPOSITORY} && echo text > small")).succeeded
    assert len(await machine.read("/workspace/small", limit=5)) == 5
    left = await state_left_behind(machine, TASK, timeout=60)
    assert "+++ b/small" in left
    await sandbox.exec(f"seq 5000000 > large; [ $(stat -c %s large) -gt {LARGEST_DIFF} ]")
    assert await state_left_behind(machine, TASK, timeout=60) == ""


async def test_what_is_no_file_is_no_failure_of_the_service(sandbox: AsyncSandbox) -> None:
    await sandbox.exec("mkdir d; mkfifo p")
    for path in ("/workspace/d", "/workspace/p", "/workspace/none"):
        with pytest.raises(FileNotFoundError):
            await SandboxMachine(sandbox).read(path)


def test_a_directory_of_too_many_names_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They would all be in the memory of the agent, which all sandboxes share."""
    for number in range(11):
        (tmp_path / str(number)).touch()
    root = os.open(tmp_path, os.O_RDONLY)
    assert len(files.listing(root, "/")) == 11
    monkeypatch.setattr(files, "MOST_ENTRIES", 10)
    monkeypatch.setattr(directories, "MOST_ENTRIES", 10)
    with pytest.raises(RequestInvalid, match="more than 10 entries"):
        files.listing(root, "/")
    with pytest.raises(OSError, match="more than 10 entries"):
        directories.pack(root, io.BytesIO())
    with pytest.raises(RequestInvalid, match="more than 10 entries"):
        directories.insist_packable(root)
    monkeypatch.setattr(directories, "MOST_ENTRIES", 11)
    directories.insist_packable(root)
    directories.pack(root, io.BytesIO())
    os.close(root)


@pytest.fixture
async def endless() -> AsyncIterator[str]:
    """A service that says nothing of sizes and never ends."""

    async def serve(request: web.Request) -> web.StreamResponse:
        archive = request.match_info["what"].startswith("archive")
        reply = web.StreamResponse()
        reply.content_type = "application/x-tar" if archive else "application/octet-stream"
        await reply.prepare(request)
        while True:
            await reply.write(bytes(MIB))

    info = SandboxInfo(
        sandbox_id="s",
        namespace="n",
        image="i",
        pod_name="p",
        block_network=True,
        cpu="1",
        memory="1Gi",
        created_at=0.0,
        ready=True,
        status=SandboxStatus.READY,
    )

    async def describe(_: web.Request) -> web.Response:
        return web.json_response(msgspec.to_builtins(info))

    app = web.Application()
    app.router.add_get("/sandboxes/s", describe)
    app.router.add_get("/sandboxes/s/{what:.*}", serve)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


async def test_bytes_are_counted_whatever_the_service_says(endless: str, tmp_path: Path) -> None:
    async with AsyncSandboxClient(endless, auto_cleanup=False) as client:
        sandbox = await client.get_sandbox("s")
        for call in (
            sandbox.download_content("/f", limit=3 * MIB),
            sandbox.download_file("/f", tmp_path / "f", limit=3 * MIB),
            sandbox.download_directory("/d", tmp_path / "d", limit=3 * MIB),
        ):
            with pytest.raises(SandboxFileTooLarge, match=f"more than {3 * MIB} bytes"):
                await call
    assert not [path for path in tmp_path.iterdir() if path.is_file()]

"""Whatever dies: no sandbox and no job is lost with the orchestrator, none is left behind by the agent."""

import asyncio
import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from orchard.injector.errors import SandboxFailed, SandboxUnavailable
from orchard.schemas.sandboxes import CreateSandbox, ExecRequest, Job
from tests.injector.direct import Direct

if TYPE_CHECKING:
    from tests.injector.conftest import Service

Eventually = Callable[[Callable[[], bool], str], None]


def children(pid: int) -> set[int]:
    """All descendants of a process."""
    found: set[int] = set()
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, path.read_text().split()):
            found |= {child} | children(child)
    return found


def alive(pids: set[int]) -> set[int]:
    """Those that have not ended: one that waits for its parent to ask how is no more."""
    processes = psutil.process_iter(["pid", "status"])
    return {one.pid for one in processes if one.pid in pids and one.info["status"] != psutil.STATUS_ZOMBIE}


async def test_a_service_that_is_away_is_an_error_after_the_deadline(own_service: "Service") -> None:
    own_service.kill()
    async with own_service.client(retry_seconds=0.3, auto_cleanup=False) as client:
        with pytest.raises(SandboxUnavailable, match=own_service.url):
            await client.create_sandbox("host")
    own_service.start()


@pytest.mark.long
async def test_a_killed_agent_takes_its_sandboxes_with_it_and_the_next_one_says_so(
    own_service: "Service", eventually: Eventually
) -> None:
    async with own_service.client() as client:
        sandbox = await client.create_sandbox("host", labels={"a": "b"})
        await sandbox.exec("setsid sleep 1011 & sleep 1011 &")
        doomed = children(own_service.agent_pid)
        assert len(doomed) >= 4
        running = asyncio.create_task(sandbox.exec("sleep 1011", timeout_seconds=2000))
        own_service.kill_agent()
        eventually(lambda: not alive(doomed), "all processes are gone")
        with pytest.raises(SandboxFailed) as failed:
            await running
        assert failed.value.reason == "agent_died"
        info = await sandbox.status()
        assert (info.status, info.reason, info.labels) == ("failed", "agent_died", {"a": "b"})
        left = {path.name for path in (own_service.state / "sandboxes" / sandbox.sandbox_id).iterdir()}
        assert left == {"record.json"}
        assert own_service.cgroups() == []
        assert str(own_service.state) not in Path("/proc/mounts").read_text()
        await sandbox.delete()
        assert await client.list_sandboxes() == []
        assert (await (await client.create_sandbox("host")).exec("true")).succeeded


@pytest.mark.long
async def test_an_agent_that_is_stopped_deletes_everything(own_service: "Service") -> None:
    async with own_service.client(auto_cleanup=False) as client:
        await client.create_sandbox("host")
        processes = {own_service.agent_pid} | children(own_service.agent_pid)
        own_service.stop_agent()
        assert not alive(processes)
        assert list((own_service.state / "sandboxes").iterdir()) == []
        assert own_service.cgroups() == []


def test_an_agent_ends_with_its_owner(tmp_path: Path) -> None:
    """Also when the owner is killed: nothing has to be said to the agent."""
    owner = subprocess.Popen(["sleep", "1012"])
    reader, writer = os.pipe()
    line = [sys.executable, "-m", "orchard.injector.agent", "--state", str(tmp_path / "state")]
    agent = subprocess.Popen(
        [*line, "--parent-pid", str(owner.pid), "--ready-fd", str(writer)], pass_fds=(writer,)
    )
    os.close(writer)
    assert os.read(reader, 1) == b"1"
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    assert agent.wait(timeout=30) == 0


def test_a_second_agent_on_the_same_state_is_refused(own_service: "Service") -> None:
    line = [sys.executable, "-m", "orchard.injector.agent", "--state", str(own_service.state)]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "another agent runs" in done.stderr


async def test_what_its_starter_had_open_is_not_open_in_an_agent(tmp_path: Path) -> None:
    """As a shell leaves it: its pipe ends when it does, and commands find their descriptors."""
    state, (reader, writer), (ended, pipe) = tmp_path / "state", os.pipe(), os.pipe()
    high = fcntl.fcntl(pipe, fcntl.F_DUPFD, 200)
    line = [sys.executable, "-m", "orchard.injector.agent", "--state", str(state), "--ready-fd", str(writer)]
    agent = await asyncio.create_subprocess_exec(*line, pass_fds=(writer, pipe, high))
    for one in (writer, pipe, high):
        os.close(one)
    backend = Direct(state, start_agent=False)
    try:
        assert os.read(reader, 1) == b"1"
        assert os.read(ended, 1) == b""
        await backend.open()
        name = (await backend.create(CreateSandbox(image="host"), None)).sandbox_id
        assert (await backend.wait(name, 60)).ready
        job = await backend.exec(name, ExecRequest(command="echo here", wait=True))
        assert isinstance(job, Job) and job.stdout == "here\n"
    finally:
        await backend.close()
        agent.terminate()
    assert await agent.wait() == 0


HOLDER = """
import fcntl, os, sys
lock = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
fcntl.flock(lock, fcntl.LOCK_EX)
os.write(lock, str(os.getpid()).encode())
if not os.fork():
    sys.stdin.read()
"""


def test_what_a_killed_agent_leaves_for_a_moment_keeps_no_new_one_away(tmp_path: Path) -> None:
    """A process it had started, which the kernel has yet to kill, has the lock with it."""
    state, (reader, writer) = tmp_path / "state", os.pipe()
    state.mkdir()
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, state / "agent.lock"], stdin=subprocess.PIPE, text=True
    )
    assert holder.wait() == 0
    line = [sys.executable, "-m", "orchard.injector.agent", "--state", str(state), "--ready-fd", str(writer)]
    agent = subprocess.Popen(line, pass_fds=(writer,))
    with suppress(subprocess.TimeoutExpired):
        agent.wait(1)  # it would end at once
    assert holder.stdin is not None
    holder.stdin.close()
    os.close(writer)
    assert os.read(reader, 1) == b"1"
    agent.terminate()
    assert agent.wait() == 0


@pytest.mark.long
async def test_an_orchestrator_with_an_external_agent_waits_for_it(
    tmp_path: Path, start_service: "type[Service]"
) -> None:
    """As under `orchard up`, which starts the agent itself, in any order."""
    state = tmp_path / "state"
    orchestrator = start_service(state, "--agent", "external")
    try:
        async with orchestrator.client(retry_seconds=0.0) as client:
            with pytest.raises(SandboxUnavailable):
                await client.health()
        async with orchestrator.client() as client:
            waiting = asyncio.create_task(client.create_sandbox("host"))
            agent = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "orchard.injector.agent", "--state", str(state)
            )
            assert (await (await waiting).exec("true")).succeeded
    finally:
        orchestrator.kill()
        agent.terminate()
        await agent.wait()


async def test_a_state_directory_with_a_long_path(tmp_path: Path, start_service: "type[Service]") -> None:
    """Longer than the path of a unix socket may be."""
    running = start_service(tmp_path / ("x" * 100) / "state")
    try:
        async with running.client() as client:
            assert (await (await client.create_sandbox("host")).exec("true")).succeeded
    finally:
        running.stop()

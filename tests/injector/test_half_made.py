"""What an agent leaves that is killed while it makes or removes a sandbox."""

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from orchard.injector.agent.local.first_process import open_program

if TYPE_CHECKING:
    from tests.injector.conftest import Service


async def test_directories_without_a_record_are_nobodys(
    tmp_path: Path, start_service: "type[Service]"
) -> None:
    sandboxes = tmp_path / "state" / "sandboxes"
    for name, inside in (("empty", None), ("unrecorded", "upper/file"), ("written", "record.json.new")):
        directory = sandboxes / name
        directory.mkdir(parents=True)
        if inside is not None:
            (directory / inside).parent.mkdir(exist_ok=True)
            (directory / inside).write_text('{"spec": {"sandbox_')
    service = start_service(tmp_path / "state")
    try:
        assert list(sandboxes.iterdir()) == []
        async with service.client() as client:
            assert await client.list_sandboxes() == []
            sandbox = await client.create_sandbox("host", sandbox_id="unrecorded")
            assert (await sandbox.exec("true")).succeeded
    finally:
        service.stop()


def ownerless() -> Iterator[int]:
    """Processes that are or become the first of a sandbox, and whose spawner and agent are gone."""
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            owned = b"injector" in Path(f"/proc/{parent}/cmdline").read_bytes()
            if not owned and str((path / "exe").readlink()).startswith("/memfd:sandbox-"):
                yield int(path.name)


@pytest.mark.long
@pytest.mark.parametrize("killed", ["spawner", "agent"])
async def test_what_a_spawner_or_agent_was_starting_when_it_was_killed_ends_too(
    own_service: "Service", eventually: Callable[[Callable[[], bool], str], None], killed: str
) -> None:
    """Each time at another moment: after so many processes were started, with more on their way."""
    async with own_service.client(auto_cleanup=False, retry_seconds=30.0) as client:
        for started in range(0, 16, 5):
            await client.create_sandbox("host")
            agent = psutil.Process(own_service.agent_pid)
            spawner = min(agent.children(), key=lambda child: (child.create_time(), child.pid))
            making = [asyncio.create_task(client.create_sandbox("host", wait_ready=False)) for _ in range(20)]
            while len(spawner.children()) <= started and not all(task.done() for task in making):
                await asyncio.sleep(0)
            (spawner if killed == "spawner" else agent).kill()
            eventually(lambda agent=agent: not agent.is_running(), "the agent has ended")  # type: ignore[misc]
            await asyncio.gather(*making, return_exceptions=True)
    eventually(lambda: not list(ownerless()), "no process is left of what was being started")


def first_process(stdout: int) -> int:
    """Its process id; it has nothing open but `stdout`."""
    program = open_program(os.uname().machine)
    try:
        return os.posix_spawn(
            f"/proc/self/fd/{program}", ["first"], {}, file_actions=[(os.POSIX_SPAWN_DUP2, stdout, 1)]
        )
    finally:
        os.close(program)


def test_a_first_process_whose_agent_is_gone_ends() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    pid = first_process(writer)
    os.close(writer)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) in (1, -signal.SIGPIPE)


def test_a_first_process_says_that_it_runs_and_goes_on() -> None:
    reader, writer = os.pipe()
    pid = first_process(writer)
    os.close(writer)
    assert os.read(reader, 10) == b"\x01"
    assert os.read(reader, 10) == b""
    assert os.waitpid(pid, os.WNOHANG) == (0, 0)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    os.close(reader)

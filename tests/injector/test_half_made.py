"""What an agent leaves that is killed while it makes or removes a sandbox."""

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

from injector.agent.local.first_process import open_program

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

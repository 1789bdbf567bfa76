"""What clients of the published service send, and what they read in the answers."""

import base64
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import aiohttp
import pytest

from orchard.injector.client import AsyncSandbox

if TYPE_CHECKING:
    from tests.injector.conftest import Service

GUARDED = """\
case $- in *i*) ;; *) return;; esac
[ -z "$PS1" ] && return
greet() { echo "hello $1"; }
export FROM_BASHRC=yes
"""


@pytest.fixture
async def http(service: "Service") -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(service.url) as session:
        yield session


async def test_a_login_shell_reads_a_guarded_bashrc_and_says_nothing_of_its_own(
    sandbox: AsyncSandbox,
) -> None:
    await sandbox.upload_content(GUARDED, "/root/.bashrc")
    line = 'greet "$FROM_BASHRC!"; sleep 0 & wait; echo to stderr >&2; exit 3'
    job = await sandbox.exec(line, login_shell=True)
    assert (job.stdout, job.stderr, job.exit_code) == ("hello yes!\n", "to stderr\n", 3)
    merged = await sandbox.exec(line, login_shell=True, merge_output=True)
    assert merged.stdout == "hello yes!\nto stderr\n"
    words = await sandbox.exec(["printenv", "FROM_BASHRC"], login_shell=True)
    assert (words.stdout, words.stderr, words.exit_code) == ("yes\n", "", 0)
    assert (await sandbox.exec("echo $FROM_BASHRC")).stdout == "\n"


@pytest.mark.parametrize("login", [False, True])
async def test_a_line_of_any_length_is_run(sandbox: AsyncSandbox, login: bool) -> None:
    long = "x" * 300_000
    line = f"text={long}; echo ${{#text}} $0 $#; ls /proc/self/fd | tr '\\n' ' '; cat; exit 5"
    job = await sandbox.exec(line, stdin="typed", login_shell=login)
    assert (job.stdout, job.stderr) == ("300000 bash 0\n0 1 2 3 typed", "") if not login else job.stdout
    assert (job.exit_code, job.error) == (5, None)


async def test_a_line_of_any_length_is_typed_at_a_terminal(sandbox: AsyncSandbox) -> None:
    process = await sandbox.exec(f"text={'x' * 300_000}; echo ${{#text}}; tty", pty=True)
    assert (await process.read_all(60)).split() == [b"300000", b"/dev/pts/0"]


@pytest.mark.parametrize(
    ("command", "cwd", "says"),
    [
        (["no-such-program"], "/", "no-such-program"),
        (["/etc/passwd"], "/", "/etc/passwd"),
        (["true"], "/nowhere", "/nowhere"),
        ("true", "/nowhere", "/nowhere"),
        ("no-such-program", "/", "did not find"),
    ],
)
async def test_what_cannot_start_ends_with_127_and_says_why(
    sandbox: AsyncSandbox, command: str | list[str], cwd: str, says: str
) -> None:
    job = await sandbox.exec(command, cwd=cwd)
    assert (job.status, job.exit_code) == ("failed", 127)
    assert says in (job.error or "")
    if cwd == "/nowhere" or isinstance(command, list):
        process = await sandbox.exec(command, cwd=cwd, pty=True)
        assert await process.wait(60) == 127
        assert says.encode() in await process.read_all()


async def test_a_command_that_a_signal_killed_has_its_negative_number(sandbox: AsyncSandbox) -> None:
    assert (await sandbox.exec("kill -9 $$")).exit_code == -9
    assert (await sandbox.exec(["sh", "-c", "kill -TERM $$"])).exit_code == -15
    assert (await sandbox.exec("sh -c 'kill -9 $$'; exit $?")).exit_code == 137


async def test_a_close_frame_is_a_sigterm_and_frames_of_no_meaning_are_passed_over(
    http: aiohttp.ClientSession, sandbox: AsyncSandbox
) -> None:
    async with http.ws_connect(f"/sandboxes/{sandbox.sandbox_id}/exec/pty") as line:
        await line.send_json(
            {"type": "init", "cmd": ["sh", "-c", "read line; echo got $line; exec sleep 999"]}
        )
        assert (await line.receive_json())["type"] == "ready"
        for frame in ("nonsense", "[1]", '{"type":"ping"}', '{"type":"resize","rows":"x"}'):
            await line.send_str(frame)
        await line.send_json({"type": "stdin", "data": base64.b64encode(b"it\n").decode()})
        printed = b""
        while b"got it" not in printed:
            printed += base64.b64decode((await line.receive_json())["data"])
        await line.send_json({"type": "close"})
        assert await line.receive_json() == {"type": "exit", "code": -15}

"""Terminal sessions over WebSocket (point 13 of the contract)."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from orchard.injector.blocking import SandboxClient
from orchard.injector.client import AsyncSandbox, AsyncSandboxClient
from orchard.injector.errors import SandboxError, SandboxFailed, SandboxNotFound, SandboxUnavailable
from orchard.injector.process import AsyncContainerProcess

if TYPE_CHECKING:
    from tests.injector.conftest import Service

LIMIT = 20.0


@pytest.fixture
async def http(service: "Service") -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(service.url) as session:
        yield session


@pytest.fixture(scope="module")
def guarded(service: "Service", start_service: "type[Service]") -> "Iterator[Service]":
    """A second orchestrator over the same agent, with a key."""
    running = start_service(service.state, env={"SANDBOX_API_KEY": "secret-key"})
    yield running
    running.kill()


async def _processes(sandbox: AsyncSandbox) -> str:
    return (await sandbox.exec("cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' '")).stdout


async def _printed(process: AsyncContainerProcess, text: bytes) -> bytes:
    """What it prints up to and with `text`."""
    seen = b""
    while text not in seen:
        piece = await process.read(LIMIT)
        assert piece, f"it ended after {seen!r}"
        seen += piece
    return seen


async def test_a_command_has_a_terminal_of_its_own(sandbox: AsyncSandbox) -> None:
    process = await sandbox.exec(
        "tty; stty size; echo $TERM $GREETING; pwd; exit 3", env={"GREETING": "hi"}, pty=True
    )
    printed = await process.read_all(LIMIT)
    assert printed == b"/dev/pts/0\r\n24 80\r\nxterm-256color hi\r\n/workspace\r\n"
    assert await process.wait() == 3 == process.poll() == process.returncode
    assert process.pid and process.pid > 1


async def test_words_are_executed_as_they_are_and_by_a_login_shell_when_asked(sandbox: AsyncSandbox) -> None:
    await sandbox.upload_content("export FROM_PROFILE=yes\n", "/root/.bash_profile")
    plain = await sandbox.exec(["printf", "%s|", "a b", "$c"], pty=True)
    login = await sandbox.exec(["printenv", "FROM_PROFILE"], login_shell=True, pty=True)
    assert (await plain.read_all(LIMIT), await login.read_all(LIMIT)) == (b"a b|$c|", b"yes\r\n")


async def test_a_background_child_that_goes_on_printing_does_not_hold_the_session(
    sandbox: AsyncSandbox,
) -> None:
    process = await sandbox.exec("yes & echo the last words", pty=True)
    assert await process.wait(LIMIT) == 0
    assert b"the last words" in await process.read_all()
    assert "yes" not in (await _processes(sandbox)).split()


async def test_bytes_are_bytes(sandbox: AsyncSandbox) -> None:
    process = await sandbox.exec("printf '\\377\\000\\200'", pty=True)
    assert await process.read_all(LIMIT) == b"\xff\x00\x80"


async def test_stdin_sent_before_ready_arrives(http: aiohttp.ClientSession, sandbox: AsyncSandbox) -> None:
    async with http.ws_connect(f"/sandboxes/{sandbox.sandbox_id}/exec/pty") as line:
        await line.send_json({"type": "init", "cmd": ["cat"]})
        await line.send_json({"type": "stdin", "data": base64.b64encode(b"early\n\x04").decode()})
        frames = [json.loads(message.data) async for message in line]
    output = b"".join(base64.b64decode(frame["data"]) for frame in frames if frame["type"] == "stdout")
    assert [frame["type"] for frame in frames if frame["type"] != "stdout"] == ["ready", "exit"]
    assert output == b"early\r\nearly\r\n"
    assert frames[-1] == {"type": "exit", "code": 0}


JOBS = "sleep 2001 & (trap '' HUP TERM; sleep 2002) & bash -ic 'sleep 2003 & sleep 2004'"
"""In the background, deaf to signals, in process groups of an interactive shell's own."""


async def _gone(sandbox: AsyncSandbox) -> None:
    """All of JOBS, at once or a moment later: the client does not wait for the other end."""
    while "sleep 200" in (running := await _processes(sandbox)):
        assert running


@pytest.mark.long
@pytest.mark.timeout(60)
async def test_hanging_up_kills_the_whole_session_and_nothing_else(sandbox: AsyncSandbox) -> None:
    await sandbox.start("sleep 1999", timeout_seconds=3000)
    process = await sandbox.exec(JOBS, pty=True)
    while "sleep 2004" not in await _processes(sandbox):
        pass
    await process.close()
    await _gone(sandbox)
    assert "sleep 1999" in await _processes(sandbox)
    with pytest.raises(SandboxError):
        await process.wait()
    with pytest.raises(SandboxUnavailable):
        await process.write_stdin("x")


GRACEFUL = "trap 'sleep 0.2; echo goodbye > said; exit' TERM; echo ready; while :; do sleep 0.1; done"


@pytest.mark.parametrize("way", ["the client closes", "the client vanishes", "a frame says so"])
async def test_what_runs_on_a_terminal_is_asked_to_end_before_it_is_killed(
    http: aiohttp.ClientSession, sandbox: AsyncSandbox, way: str
) -> None:
    """In the foreground and in a process group of its own in the background."""
    command = f"set -m; ({GRACEFUL.replace('said', 'other')}) & {GRACEFUL}"
    async with http.ws_connect(f"/sandboxes/{sandbox.sandbox_id}/exec/pty") as line:
        await line.send_json({"type": "init", "cmd": command})
        printed = b""
        while printed.count(b"ready") < 2:
            frame = json.loads((await line.receive()).data)
            printed += base64.b64decode(frame.get("data", ""))
        if way == "a frame says so":
            await line.send_json({"type": "close"})
            assert [json.loads(message.data) async for message in line][-1] == {"type": "exit", "code": 0}
        elif way == "the client vanishes":
            assert line._response.connection is not None and line._response.connection.transport is not None
            line._response.connection.transport.abort()
    async with asyncio.timeout(LIMIT):
        while (await sandbox.exec("cat said other")).stdout != "goodbye\n" * 2:
            pass


@pytest.mark.timeout(60)
async def test_so_does_an_orchestrator_that_is_killed(
    service: "Service", start_service: "type[Service]", sandbox: AsyncSandbox
) -> None:
    other = start_service(service.state)
    async with other.client(retry_seconds=0.0, auto_cleanup=False) as client:
        process = await (await client.get_sandbox(sandbox.sandbox_id)).exec(["sleep", "2007"], pty=True)
        other.kill()
        with pytest.raises(SandboxUnavailable, match="lost"):
            await process.wait(LIMIT)
    await _gone(sandbox)


async def test_a_terminal_without_isolation(tmp_path: Path, start_service: "type[Service]") -> None:
    unsafe = start_service(tmp_path / "state", "--backend", "unsafe-host")
    try:
        async with unsafe.client() as client:
            sandbox = await client.create_sandbox("host")
            process = await sandbox.exec(["sh", "-c", "test -t 0 && stty size; exit 3"], cwd="/", pty=True)
            assert (await process.read_all(LIMIT), await process.wait()) == (b"24 80\r\n", 3)
            sleeper = await sandbox.exec(["sleep", "2008"], cwd="/", pty=True)
            await sleeper.close()
            while Path(f"/proc/{sleeper.pid}/cmdline").exists():
                pass
    finally:
        unsafe.stop()


async def test_a_process_is_a_context_manager(sandbox: AsyncSandbox) -> None:
    async with await sandbox.exec("echo here; sleep 2006", pty=True) as process:
        await _printed(process, b"here")
    await _gone(sandbox)


@pytest.mark.parametrize(("name", "code"), [("KILL", -9), ("SIGTERM", -15), ("HUP", -1), ("INT", -2)])
async def test_signals(sandbox: AsyncSandbox, name: str, code: int) -> None:
    process = await sandbox.exec(["sleep", "1000"], pty=True)
    await process.kill(name)
    assert await process.wait(LIMIT) == code
    await process.kill(name)


async def test_an_interrupt_reaches_the_foreground_and_not_the_shell(sandbox: AsyncSandbox) -> None:
    process = await sandbox.exec(["bash", "--norc", "-i"], env={"PS1": "$ "}, pty=True)
    await _printed(process, b"$ ")
    await process.write_stdin("sh -c 'echo in $((40 + 2)); exec sleep 1000'\n")
    await _printed(process, b"in 42")
    await process.kill("INT")
    await _printed(process, b"$ ")
    await process.write_stdin("exit 5\n")
    assert await process.wait(LIMIT) == 5


async def test_resizing(sandbox: AsyncSandbox) -> None:
    process = await sandbox.exec("stty size; stty -echo; read line; stty size", rows=10, cols=20, pty=True)
    await _printed(process, b"10 20")
    await process.resize(33, 44)
    await process.write_stdin("\n")
    assert b"33 44" in await process.read_all(LIMIT)


TOO_MUCH = {"type": "stdin", "data": base64.b64encode(b"line\n" * 1_800_000).decode()}


@pytest.mark.parametrize(
    "frames",
    [
        ["nonsense"],
        ["[1]"],
        [{"type": "stdin", "data": ""}],
        [{"type": "init"}],
        [{"type": "init", "cmd": []}],
        [{"type": "init", "cmd": ["true"], "env": {"a": 1}}],
        [{"type": "init", "cmd": ["true"], "env": {"a=b": "c"}}],
        [{"type": "init", "cmd": ["true"], "env": {"": "c"}}],
        [{"type": "init", "cmd": ["true"], "rows": -1}],
        [{"type": "init", "cmd": ["sleep", "9"]}, {"type": "stdin", "data": "?"}],
        [{"type": "init", "cmd": ["sleep", "9"]}, TOO_MUCH, TOO_MUCH],
        ["[" * 200_000],
    ],
    ids=range(12),
)
async def test_a_frame_that_makes_no_sense_is_an_error(
    http: aiohttp.ClientSession, sandbox: AsyncSandbox, frames: list[Any]
) -> None:
    async with http.ws_connect(f"/sandboxes/{sandbox.sandbox_id}/exec/pty") as line:
        for frame in frames:
            await line.send_str(frame if isinstance(frame, str) else json.dumps(frame))
        answers = [json.loads(message.data) async for message in line]
    errors = [answer for answer in answers if answer["type"] == "error"]
    assert len(errors) == 1 and errors[0]["message"]
    assert "sleep 9" not in await _processes(sandbox)


@pytest.mark.parametrize(
    "init",
    [
        {"cmd": "echo \ud800"},
        {"cmd": ["true"], "env": {"\ud800": "", "a": "\0"}},
        {"cmd": ["true"], "cwd": "/\ud800"},
    ],
    ids=range(3),
)
async def test_what_is_no_text_cannot_be_started(
    http: aiohttp.ClientSession, sandbox: AsyncSandbox, init: dict[str, Any]
) -> None:
    async with http.ws_connect(f"/sandboxes/{sandbox.sandbox_id}/exec/pty") as line:
        await line.send_str(json.dumps({"type": "init", **init}))
        answers = [json.loads(message.data) async for message in line]
    assert answers[-1]["type"] == "exit" and answers[-1]["code"] == 127 and answers[-1]["error"]


async def test_a_sandbox_that_goes_ends_its_sessions(client: AsyncSandboxClient) -> None:
    sandbox = await client.create_sandbox("host")
    process = await sandbox.exec(["sleep", "1000"], pty=True)
    await sandbox.delete()
    assert await process.wait(LIMIT) == -9


async def test_a_process_whose_first_thread_has_ended_ends_with_its_session(sandbox: AsyncSandbox) -> None:
    code = (
        "import ctypes, signal, threading, time; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
        "threading.Thread(target=time.sleep, args=(1048,)).start(); print('ready', flush=True)\n"
        "ctypes.CDLL(None).pthread_exit(None)"
    )
    await sandbox.upload_content(code, "/workspace/threads.py")
    process = await sandbox.exec("python3 threads.py & exec sleep 1049", pty=True)
    await _printed(process, b"ready")
    pids = "for stat in /proc/[0-9]*/stat; do grep -q '(python3)' $stat && echo left; done"
    await sandbox.exec("until grep -q '(python3) Z' /proc/[0-9]*/stat; do sleep 0.01; done")
    await process.close()
    assert (await sandbox.exec(pids)).stdout == ""


async def test_a_session_keeps_its_sandbox(client: AsyncSandboxClient) -> None:
    sandbox = await client.create_sandbox("host", ttl_seconds=2.0)
    process = await sandbox.exec("read line; echo still here", pty=True)
    unused = await client.create_sandbox("host", ttl_seconds=3.0)
    while unused.sandbox_id in {info.sandbox_id for info in await client.list_sandboxes()}:
        await asyncio.sleep(0.05)
    await process.write_stdin("\n")
    assert b"still here" in await process.read_all(LIMIT)


async def test_no_session_where_there_is_no_sandbox(client: AsyncSandboxClient) -> None:
    gone = await client.create_sandbox("host")
    await client.delete_sandbox(gone.sandbox_id)
    with pytest.raises(SandboxNotFound, match="there is no sandbox"):
        await gone.exec("true", pty=True)
    failed = await client.create_sandbox("no/such:image", wait_ready=False)
    with pytest.raises(SandboxFailed):
        await client._ready(failed.sandbox_id, 10.0)
    with pytest.raises(SandboxFailed) as error:
        await failed.exec("true", pty=True)
    assert error.value.reason == "image_missing"


async def test_a_plain_request_is_told_to_upgrade(http: aiohttp.ClientSession, sandbox: AsyncSandbox) -> None:
    reply = await http.get(f"/sandboxes/{sandbox.sandbox_id}/exec/pty")
    assert (reply.status, "upgrade" in (await reply.json())["detail"]) == (400, True)


@pytest.mark.parametrize("place", ["header", "query", "subprotocol"])
async def test_a_key_in_any_of_three_places(guarded: "Service", sandbox: AsyncSandbox, place: str) -> None:
    path = f"/sandboxes/{sandbox.sandbox_id}/exec/pty"
    for key, status in (("secret-key", 101), ("wrong", 403)):
        headers = {"X-API-Key": key} if place == "header" else {}
        protocols = ["api_key." + key] if place == "subprotocol" else []
        url = guarded.url + path + (f"?api_key={key}" if place == "query" else "")
        async with aiohttp.ClientSession(headers=headers) as http:
            if status == 403:
                with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                    await http.ws_connect(url, protocols=protocols)
                assert refused.value.status == 403
                continue
            async with http.ws_connect(url, protocols=protocols) as line:
                assert line.protocol == (protocols[0] if protocols else None)
                assert "X-Request-ID" in line._response.headers
                await line.send_json({"type": "init", "cmd": ["true"]})
                assert [json.loads(message.data)["type"] async for message in line] == ["ready", "exit"]


async def test_a_session_without_a_key_is_refused_and_a_key_in_the_query_opens_nothing_else(
    guarded: "Service", sandbox: AsyncSandbox
) -> None:
    async with aiohttp.ClientSession(guarded.url) as http:
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await http.ws_connect(f"/sandboxes/{sandbox.sandbox_id}/exec/pty")
        assert refused.value.status == 401
        assert (await http.get("/sandboxes?api_key=secret-key")).status == 401


def test_the_blocking_process(service: "Service") -> None:
    with SandboxClient(service.url) as client, client.create_sandbox("host") as sandbox:
        with sandbox.exec(["bash", "--norc", "-i"], env={"PS1": "$ "}, rows=5, cols=50, pty=True) as process:
            process.write_stdin("stty size; exit 4\n")
            assert process.wait(LIMIT) == process.poll() == process.returncode == 4
            assert b"5 50" in process.read_all()
        other = sandbox.exec(["sleep", "1000"], pty=True)
        other.resize(10, 10)
        other.kill("KILL")
        assert (other.wait(LIMIT), other.read()) == (-9, b"")
        other.close()

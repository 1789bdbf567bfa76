"""Points 13 to 15 of the contract: terminals, images of any kind, clients that fork."""

import asyncio
import hashlib
import os
import sys

import aiohttp
import pytest

from orchard.injector.client import AsyncSandbox, AsyncSandboxClient
from orchard.injector.process import AsyncContainerProcess
from tests.contract.balancer import Balancer
from tests.contract.deployment import Deployment
from tests.contract.fixtures import LIMIT, READY, create, processes, until_gone

BACKGROUND = "sleep 2001 & (trap '' HUP TERM; sleep 2002) & bash -ic 'sleep 2003 & sleep 2004'"
"""In the background, deaf to signals, in process groups of an interactive shell's own."""
PATCH = "--- a/greeting\n+++ b/greeting\n@@ -1 +1 @@\n-hello\n+hello, world\n"


async def test_point_13_the_tail_is_never_lost(sandbox: AsyncSandbox) -> None:
    """Naive: the exit status overtakes the output. More than the kernel buffers, read when all is over."""
    process = await sandbox.exec("seq 1 100000", pty=True)
    await process.wait(LIMIT)
    assert await process.read_all() == b"".join(b"%d\r\n" % number for number in range(1, 100_001))
    for _ in range(10):
        process = await sandbox.exec(["printf", "%s", "x" * 5000 + "end"], pty=True)
        assert await process.read_all(LIMIT) == b"x" * 5000 + b"end"


async def test_point_13_no_stdin_is_lost(sandbox: AsyncSandbox) -> None:
    """Naive: what is typed before the command reads, or faster than it reads, is dropped."""
    await sandbox.exec("mkfifo gate")
    late = await sandbox.exec("read open < gate; read one; read two; echo $two $one", pty=True)
    await late.write_stdin("first\n")
    await late.write_stdin(b"second\n")
    await sandbox.exec("echo > gate")
    assert (await late.read_all(LIMIT)).endswith(b"second first\r\n")

    data = bytes(range(256)) * 8000
    much = await sandbox.exec(f"stty raw -echo; echo ready; head -c {len(data)} | sha256sum", pty=True)
    await _printed(much, b"ready")
    await much.write_stdin(data)
    assert hashlib.sha256(data).hexdigest().encode() in await much.read_all(LIMIT)


async def test_point_13_silence_is_not_an_error(sandbox: AsyncSandbox) -> None:
    """Naive: a read that times out ends the session."""
    await sandbox.exec("mkfifo gate")
    process = await sandbox.exec("read line < gate; echo $line", pty=True)
    for _ in range(3):
        with pytest.raises(TimeoutError):
            await process.read(0.2)
    assert process.poll() is None
    await sandbox.exec("echo spoken > gate")
    assert await process.read_all(LIMIT) == b"spoken\r\n"


async def test_point_13_a_client_that_disconnects_takes_its_processes_with_it_and_no_others(
    http: aiohttp.ClientSession, sandbox: AsyncSandbox
) -> None:
    """Naive: a SIGHUP to the shell, or nothing at all."""
    await sandbox.start("sleep 1999", timeout_seconds=3000)
    line = await http.ws_connect(f"/sandboxes/{sandbox.sandbox_id}/exec/pty")
    await line.send_json({"type": "init", "cmd": BACKGROUND})
    async with asyncio.timeout(LIMIT):
        while "sleep 2004" not in await processes(sandbox):
            await asyncio.sleep(0.02)
    connection = line._response.connection
    assert connection is not None and connection.transport is not None
    connection.transport.abort()
    await until_gone(sandbox, "sleep 200")
    assert "sleep 1999" in await processes(sandbox)


async def _printed(process: AsyncContainerProcess, text: bytes) -> None:
    """Return when it has printed `text`."""
    seen = b""
    while text not in seen:
        piece = await process.read(LIMIT)
        assert piece, f"it ended after {seen!r}"
        seen += piece


async def test_point_14_an_image_without_bash_python_or_libc_works(
    client: AsyncSandboxClient, service: Deployment
) -> None:
    """Naive: an agent in the image's own Python; commands by `bash -c`; programs of one libc in another."""
    sandbox = await create(client, service.bare_image)
    found = await sandbox.exec("command -v bash python3; ls /lib /lib64 2>/dev/null; echo $((6 * 7))")
    assert (found.stdout, found.exit_code) == ("42\n", 0)
    assert (await sandbox.exec(["echo", "a b", "$c"], cwd="/")).stdout == "a b $c\n"
    assert (await sandbox.exec("echo $GREETING", env={"GREETING": "hi"}, login_shell=True)).stdout == "hi\n"
    timed = await sandbox.exec("echo before; sleep 1012 & sleep 1012", timeout_seconds=2)
    assert (timed.exit_code, timed.timed_out, timed.stdout) == (124, True, "before\n")

    await sandbox.upload_content("hello\n", "/workspace/greeting")
    patched = await sandbox.apply_patch(PATCH)
    assert patched.success, patched
    assert await sandbox.download_content("/workspace/greeting") == b"hello, world\n"
    assert [entry.name for entry in await sandbox.list_files("/workspace")] == ["greeting"]

    process = await sandbox.exec("echo typed: $(read line; echo $line)", pty=True)
    await process.write_stdin("something\n")
    assert (await process.read_all(LIMIT)).endswith(b"typed: something\r\n")


FORKING = """
import multiprocessing, os, signal, sys
from orchard import SandboxClient
def work(client, sandbox, pipe):
    pipe.send(sandbox.exec("echo from the child").stdout)
    pipe.recv()
    {ending}
if __name__ == "__main__":
    client = SandboxClient()
    sandbox = client.create_sandbox(sys.argv[1], cpu="1", memory="256Mi")
    sandbox.start_heartbeat(0.05)
    ours, theirs = multiprocessing.Pipe()
    worker = multiprocessing.get_context("fork").Process(target=work, args=(client, sandbox, theirs))
    worker.start()
    print(ours.recv(), end="")
    ours.send("go on")
    worker.join()
    print(sandbox.exec("echo still here").stdout, end="")
    print(worker.exitcode, flush=True)
"""


@pytest.mark.parametrize(
    ("ending", "status"),
    [
        ("os.kill(os.getpid(), signal.SIGTERM)", "-15"),
        ("sys.exit(0)", "0"),
        ("client.close()", "0"),
        ("client.cleanup_all()", "0"),
        ("sandbox.stop_heartbeat()", "0"),
    ],
)
async def test_point_15_the_end_of_a_forked_worker_leaves_its_parents_sandboxes(
    balancer: Balancer, service: Deployment, ending: str, status: str
) -> None:
    """Naive: handlers for exit and signals that a child inherits, with the list of what its parent made."""
    environment = {**os.environ, "SANDBOX_BASE_URL": balancer.url, "SANDBOX_API_KEY": service.api_key or ""}
    program = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-c", FORKING.format(ending=ending), service.image),
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    async with asyncio.timeout(READY):
        told, _ = await program.communicate()
    assert told.decode().split("\n") == ["from the child", "still here", status, ""]

"""A client in a process that forks: nothing that a child does or leaves undone is felt by its parent."""

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.injector.conftest import Service

LIMIT = 60.0
"""Seconds; a parent that waits for what its child took from it waits six minutes."""

BLOCKING = """
import gc, os, sys
from orchard import SandboxClient
with SandboxClient() as client:
    box = client.create_sandbox("host")
    assert box.exec("echo before").stdout == "before\\n"
    for _ in range(3):
        pid = os.fork()
        if pid == 0:
            {child}
        os.waitpid(pid, 0)
        print(box.exec("echo after").stdout, end="", flush=True)
"""
AWAITED = """
import asyncio, gc, os, sys
from orchard import AsyncSandboxClient
async def main():
    async with AsyncSandboxClient() as client:
        box = await client.create_sandbox("host")
        assert (await box.exec("echo before")).stdout == "before\\n"
        for _ in range(3):
            pid = os.fork()
            if pid == 0:
                {child}
            os.waitpid(pid, 0)
            await box.upload_content(await asyncio.to_thread(str, 3), "/tmp/x")
            print((await box.exec("echo after")).stdout, end="", flush=True)
asyncio.run(main())
"""
CHILDREN = {
    "exits": "sys.exit(0)",
    "forgets": "del client, box; gc.collect(); sys.exit(0)",
    "works": "print(box.exec('echo child').stdout, end='', flush=True); sys.exit(0)",
    "closes": "client.close(); sys.exit(0)",
}


def run(service: "Service", program: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "SANDBOX_BASE_URL": service.url},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )


@pytest.mark.long
@pytest.mark.parametrize("child", CHILDREN)
def test_a_child_that_ends_does_not_hold_up_its_parent(service: "Service", child: str) -> None:
    done = run(service, BLOCKING.format(child=CHILDREN[child]))
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stdout.split() if line != "child"] == ["after"] * 3
    assert done.stdout.count("child") == (3 if child == "works" else 0)


@pytest.mark.long
@pytest.mark.parametrize("child", ["exits", "forgets"])
def test_neither_does_one_of_a_program_with_an_event_loop(service: "Service", child: str) -> None:
    done = run(service, AWAITED.format(child=CHILDREN[child]))
    assert (done.returncode, done.stdout.split()) == (0, ["after"] * 3), done.stderr


UNCLOSED = {
    "blocking": "from orchard import SandboxClient\nclient = SandboxClient({url})\nclient.health()",
    "awaited": "import asyncio\nfrom orchard import AsyncSandboxClient\n"
    "async def main():\n    client = AsyncSandboxClient({url})\n    await client.health()\n"
    "asyncio.run(main())",
    "forgotten": "import asyncio, gc\nfrom orchard import AsyncSandboxClient\n"
    "async def main():\n    await AsyncSandboxClient({url}).health()\n    gc.collect()\n"
    "    await asyncio.sleep(0)\nasyncio.run(main())",
}


@pytest.mark.parametrize("kind", UNCLOSED)
def test_a_client_that_nobody_closed_is_no_reason_to_complain(service: "Service", kind: str) -> None:
    done = run(service, UNCLOSED[kind].format(url=f"{service.url!r}"))
    assert (done.returncode, done.stderr) == (0, "")


INTERRUPTED = """
import os, signal, sys, threading
from orchard import SandboxClient
client = SandboxClient()
client.create_sandbox("host")
client.base_url
for created in __import__("orchard.injector.created_sandboxes", fromlist=["_instances"])._instances:
    created._url = "http://127.0.0.1:9"  # nobody answers there, so there is something to complain of
class Stream:
    '''A stream that is in the middle of a line when the signal comes.'''
    inside = False
    def write(self, text):
        if Stream.inside:
            os.write(1, b"written to while it was written to")
        Stream.inside = True
        if text == "interrupted":
            os.kill(os.getpid(), signal.SIGTERM)
        Stream.inside = False
    def flush(self): ...
sys.stderr = Stream()
print("interrupted", end="", file=sys.stderr)
"""


def test_the_end_by_a_signal_writes_to_no_stream_that_it_may_have_interrupted(service: "Service") -> None:
    done = run(service, INTERRUPTED)
    assert (done.returncode, done.stdout) == (-signal.SIGTERM, "")
    assert done.stderr.startswith("orchard: sandboxes were left behind: ")

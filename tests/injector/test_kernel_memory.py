"""What sockets hold for a sandbox is limited as its memory is, or it is said that it is not."""

from pathlib import Path

import pytest

from orchard.injector.agent.local.cgroups import SOCKETS_SHARE, ControlGroup
from orchard.injector.client import AsyncSandbox, AsyncSandboxClient

MIB = 2**20
QUEUE = """
import socket
listener = socket.create_server(("127.0.0.1", 0), backlog=100)
held, queued = [listener], 0
for _ in range(50):
    one = socket.create_connection(listener.getsockname())
    other, _ = listener.accept()
    held += [one, other]
    for end in (one, other):
        end.setblocking(False)
        try:
            while True:
                queued += end.send(bytes(65536))
        except BlockingIOError:
            pass
print(queued)
"""


@pytest.mark.needs_root("limits of memory")
async def test_what_a_sandbox_sends_to_itself_is_limited(client: AsyncSandboxClient) -> None:
    """Without a limit 50 connections hold some 300 MiB."""
    sandbox = await client.create_sandbox("host", memory="64Mi")
    queued = await sandbox.exec(["python3", "-c", QUEUE])
    assert queued.oom_killed or int(queued.stdout) < 48 * MIB
    assert (await sandbox.exec("echo alive")).stdout == "alive\n"


def test_version_1_has_a_limit_of_its_own_for_sockets(tmp_path: Path) -> None:
    for name in ("memory.limit_in_bytes", "memory.kmem.tcp.limit_in_bytes", "memory.oom_control"):
        (tmp_path / name).touch()
    group = ControlGroup({"memory": tmp_path}, {"memory": False})
    group.limit(memory=64 * MIB, pids=10, cores=1.0)
    group.close()
    written = int((tmp_path / "memory.kmem.tcp.limit_in_bytes").read_text())
    assert written == 64 * MIB // SOCKETS_SHARE


async def test_messages_between_processes_go_by_no_netlink(sandbox: AsyncSandbox) -> None:
    ask = "import socket as s; s.socket(s.AF_NETLINK, s.SOCK_RAW, {}).bind((0, 0)); print('open')"
    assert "not supported" in (await sandbox.exec(["python3", "-c", ask.format(2)])).stderr
    assert (await sandbox.exec(["python3", "-c", ask.format(0)])).stdout == "open\n"

"""Tunnels at their bounds: hostile programs inside, peers that do not keep to the rules, ends that die."""

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp
import psutil
import pytest

from orchard.injector.agent import multiplexing
from orchard.injector.agent.multiplexing import CREDIT, DATA, HEADER, OPEN, RESET, WINDOW
from orchard.injector.agent.tunnels import SHARE, TUNNELS
from orchard.injector.blocking import SandboxClient
from orchard.injector.client import AsyncSandbox, AsyncSandboxClient
from orchard.injector.errors import SandboxConflict, SandboxFailed, SandboxRequestInvalid
from orchard.injector.tunnels import AsyncTunnel
from tests.contract.tunnels import LIMIT, PORT, SERVER, connection, listening_here, start_server, until_echoed
from tests.injector.in_pod import ID, pod_agent

if TYPE_CHECKING:
    from tests.injector.conftest import Service

PLACES = 100

CROWD = """
import socket, sys
lines = []
for number in range(500):
    line = socket.socket()
    line.setblocking(False)
    line.connect_ex(("127.0.0.1", int(sys.argv[1])))
    lines.append(line)
open("crowded", "w").write("crowded")
open("go").read()
"""
"""Holds as many connections as it can get of 500, until it is told to go."""


@pytest.fixture
async def raw(service: "Service", sandbox: AsyncSandbox) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
    """A line of a forward tunnel without the client's end of it."""
    path = f"/sandboxes/{sandbox.sandbox_id}/tunnel?port={PORT}"
    async with aiohttp.ClientSession(service.url) as http, http.ws_connect(path) as line:
        assert json.loads((await line.receive(LIMIT)).data) == {"type": "ready", "port": PORT}
        yield line


def test_blocking_code_has_tunnels_too(service: "Service") -> None:
    listener = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        line, _ = listener.accept()
        with line:
            line.sendall(b"from here")

    threading.Thread(target=answer, daemon=True).start()
    with SandboxClient(service.url) as client, client.create_sandbox("host") as sandbox, listener:
        sandbox.upload_content(SERVER, "/workspace/server.py")
        sandbox.exec("mkfifo up; python3 server.py > log 2>&1 & cat up", timeout=LIMIT)
        with (
            sandbox.forward(PORT) as tunnel,
            socket.create_connection((tunnel.host, tunnel.port), timeout=LIMIT) as line,
        ):
            line.sendall(b"ehello")
            assert line.makefile("rb").read(5) == b"hello"
        with sandbox.reverse(0, listener.getsockname()[1]) as tunnel:
            ask = f"exec 3<>/dev/tcp/127.0.0.1/{tunnel.port} && cat <&3"
            assert sandbox.exec(["bash", "-c", ask]).stdout == "from here"
        left = sandbox.forward(PORT).open()
    assert left.port not in listening_here()  # closed with the client


async def test_a_sandbox_with_a_network_has_tunnels_too(client: AsyncSandboxClient) -> None:
    sandbox = await client.create_sandbox("host", block_network=False)
    await start_server(sandbox)
    async with (
        sandbox.reverse(0, 1) as out,
        sandbox.forward(PORT) as tunnel,
        sandbox.forward(out.port) as back,
    ):
        await until_echoed(tunnel.port)
        with pytest.raises(ConnectionResetError):  # in, out again, and to a port of here with no listener
            async with connection(back.port) as (reader, _):
                await reader.read()


async def test_a_server_inside_may_listen_at_the_other_loopback_address(sandbox: AsyncSandbox) -> None:
    server = SERVER.replace('create_server(("127.0.0.1"', 'create_server(("::1"').replace(
        "backlog=1024", "family=socket.AF_INET6"
    )
    await sandbox.upload_content(server, "/workspace/server.py")
    await sandbox.exec("mkfifo up; python3 server.py > log 2>&1 & cat up", timeout=LIMIT)
    async with sandbox.forward(PORT) as tunnel:
        await until_echoed(tunnel.port)


@pytest.fixture
def narrow_service(tmp_path: Path, start_service: "type[Service]") -> Iterator["Service"]:
    """Its agent may have so few descriptors that a sandbox gets PLACES connections."""
    state, limit = tmp_path / "state", PLACES * SHARE * SHARE
    ready, tell = os.pipe()
    line = ["sh", "-c", f'ulimit -n {limit}; exec "$@"', "sh", sys.executable, "-m", "orchard.injector.agent"]
    with subprocess.Popen([*line, "--state", str(state), "--ready-fd", str(tell)], pass_fds=[tell]):
        os.close(tell)
        assert os.read(ready, 1)
        os.close(ready)
        running = start_service(state)
        yield running
        running.stop()


@pytest.mark.long
async def test_a_crowd_inside_gets_no_more_than_its_places_and_nobody_else_suffers(
    narrow_service: "Service",
) -> None:
    here = 0

    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal here
        here += 1
        writer.write(b"here")
        with suppress(ConnectionError):
            await reader.read()
        writer.close()

    async with narrow_service.client() as client, await asyncio.start_server(hold, "127.0.0.1") as server:
        sandbox, other = await asyncio.gather(*(client.create_sandbox("host") for _ in range(2)))
        await asyncio.gather(start_server(other), sandbox.upload_content(CROWD, "/workspace/crowd.py"))
        port = server.sockets[0].getsockname()[1]
        async with sandbox.reverse(0, port) as reverse, other.forward(PORT) as forward:
            command = f"mkfifo crowded go; python3 crowd.py {reverse.port} > log 2>&1 & cat crowded"
            assert (await sandbox.exec(command, timeout=LIMIT)).stdout == "crowded"
            async with asyncio.timeout(LIMIT):
                while here < PLACES:
                    await asyncio.sleep(0.02)
            await until_echoed(forward.port)
            assert here == PLACES
            await sandbox.exec("echo > go")
            ask = f"exec 3<>/dev/tcp/127.0.0.1/{reverse.port} && head -c 4 <&3"
            asked = await sandbox.exec(["bash", "-c", ask], timeout=LIMIT)
            assert (asked.stdout, asked.stderr) == ("here", "")  # there are places again


async def test_what_is_not_read_is_not_in_memory(service: "Service", sandbox: AsyncSandbox) -> None:
    """Connections that nobody reads, each with 64 MiB to come."""
    await start_server(sandbox)
    agent, orchestrator = psutil.Process(service.agent_pid), psutil.Process(service.process.pid)
    before = agent.memory_info().rss + orchestrator.memory_info().rss
    async with sandbox.forward(PORT) as tunnel:
        lines = [socket.create_connection((tunnel.host, tunnel.port)) for _ in range(20)]
        try:
            for line in lines:
                line.sendall(b"f")
            for line in lines:
                assert await asyncio.to_thread(line.recv, 4) == b"\0\0\0\0"
            await until_echoed(tunnel.port)
            after = agent.memory_info().rss + orchestrator.memory_info().rss
            assert after - before < 20 * 2 * WINDOW + 32 * 2**20
        finally:
            for line in lines:
                line.close()


@pytest.mark.parametrize(
    "frames",
    [
        ["a text"],
        [b""],
        [b"\1\0\0"],
        [HEADER.pack(9, 1)],
        [HEADER.pack(OPEN, 2)],
        [HEADER.pack(OPEN, 1) + b"more"],
        [HEADER.pack(DATA, 1) + b"x"],
        [HEADER.pack(OPEN, 1), HEADER.pack(OPEN, 1)],
        [HEADER.pack(OPEN, 1), HEADER.pack(CREDIT, 1) + b"\0\0\0\1"],
        [HEADER.pack(OPEN, 1), HEADER.pack(CREDIT, 1)],
        [HEADER.pack(OPEN, 1), HEADER.pack(DATA, 1) + bytes(multiplexing.PIECE + 1)],
        [HEADER.pack(RESET, 2**32 - 1)],
    ],
    ids=[
        *("a text", "nothing", "half a head", "no such kind", "the second first", "an opening with more"),
        *(
            "data before",
            "opened twice",
            "room nobody had",
            "room without a number",
            "too much",
            "no such stream",
        ),
    ],
)
async def test_a_peer_that_does_not_keep_to_the_rules_loses_its_line(
    sandbox: AsyncSandbox, raw: aiohttp.ClientWebSocketResponse, frames: list[bytes | str]
) -> None:
    await start_server(sandbox)
    for frame in frames:
        await (raw.send_str(frame) if isinstance(frame, str) else raw.send_bytes(frame))
    async with asyncio.timeout(LIMIT):
        while (await raw.receive()).type is aiohttp.WSMsgType.BINARY:
            pass
    assert raw.closed


async def test_more_than_there_is_room_for_loses_the_line(
    sandbox: AsyncSandbox, raw: aiohttp.ClientWebSocketResponse
) -> None:
    await sandbox.exec(
        "mkfifo up; python3 -c \"import socket; s = socket.create_server(('127.0.0.1', 8000));"
        "open('up', 'w').write('up'); lines = [s.accept() for _ in range(2)]\" & cat up",
        timeout=LIMIT,
    )  # accepts and never reads
    await raw.send_bytes(HEADER.pack(OPEN, 1))

    async def closed() -> None:
        while (await raw.receive()).type is aiohttp.WSMsgType.BINARY:
            pass

    closing = asyncio.ensure_future(closed())
    async with asyncio.timeout(LIMIT):
        with suppress(ConnectionError):
            while not closing.done():  # what the kernel and the window take, and then more
                await raw.send_bytes(HEADER.pack(DATA, 1) + bytes(multiplexing.PIECE))
                await asyncio.sleep(0)
        await closing


@pytest.mark.parametrize(
    "query",
    [
        "",
        "port=x",
        "port=0",
        "port=65536",
        "port=1&direction=up",
        "port=1&name=a%2Fb",
        "port=1&idle_seconds=0",
    ],
)
async def test_a_tunnel_that_can_never_be_is_refused_before_it_is_one(
    service: "Service", sandbox: AsyncSandbox, query: str
) -> None:
    async with aiohttp.ClientSession(service.url) as http:
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await http.ws_connect(f"/sandboxes/{sandbox.sandbox_id}/tunnel?{query}")
    assert refused.value.status == 422


async def test_a_sandbox_has_so_many_tunnels(sandbox: AsyncSandbox) -> None:
    tunnels = [await sandbox.forward(PORT).open() for _ in range(TUNNELS)]
    with pytest.raises(SandboxConflict, match="close one"):
        await sandbox.forward(PORT).open()
    await tunnels.pop().close()
    async with asyncio.timeout(LIMIT):
        while True:  # the service hears of the end a moment later
            try:
                tunnels.append(await sandbox.forward(PORT).open())
                break
            except SandboxConflict:
                await asyncio.sleep(0.02)
    for tunnel in tunnels:
        await tunnel.close()


async def test_connections_that_ended_leave_nothing_at_either_end(
    service: "Service", sandbox: AsyncSandbox
) -> None:
    """Twenty of them; a line more or less between the service's own processes is none of their doing."""

    def held() -> tuple[int, int]:
        return len(psutil.Process().net_connections()), psutil.Process(service.agent_pid).num_fds()

    await start_server(sandbox)
    async with sandbox.forward(PORT) as tunnel:
        before = held()
        for _ in range(10):
            async with connection(tunnel.port, b"ehello") as (reader, writer):  # the client ends first
                assert await reader.readexactly(5) == b"hello"
                writer.write_eof()
                assert await reader.read() == b""
            async with connection(tunnel.port, b"xhello") as (reader, _):  # the server does
                with suppress(ConnectionError):
                    assert await reader.read() == b""
        async with asyncio.timeout(LIMIT):
            while any(now >= then + 10 for now, then in zip(held(), before, strict=True)):
                await asyncio.sleep(0.02)


async def test_a_quiet_connection_is_reset(sandbox: AsyncSandbox) -> None:
    await start_server(sandbox)
    async with sandbox.forward(PORT, idle_seconds=0.2) as tunnel:
        with pytest.raises(ConnectionResetError):
            async with connection(tunnel.port, b"ehello") as (reader, _):
                await reader.readexactly(6)


@pytest.mark.parametrize("forks", [False, True], ids=["alone", "with a child that lives on"])
async def test_a_client_that_is_killed_leaves_nothing_listening(
    service: "Service", sandbox: AsyncSandbox, forks: bool
) -> None:
    program = (
        "import os, sys\nfrom orchard import SandboxClient\n"
        "sandbox = SandboxClient(auto_cleanup=False).get_sandbox(sys.argv[1])\n"
        "tunnel, other = sandbox.reverse(0, 1).open(), sandbox.forward(1).open()\n"
        f"parent = not {forks} or os.fork()\n"
        "print(tunnel.port, flush=True) if parent else os.close(1)\n"
        "sys.stdin.read()\n"
    )
    line = [sys.executable, "-c", program, sandbox.sandbox_id]
    env = {**os.environ, "SANDBOX_BASE_URL": service.url}
    start = partial(subprocess.Popen, line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env)
    process = await asyncio.to_thread(start)
    assert process.stdin is not None and process.stdout is not None
    with process.stdin, process.stdout:  # the child ends with the first
        port = int(await asyncio.to_thread(process.stdout.readline))
        there = f"0100007F:{port:04X} 00000000:0000 0A"
        assert there in (await sandbox.exec("cat /proc/net/tcp")).stdout
        process.kill()
        process.wait()
        async with asyncio.timeout(LIMIT):
            while there in (await sandbox.exec("cat /proc/net/tcp")).stdout:
                await asyncio.sleep(0.02)


async def test_a_killed_agent_ends_the_tunnel_with_the_reason(own_service: "Service") -> None:
    async with own_service.client() as client:
        sandbox = await client.create_sandbox("host")
        async with sandbox.forward(PORT) as tunnel:
            own_service.kill_agent()
            with pytest.raises(SandboxFailed) as ended:
                await asyncio.wait_for(tunnel.wait(), LIMIT)
        assert ended.value.reason == "agent_died"


async def test_a_port_of_here_that_is_taken_is_an_os_error(sandbox: AsyncSandbox) -> None:
    async with sandbox.forward(PORT) as tunnel:
        with pytest.raises(OSError, match="in use"):
            await sandbox.forward(PORT, local_port=tunnel.port).open()
    with pytest.raises(SandboxRequestInvalid, match="65535"):
        await sandbox.forward(65536).open()


@pytest.mark.long
@pytest.mark.needs_root("makes containers of its own")
@pytest.mark.parametrize("user", ["root", "1000"])
async def test_the_agent_of_a_pod_has_tunnels_into_its_network(
    payload: Path, busybox: Path, user: str
) -> None:
    """The container shares this machine's network, so what listens here listens inside."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write((await reader.read()).upper())
        writer.close()

    async with (
        pod_agent(payload, busybox, user=user) as agent,
        await asyncio.start_server(answer, "127.0.0.1") as server,
    ):
        port = server.sockets[0].getsockname()[1]

        def dial(query: str) -> Awaitable[aiohttp.ClientWebSocketResponse]:
            return agent.connection.line(f"/sandboxes/{ID}/tunnel?{query}")

        async with (
            AsyncTunnel(dial, set(), "forward", port, ("127.0.0.1", 0), None) as forward,
            connection(forward.port, b"question") as (reader, writer),
        ):
            writer.write_eof()
            assert await reader.read() == b"QUESTION"
        async with AsyncTunnel(dial, set(), "reverse", 0, ("127.0.0.1", port), None) as reverse:
            asked = await agent.run(f"echo question | nc 127.0.0.1 {reverse.port}")
            assert asked.stdout == "QUESTION\n"

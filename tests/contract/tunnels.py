"""Tunnels, into sandboxes and out of them, on every backend; no sandbox here has a network."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import psutil
import pytest

from orchard.injector.client import AsyncSandbox, AsyncSandboxClient
from orchard.injector.errors import SandboxConflict, SandboxError
from tests.contract.deployment import Deployment
from tests.contract.fixtures import LIMIT, create

PORT = 8000
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]

SERVER = """
import os, socket, threading

def serve(line):
    with line:
        what = line.recv(1)
        if what == b"e":
            while data := line.recv(65536):
                line.sendall(data)
        elif what == b"c":  # says how much came when the other end has ended
            count = 0
            while data := line.recv(65536):
                count += len(data)
            line.sendall(b"%d" % count)
        elif what == b"f":
            for number in range(1024):
                line.sendall(number.to_bytes(4, "big") * 16384)

listener = socket.create_server(("127.0.0.1", 8000), backlog=1024)
with open("up", "w") as up:
    up.write("up")
while True:
    line, _ = listener.accept()
    threading.Thread(target=serve, args=(line,), daemon=True).start()
"""
"""Echoes after an `e`, counts after a `c`, sends FLOOD after an `f`."""
FLOOD = 64 * 1024 * 1024


async def start_server(sandbox: AsyncSandbox) -> None:
    """Returns when SERVER listens at PORT."""
    await sandbox.upload_content(SERVER, "/workspace/server.py")
    await sandbox.exec("mkfifo up; python3 server.py > log 2>&1 & cat up", timeout=LIMIT)


@asynccontextmanager
async def connection(port: int, first: bytes = b"") -> AsyncIterator[Streams]:
    """To a port of here, having sent `first`."""
    async with asyncio.timeout(LIMIT):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(first)
            await writer.drain()
            yield reader, writer
        finally:
            writer.close()


def listening_here() -> set[int]:
    """Ports at which this process listens."""
    return {one.laddr.port for one in psutil.Process().net_connections() if one.status == psutil.CONN_LISTEN}


async def until_echoed(port: int) -> None:
    """Connect again and again until an echo comes: what a caller does while a tunnel comes back."""
    async with asyncio.timeout(LIMIT):
        while True:
            try:
                async with connection(port, b"ehello") as (reader, _):
                    assert await reader.readexactly(5) == b"hello"
                    return
            except (ConnectionError, asyncio.IncompleteReadError):
                await asyncio.sleep(0.02)


async def test_a_client_reaches_a_port_inside_and_either_end_may_end_first(sandbox: AsyncSandbox) -> None:
    await start_server(sandbox)
    sent = bytes(range(256)) * 4000
    async with sandbox.forward(PORT) as tunnel:
        async with connection(tunnel.port, b"e") as (reader, writer):
            writer.write(sent)
            assert await reader.readexactly(len(sent)) == sent
        async with connection(tunnel.port, b"c") as (reader, writer):
            writer.write(sent)
            writer.write_eof()
            assert await reader.read() == b"%d" % len(sent)
    assert tunnel.port not in listening_here()


async def test_a_program_inside_reaches_a_server_of_the_client_and_nothing_else(
    sandbox: AsyncSandbox,
) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write((await reader.read()).upper())
        writer.close()

    program = (
        "import socket, sys\n"
        "with socket.create_connection(('127.0.0.1', int(sys.argv[1]))) as line:\n"
        "    line.sendall(b'question'); line.shutdown(socket.SHUT_WR); print(line.makefile().read())\n"
    )
    async with await asyncio.start_server(answer, "127.0.0.1") as server:
        port = server.sockets[0].getsockname()[1]
        async with sandbox.reverse(0, port) as tunnel:
            asked = await sandbox.exec(["python3", "-c", program, str(tunnel.port)], timeout=LIMIT)
            assert (asked.stdout, asked.stderr) == ("QUESTION\n", "")
            addresses = await sandbox.exec("cat /proc/net/tcp")
            assert f"0100007F:{tunnel.port:04X} 00000000:0000 0A" in addresses.stdout  # loopback, listening
        refused = await sandbox.exec(["python3", "-c", program, str(tunnel.port)], timeout=LIMIT)
        assert "ConnectionRefusedError" in refused.stderr


async def test_nobody_listening_is_a_reset_and_the_tunnel_stays(sandbox: AsyncSandbox) -> None:
    async with sandbox.forward(PORT) as tunnel:
        with pytest.raises(ConnectionResetError):
            async with connection(tunnel.port, b"e") as (reader, _):
                await reader.read()
        await start_server(sandbox)
        await until_echoed(tunnel.port)


async def test_a_port_that_is_taken_inside_is_an_error_that_says_so(sandbox: AsyncSandbox) -> None:
    await start_server(sandbox)
    with pytest.raises(SandboxConflict, match=f"listens at port {PORT}") as taken:
        await sandbox.reverse(PORT, 1).open()
    assert taken.value.reason == "port_taken"


async def test_a_deleted_sandbox_ends_its_tunnels(client: AsyncSandboxClient, service: Deployment) -> None:
    sandbox = await create(client, service.image)
    await start_server(sandbox)
    async with sandbox.forward(PORT) as tunnel, connection(tunnel.port, b"ehello") as (reader, _):
        assert await reader.readexactly(5) == b"hello"
        await sandbox.delete()
        with suppress(ConnectionResetError):  # or an end: the server was killed, which may be noticed first
            assert await reader.read() == b""
        with pytest.raises(SandboxError) as ended:
            await asyncio.wait_for(tunnel.wait(), LIMIT)
        assert ended.value.status in (404, 410) and tunnel.error is ended.value
        assert tunnel.port not in listening_here()


async def test_a_tunnel_outlives_the_orchestrators(sandbox: AsyncSandbox, service: Deployment) -> None:
    """Connections are reset, never taken for complete; new ones find the tunnel where it was."""
    await start_server(sandbox)

    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"here")
        writer.close()

    ask = "exec 3<>/dev/tcp/127.0.0.1/{port} && cat <&3"
    async with await asyncio.start_server(answer, "127.0.0.1") as server:
        port = server.sockets[0].getsockname()[1]
        async with sandbox.forward(PORT) as forward, sandbox.reverse(0, port) as reverse:
            inside = reverse.port
            async with connection(forward.port, b"ehello") as (reader, _):
                assert await reader.readexactly(5) == b"hello"
                for index in range(len(service.urls)):
                    await service.replace_replica(index)
                with pytest.raises(ConnectionResetError):
                    await reader.read()
            await until_echoed(forward.port)
            async with asyncio.timeout(LIMIT):
                command = ["bash", "-c", ask.format(port=inside)]
                while (await sandbox.exec(command)).stdout != "here":
                    await asyncio.sleep(0.02)
            assert reverse.port == inside


async def test_a_tunnel_counts_the_questions_that_its_breaks_left_without_an_answer(
    sandbox: AsyncSandbox, service: Deployment
) -> None:
    """In both directions; connections that wait for nothing are not counted."""
    await start_server(sandbox)
    asked = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.readline() == b"question\n"
        asked.set()
        with suppress(ConnectionError):
            await reader.read()
        writer.close()

    async with await asyncio.start_server(silent, "127.0.0.1") as server:
        port = server.sockets[0].getsockname()[1]
        async with (
            sandbox.forward(PORT) as forward,
            sandbox.reverse(0, port) as reverse,
            connection(forward.port, b"c unfinished"),
            connection(forward.port, b"ehello") as (reader, _),
        ):
            assert await reader.readexactly(5) == b"hello"
            ask = f"exec 3<>/dev/tcp/127.0.0.1/{reverse.port} && echo question >&3 && cat <&3"
            await sandbox.start(["bash", "-c", ask])
            await asyncio.wait_for(asked.wait(), LIMIT)
            for index in range(len(service.urls)):
                await service.replace_replica(index)
            async with asyncio.timeout(LIMIT):
                while not (forward.breaks and reverse.breaks):
                    await asyncio.sleep(0.02)
            assert (forward.interrupted, reverse.interrupted) == (1, 1)


async def test_one_that_is_not_read_holds_up_no_other_and_loses_nothing(sandbox: AsyncSandbox) -> None:
    await start_server(sandbox)
    async with sandbox.forward(PORT) as tunnel:
        loop = asyncio.get_running_loop()
        with socket.create_connection(("127.0.0.1", tunnel.port)) as unread:
            unread.sendall(b"f")
            for _ in range(3):
                await until_echoed(tunnel.port)

            def read() -> int:
                with unread.makefile("rb") as file:
                    for number in range(FLOOD // 65536):
                        assert file.read(65536) == number.to_bytes(4, "big") * 16384
                    return len(file.read())

            assert await loop.run_in_executor(None, read) == 0

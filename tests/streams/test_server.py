"""The embedded server: its store outlives it, its port stays, and it dies with its parent."""

import asyncio
import socket
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import psutil
import pytest

from orchard.schemas.events import Event
from orchard.schemas.queues import Queue
from orchard.streams.connection import Connection, connect
from orchard.streams.errors import NatsRefused, ServerFailed
from orchard.streams.publisher import Publisher
from orchard.streams.replay import replay
from orchard.streams.server import EmbeddedServer
from orchard.streams.settings import NatsSettings
from orchard.streams.topology import declare

PARENT = """
import asyncio, sys
from pathlib import Path
from orchard.streams.server import EmbeddedServer

async def main():
    server = EmbeddedServer(Path(sys.argv[1]))
    await server.start()
    print(server.pid, flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


async def test_a_killed_server_comes_back_on_its_port_with_its_store(
    server: EmbeddedServer,
    connection: Connection,
    make_fact: Callable[[int], Event],
    kill_server: Callable[[EmbeddedServer], Awaitable[None]],
) -> None:
    sequence = await Publisher(connection).event(make_fact(1))
    port = server.port

    await kill_server(server)
    await server.start()

    assert server.port == port
    assert [stored.sequence async for stored in replay(connection)] == [sequence]


async def test_the_server_dies_with_its_parent(tmp_path: Path) -> None:
    parent = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        PARENT,
        str(tmp_path),
        stdout=asyncio.subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )
    assert parent.stdout is not None
    child = psutil.Process(int(await parent.stdout.readline()))

    parent.kill()
    await parent.wait()

    await asyncio.to_thread(child.wait, 10)


async def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]

        with pytest.raises(ServerFailed, match=f"port {port} is taken by another process"):
            await EmbeddedServer(tmp_path, port).start()


async def test_a_store_in_use_is_named(server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchard.streams.server.LOCK_SECONDS", 0.2)

    with pytest.raises(ServerFailed, match="in use by another server"):
        await EmbeddedServer(server.store).start()


async def test_a_store_that_is_no_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(ServerFailed, match="choose another directory"):
        await EmbeddedServer(tmp_path / "file" / "store").start()


async def test_the_port_alone_opens_nothing(nats_server: EmbeddedServer) -> None:
    """Every local account sees the port; the token in the URL, which others cannot read, is needed."""
    with pytest.raises(NatsRefused):
        url = f"nats://127.0.0.1:{nats_server.port}"
        async with connect(NatsSettings(), name="stranger", url=url):
            pass
    assert (nats_server.store / "nats.conf").stat().st_mode & 0o077 == 0


async def test_a_consumer_whose_state_is_of_no_known_version_is_made_again(
    server: EmbeddedServer, settings: NatsSettings, queue: Queue
) -> None:
    async with connect(settings, name="test", url=server.url) as connection:
        await declare(connection, settings, [queue])
    await server.stop()
    for state in server.store.glob("jetstream/*/streams/*/obs/*/o.dat"):
        damaged = bytearray(state.read_bytes())
        damaged[1] ^= 0x55
        state.write_bytes(damaged)
    await server.start()
    async with connect(settings, name="test", url=server.url) as connection:
        await declare(connection, settings, [queue])

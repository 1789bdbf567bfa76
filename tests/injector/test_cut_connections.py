"""Connections cut anywhere, in a request or an answer: everything is done, and done once."""

import asyncio
import os
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from orchard.injector.client import AsyncSandbox, AsyncSandboxClient

if TYPE_CHECKING:
    from tests.injector.conftest import Service

REQUEST, ANSWER = 0, 1


class CuttingProxy:
    """Passes bytes on. Of each connection, every other one is cut after some bytes of one direction."""

    def __init__(self, port: int, most: int) -> None:
        """Cuts come after less than `most` bytes."""
        self._port = port
        self._plans = self._make_plans(most)
        self.cuts = {REQUEST: 0, ANSWER: 0}

    async def start(self) -> asyncio.Server:
        return await asyncio.start_server(self._connected, "127.0.0.1", 0)

    @staticmethod
    def _make_plans(most: int) -> Iterator[tuple[int, int] | None]:
        chance = random.Random(5)
        while True:
            yield chance.choice((REQUEST, ANSWER)), int(most ** chance.random())
            yield None

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        plan = next(self._plans)
        limits = [None, None] if plan is None else [plan[1] if way == plan[0] else None for way in (0, 1)]
        there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self._port)
        pumps = [
            asyncio.create_task(self._pump(reader, there_writer, limits[REQUEST], REQUEST)),
            asyncio.create_task(self._pump(there_reader, writer, limits[ANSWER], ANSWER)),
        ]
        await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        for pump in pumps:
            pump.cancel()
        for end in (writer, there_writer):
            end.transport.abort()

    async def _pump(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, limit: int | None, way: int
    ) -> None:
        with suppress(ConnectionError):
            while data := await source.read(65536):
                if limit is not None and len(data) >= limit:
                    target.write(data[:limit])
                    await target.drain()
                    self.cuts[way] += 1
                    return
                limit = None if limit is None else limit - len(data)
                target.write(data)
                await target.drain()


@pytest.fixture
def most(request: pytest.FixtureRequest) -> int:
    """Bytes within which connections are cut."""
    return int(getattr(request, "param", 2000))


@pytest.fixture
async def proxy(service: "Service", most: int) -> AsyncIterator[tuple[CuttingProxy, str]]:
    """And its URL."""
    cutting = CuttingProxy(service.port, most)
    server = await cutting.start()
    host, port = server.sockets[0].getsockname()
    yield cutting, f"http://{host}:{port}"
    assert min(cutting.cuts.values()) >= 2, "requests and answers were cut"
    server.close()


@pytest.mark.long
async def test_every_command_runs_once(proxy: tuple[CuttingProxy, str], sandbox: AsyncSandbox) -> None:
    cutting, url = proxy
    async with AsyncSandboxClient(url, auto_cleanup=False) as client:
        cut = await client.get_sandbox(sandbox.sandbox_id)
        number = 0
        while min(cutting.cuts.values()) < 5:
            job = await cut.exec(f"echo {number} >> count; echo done {number}")
            assert (job.stdout, job.exit_code) == (f"done {number}\n", 0)
            number += 1
            # A connection that was not cut would serve all that follow.
            await client._transport.close()
    assert (await sandbox.exec("cat count")).stdout.split() == [str(one) for one in range(number)]


async def test_commands_at_the_same_time_run_once_each(
    proxy: tuple[CuttingProxy, str], sandbox: AsyncSandbox
) -> None:
    async with AsyncSandboxClient(proxy[1], auto_cleanup=False) as client:
        cut = await client.get_sandbox(sandbox.sandbox_id)
        jobs = await asyncio.gather(*(cut.exec(f"echo {one} >> count; echo {one}") for one in range(30)))
    assert [job.stdout for job in jobs] == [f"{one}\n" for one in range(30)]
    counted = (await sandbox.exec("sort -n count")).stdout.split()
    assert counted == [str(one) for one in range(30)]


async def test_every_creation_makes_one_sandbox(
    proxy: tuple[CuttingProxy, str], client: AsyncSandboxClient
) -> None:
    labels = {"of": "cut"}
    async with AsyncSandboxClient(proxy[1]) as cut:
        made = await asyncio.gather(*(cut.create_sandbox("host", labels=labels) for _ in range(12)))
        there = {info.sandbox_id for info in await client.list_sandboxes(labels)}
        assert there == {sandbox.sandbox_id for sandbox in made} and len(made) == len(there)
        forks = await made[0].fork(3)
        there |= {fork.sandbox_id for fork in forks}
        assert {info.sandbox_id for info in await client.list_sandboxes(labels)} == there
    assert await client.list_sandboxes(labels) == []


@pytest.mark.parametrize("most", [2_000_000], indirect=True)
async def test_files_and_directories_arrive_whole(
    proxy: tuple[CuttingProxy, str], sandbox: AsyncSandbox, tmp_path: Path
) -> None:
    cutting, url = proxy
    content = os.urandom(3_000_000)
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "file").write_bytes(content)
    async with AsyncSandboxClient(url, auto_cleanup=False) as client:
        cut = await client.get_sandbox(sandbox.sandbox_id)
        while min(cutting.cuts.values()) < 2:
            await cut.upload_content(content, "/workspace/content")
            assert await cut.download_content("/workspace/content") == content
            await cut.upload_directory(tmp_path / "there", "/workspace/directory")
            await cut.download_directory("/workspace/directory", tmp_path / "back")
            assert (tmp_path / "back" / "file").read_bytes() == content
            await client._transport.close()

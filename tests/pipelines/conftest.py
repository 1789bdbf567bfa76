"""A real sandbox service of the test's own."""

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from importlib import metadata
from pathlib import Path

import pytest
from aiohttp import web

from orchard.injector.client import AsyncSandboxClient
from orchard.injector.local.backend import LocalBackend, agent_command
from orchard.injector.orchestrator.app import Orchestrator
from orchard.injector.orchestrator.keys import Keys
from orchard.pipelines.domains.swe.environments import SynthesisSettings
from orchard.pipelines.domains.swe.packages import PackageCache
from orchard.storage.writing.writer import Writer
from orchard.streams.connection import Connection, connect
from orchard.streams.server import EmbeddedServer
from orchard.streams.settings import NatsSettings
from orchard.streams.topology import declare

RUNNER = ("pytest", "pluggy", "iniconfig", "packaging", "pygments")
"""The test runner and what it needs, as installed here: an environment without an index."""


@pytest.fixture
async def sandboxes(tmp_path: Path) -> AsyncIterator[AsyncSandboxClient]:
    """A client of an orchestrator in this process, over a local agent that ends with the test."""
    state = tmp_path / "sandboxes"
    agent = await asyncio.create_subprocess_exec(*agent_command(state, parent_pid=os.getpid()))
    runner = web.AppRunner(Orchestrator(LocalBackend(state, start_agent=False), Keys([])).application())
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        async with AsyncSandboxClient(f"http://127.0.0.1:{runner.addresses[0][1]}") as client:
            yield client
    finally:
        await runner.cleanup()
        agent.terminate()
        await agent.wait()


@pytest.fixture
def settings() -> SynthesisSettings:
    return SynthesisSettings(pytest=f"pytest=={metadata.version('pytest')}", test_seconds=30.0)


@pytest.fixture
def cache(tmp_path: Path, settings: SynthesisSettings) -> PackageCache:
    """Has the environment with the test runner already, so that pip is never asked."""
    cache = PackageCache(tmp_path / "cache")
    target = cache.environment_path([settings.pytest])
    for name in RUNNER:
        for file in metadata.files(name) or []:
            if ".." not in file.parts:
                (target / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file.locate(), target / file)
    return cache


@pytest.fixture
async def connection(nats_server: EmbeddedServer) -> AsyncIterator[Connection]:
    settings = NatsSettings()
    async with connect(settings, name="test", url=nats_server.url) as opened:
        await declare(opened, settings, [])
        yield opened


@pytest.fixture
def committed(connection: Connection, tmp_path: Path) -> Callable[[], Awaitable[str]]:
    """Writes what the stream holds into the store; its path."""

    async def write() -> str:
        stop = asyncio.Event()
        stop.set()
        await Writer(str(tmp_path / "store"), connection).run(stop)
        return str(tmp_path / "store")

    return write

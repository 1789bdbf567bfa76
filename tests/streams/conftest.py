"""Fixtures of the wire: a real server with its topology, and connections to it."""

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from orchard.schemas.blobs import BlobRef
from orchard.schemas.campaigns import ModelSpec, RolloutRequest, TaskRef
from orchard.schemas.events import Event, RolloutAborted, SandboxDeleted, make_event
from orchard.schemas.identity import rollout_id
from orchard.schemas.llm_calls import ModelKind
from orchard.schemas.outcomes import AbortCause
from orchard.schemas.queues import Queue
from orchard.streams.connection import Connection, connect
from orchard.streams.server import EmbeddedServer, find_binary
from orchard.streams.settings import NatsSettings
from orchard.streams.topology import declare

Eventually = Callable[[Callable[[], Awaitable[bool]]], Awaitable[None]]


@pytest.fixture
def settings() -> NatsSettings:
    """Short leases, so that tests of their end take seconds."""
    return NatsSettings(ack_wait=1.5, heartbeat=0.3, max_deliver=2, patience=30.0)


@pytest.fixture
def queue() -> Queue:
    return Queue()


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[EmbeddedServer]:
    """A running server with an empty store."""
    async with EmbeddedServer(tmp_path / "nats") as running:
        yield running


@pytest.fixture
async def connection(
    server: EmbeddedServer, settings: NatsSettings, queue: Queue
) -> AsyncIterator[Connection]:
    """A connection to a server on which the topology is declared."""
    async with connect(settings, name="test", url=server.url) as opened:
        await declare(opened, settings, [queue])
        yield opened


@pytest.fixture
def external_server(tmp_path: Path) -> Callable[[str], AbstractAsyncContextManager[str]]:
    """A server that is not ours, with this configuration, as a context manager that gives its address."""

    @asynccontextmanager
    async def run(config: str) -> AsyncIterator[str]:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        path = tmp_path / "external.conf"
        path.write_text(f"listen: 127.0.0.1:{port}\n{config}\n")
        process = await asyncio.create_subprocess_exec(
            str(find_binary()), "-c", str(path), stderr=asyncio.subprocess.PIPE
        )
        assert process.stderr is not None
        while b"Server is ready" not in (line := await process.stderr.readline()):
            assert line, "the server did not start"
        try:
            yield f"127.0.0.1:{port}"
        finally:
            process.terminate()
            await process.communicate()

    return run


@pytest.fixture
def make_request() -> Callable[[int], RolloutRequest]:
    """Rollout requests of one campaign, by sample index."""

    def make(sample: int = 0) -> RolloutRequest:
        task = TaskRef(task_id="t1", source="test", repo="a/b", blob=BlobRef(sha256="0" * 64, size=1))
        return RolloutRequest(
            rollout_id=rollout_id("demo", "t1", "mini", "m", sample),
            campaign="demo",
            task=task,
            harness="mini",
            model=ModelSpec(name="m"),
            sample=sample,
        )

    return make


@pytest.fixture
def make_fact() -> Callable[[int], Event]:
    """Ordinary events with ids of their own, by number."""

    def make(number: int) -> Event:
        data = SandboxDeleted(sandbox_id=f"s{number}")
        return make_event(
            data, id=f"fact-{number}", source="orchard/test", campaign="demo", rollout_id="ab12"
        )

    return make


@pytest.fixture
def make_terminal() -> Callable[..., Event]:
    """The outcome of one attempt of a rollout; the cause does not matter."""

    def make(attempt: int, rollout: str = "ab12") -> Event:
        data = RolloutAborted(
            task_id="t",
            task_source="s",
            repo="r",
            harness="h",
            model="m",
            model_kind=ModelKind.MODEL,
            sample=0,
            worker=f"w{attempt}",
            started_at=datetime.now(UTC),
            seconds=1.0,
            cause=AbortCause.LLM_UNAVAILABLE,
        )
        return make_event(
            data,
            id=f"{rollout}.{attempt}.done",
            source="orchard/test",
            campaign="demo",
            rollout_id=rollout,
            attempt=attempt,
        )

    return make


@pytest.fixture
def eventually() -> Eventually:
    """Wait for a condition of the world outside, at most 20 seconds."""

    async def wait(condition: Callable[[], Awaitable[bool]]) -> None:
        async with asyncio.timeout(20):
            while not await condition():
                await asyncio.sleep(0.05)

    return wait


async def kill(server: EmbeddedServer) -> None:
    """SIGKILL, and wait until it is gone."""
    os.kill(server.pid, signal.SIGKILL)
    await server.wait()


@pytest.fixture
def kill_server() -> Callable[[EmbeddedServer], Awaitable[None]]:
    return kill

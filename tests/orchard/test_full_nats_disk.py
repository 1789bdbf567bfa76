"""A NATS disk that fills up: work stops before it is full, says so, and goes on when there is space."""

import asyncio
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import msgspec
import pytest

from orchard.processes.server_supervisor import ServerSupervisor
from orchard.schemas.events import Event, SandboxFailure, make_event
from orchard.schemas.outcomes import AbortCause
from orchard.schemas.queues import Queue
from orchard.streams import names
from orchard.streams.claims import Claims
from orchard.streams.connection import Connection, connect
from orchard.streams.disk_space import disk_shortage
from orchard.streams.errors import NoSpace
from orchard.streams.publisher import Publisher
from orchard.streams.replay import replay
from orchard.streams.server import EmbeddedServer, embedded
from orchard.streams.settings import NatsSettings
from orchard.streams.stream_check import StreamGuard, guarded
from orchard.streams.stream_state import ExpectedStream
from orchard.streams.tasks import end
from orchard.streams.topology import declare
from tests.entries import named

MIB = 1024 * 1024
SETTINGS = NatsSettings(reserve_bytes=6 * MIB, patience=60.0)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchard.streams.publish.ACK_TIMEOUT", 0.5)
    monkeypatch.setattr("orchard.streams.stream_check.LOOK_SECONDS", 0.2)
    monkeypatch.setattr("orchard.streams.stream_check.HELD_LOOK_SECONDS", 0.2)
    monkeypatch.setattr("orchard.processes.server_supervisor.LOOK_SECONDS", 0.2)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 24 MiB."""
    place = tmp_path / "small"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(place)], check=True)
    yield place
    subprocess.run(["umount", str(place)], check=True)


def fact(number: int) -> Event:
    """An event of 100 kB."""
    data = SandboxFailure(cause=AbortCause.INTERNAL_ERROR, detail="x" * 100_000, will_retry=False)
    return make_event(data, id=f"fact-{number}", source="orchard/test", campaign="demo", rollout_id="ab12")


async def archived() -> ExpectedStream:
    """The tables of a store whose events were archived, so that a purge is no loss."""
    return ExpectedStream(sealed=10_000)


@asynccontextmanager
async def pipeline(
    place: Path, settings: NatsSettings, told: list[str]
) -> AsyncIterator[tuple[EmbeddedServer, Connection]]:
    """A kept server and a worker's connection; `told` gets what `orchard up` would say."""
    async with embedded(place, settings) as server:
        keeping = asyncio.create_task(
            ServerSupervisor(server, settings, told.append, lambda: None, pause=0.1).run()
        )
        try:
            async with connect(settings, name="worker", url=server.url) as worker:
                await declare(worker, settings, [Queue()])
                room = partial(asyncio.to_thread, disk_shortage, server.store, settings)
                guard = StreamGuard(worker, settings, archived, room=room, on_change=told.append)
                async with guarded(guard, worker, hold=True):
                    yield server, worker
        finally:
            await end(keeping)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(40):
        while not condition():
            await asyncio.sleep(0.02)


def said(told: list[str], text: str) -> Callable[[], bool]:
    return lambda: any(text in sentence for sentence in told)


@pytest.mark.long
async def test_a_full_disk_holds_work_and_heals_when_there_is_space(small_disk: Path) -> None:
    told: list[str] = []
    async with pipeline(small_disk, SETTINGS, told) as (_, worker), Claims(worker, Queue()) as claims:
        publisher = Publisher(worker)
        await publisher.offer(named(Queue(), "request", b"body"))
        stored = 0
        while not worker.full:
            await publisher.event(fact(stored))
            stored += 1
            await asyncio.sleep(0 if stored < 150 else 0.05)  # the guard looks every 0.2 s
        assert "bytes free, less than the 6291456 of nats.reserve_bytes" in told[-1]
        assert await claims.next(0.3) is None

        ballast = small_disk / "ballast"
        with pytest.raises(OSError, match="No space left"):
            ballast.write_bytes(b"x" * 24 * MIB)
        finishing = asyncio.create_task(publisher.events([fact(stored + more) for more in range(20)]))
        await until(said(told, "nats can write no more"))
        assert not finishing.done()

        ballast.unlink()
        await until(said(told, "there is space again"))
        await finishing
        ids = [message.event.id async for message in replay(worker) if message.event]
        assert ids == [f"fact-{number}" for number in range(stored + 20)]
        await worker.jetstream.purge_stream(names.EVENTS)
        await until(lambda: not worker.full)
        claim = await claims.next(10)
        assert claim is not None
        await claim.complete()


async def test_at_its_own_limit_the_server_refuses_and_goes_on_when_there_is_room(tmp_path: Path) -> None:
    settings = msgspec.structs.replace(SETTINGS, max_file_store=3 * MIB, full_share=0.7)
    told: list[str] = []
    async with pipeline(tmp_path, settings, told) as (server, worker), Claims(worker, Queue()) as claims:
        async with connect(settings, name="command", url=server.url) as command:
            with pytest.raises(NoSpace, match="the server has no storage left"):
                for number in range(60):
                    await Publisher(command).event(fact(number))
        finishing = asyncio.create_task(Publisher(worker).event(fact(100)))
        await until(said(told, "raise nats.max_file_store and restart"))
        assert await claims.next(0.3) is None
        assert not finishing.done()

        await worker.jetstream.purge_stream(names.EVENTS, subject="orchard.events.demo.>")

        await finishing
        await until(lambda: not worker.full)
        assert await worker.room(0)

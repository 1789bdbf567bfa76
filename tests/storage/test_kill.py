"""A writer that is killed anywhere loses nothing and writes nothing twice."""

import asyncio
import random
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from orchard.schemas.positions import Position
from orchard.storage.delta import snapshot
from orchard.storage.digest import store_digests
from orchard.storage.location import Location
from orchard.storage.reader import open_tables
from orchard.storage.tables import EVENTS
from orchard.storage.upkeep.maintenance import check, rebuild_derived, rebuild_events
from orchard.streams.connection import Connection
from orchard.streams.publisher import Publisher
from orchard.streams.server import EmbeddedServer

ROWS, KILLS = 7, 3
"""Small commits, so that kills fall between them."""


@asynccontextmanager
async def writer_process(store: str, url: str) -> AsyncIterator[asyncio.subprocess.Process]:
    script = Path(__file__).with_name("writer_process.py")
    process = await asyncio.create_subprocess_exec(
        sys.executable, script, store, url, str(ROWS), stderr=asyncio.subprocess.PIPE
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def _watermark(store: str) -> int:
    """Sequence of the newest committed event, 0 before there is one."""
    if not (Path(store) / "tables" / EVENTS / "_delta_log").is_dir():
        return 0
    return max((file.last for file in snapshot(Location.parse(store), EVENTS)), default=0)


async def _until_past(store: str, sequence: int) -> None:
    async with asyncio.timeout(60):
        while await asyncio.to_thread(_watermark, store) <= sequence:
            await asyncio.sleep(0.01)


async def test_sigkill_loses_and_doubles_nothing(
    nats_server: EmbeddedServer,
    connection: Connection,
    publisher: Publisher,
    store: str,
    write: Callable[[], Awaitable[None]],
    log,
) -> None:
    chance = random.Random(7)
    published = 0
    for kill in range(KILLS):
        events = [event for sample in range(20) for event in log.whole_rollout(kill * 20 + sample)]
        await publisher.events(events)
        published += len(events)
        async with writer_process(store, nats_server.url) as process:
            await _until_past(store, published - len(events))
            await asyncio.sleep(chance.random() * 0.3)  # anywhere in the work: the moment is the test's input
            process.kill()
    await write()

    with open_tables(store) as tables:
        sequences = tables.sql("select sequence from events order by sequence").fetchall()
        counts = tables.sql(
            "select (select count(*) from messages), (select count(*) from rollouts)"
        ).fetchall()
        conservation = tables.sql("select requested, finished, open, holds from conservation").fetchall()
    assert sequences == [(n,) for n in range(1, published + 1)]
    assert counts == [(20 * KILLS, 20 * KILLS)]
    assert conservation == [(20 * KILLS, 20 * KILLS, 0, True)]
    assert check(store) == []

    live = store_digests(store)
    rebuild_derived(store)
    assert store_digests(store) == live
    assert await rebuild_events(store, connection) == Position.of(published)
    assert store_digests(store) == live


@pytest.mark.long
async def test_sigterm_commits_what_the_stream_holds(
    nats_server: EmbeddedServer, publisher: Publisher, store: str, log
) -> None:
    await publisher.events(log.whole_rollout(0))
    async with writer_process(store, nats_server.url) as process:
        await _until_past(store, 0)
        await publisher.events([event for sample in range(1, 30) for event in log.whole_rollout(sample)])
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0
    with open_tables(store) as tables:
        assert tables.sql("select count(*) from events").fetchall() == [(180,)]
        assert tables.sql("select count(*) from rewards").fetchall() == [(30,)]


@pytest.mark.long
async def test_the_lock_of_a_killed_writer_is_free(
    nats_server: EmbeddedServer, publisher: Publisher, store: str, write: Callable[[], Awaitable[None]], log
) -> None:
    await publisher.events(log.whole_rollout(0))
    async with (
        writer_process(store, nats_server.url) as first,
        writer_process(store, nats_server.url) as second,
    ):
        done, _ = await asyncio.wait(
            {asyncio.create_task(first.wait()), asyncio.create_task(second.wait())},
            return_when=asyncio.FIRST_COMPLETED,
            timeout=60,
        )
        refused, holder = (first, second) if first.returncode is not None else (second, first)
        assert len(done) == 1
        assert refused.stderr is not None
        sentence = (await refused.stderr.read()).decode()
        assert sentence.startswith(f"another writer (process {holder.pid}) is working on the store")
        assert len(sentence.splitlines()) == 1
        holder.kill()
        await holder.wait()
    await write()

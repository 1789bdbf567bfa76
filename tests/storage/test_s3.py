"""A store on S3 is the same store: over a real service's wire, and over connections that break."""

import asyncio
import os
import random
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from orchard.schemas.positions import START, Position
from orchard.storage import compaction
from orchard.storage.blobs import BlobStore
from orchard.storage.delta import StoreTable
from orchard.storage.digest import store_digests
from orchard.storage.errors import StorageError, StoreBusy, StoreUnreachable
from orchard.storage.location import Location
from orchard.storage.reader import last_event_ids, open_tables, position
from orchard.storage.tables import EVENTS
from orchard.storage.upkeep.maintenance import check, compact, rebuild_derived, rebuild_events
from orchard.storage.writing.writer import Writer, WriterSettings
from orchard.streams import names
from orchard.streams.connection import Connection
from orchard.streams.publisher import Publisher
from orchard.streams.reading import bounds
from orchard.streams.server import EmbeddedServer
from tests.s3_server import CREDENTIALS, Faults, faulty_proxy, s3_service
from tests.storage.test_kill import writer_process

BUCKET = "orchard"


@pytest.fixture(scope="module")
def service() -> Iterator[str]:
    with s3_service(BUCKET) as url:
        yield url


@pytest.fixture
def s3_store(service: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """A prefix of this test's own."""
    for name, value in (CREDENTIALS | {"AWS_ENDPOINT_URL": service}).items():
        monkeypatch.setenv(name, value)
    return f"s3://{BUCKET}/{tmp_path.name}"


@pytest.fixture
async def proxied(
    service: str, s3_store: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[str, Faults]]:
    """The same store through connections that fail as told; none do at first."""
    faults = Faults(random.Random(11))
    async with faulty_proxy(service, faults) as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        yield s3_store, faults


async def _write(store: str, connection: Connection, rows: int = 7) -> None:
    stop = asyncio.Event()
    stop.set()
    await Writer(store, connection, WriterSettings(commit_rows=rows)).run(stop)


async def _publish(publisher: Publisher, log, samples: range) -> None:
    for sample in samples:
        await publisher.events(log.whole_rollout(sample))


@pytest.mark.long
async def test_a_store_on_s3_equals_one_in_a_directory(
    connection: Connection, publisher: Publisher, s3_store: str, store: str, log
) -> None:
    await _publish(publisher, log, range(3))
    await _write(s3_store, connection)
    await _write(store, connection)
    assert store_digests(s3_store) == store_digests(store)
    assert check(s3_store) == []
    assert await asyncio.to_thread(compact, s3_store) != {}
    location = Location.parse(s3_store)
    assert compaction.vacuum(location, EVENTS) == 0  # what was merged away is kept for readers
    await rebuild_events(s3_store, connection)
    rebuild_derived(s3_store)
    assert store_digests(s3_store) == store_digests(store)
    with open_tables(s3_store) as tables:
        assert tables.sql("select count(*) from rollouts").fetchall() == [(3,)]


@pytest.mark.long
async def test_blobs_on_s3_are_verified(s3_store: str) -> None:
    blobs = BlobStore(s3_store)
    small, large = b"x", os.urandom(12 * 1024 * 1024)
    references = [blobs.put(data, "text/plain") for data in (small, large, b"")]
    assert [blobs.get(reference) for reference in references] == [small, large, b""]
    assert blobs.put(large) == blobs.put(large)


@pytest.mark.slow
async def test_of_two_writers_on_s3_one_is_refused(
    connection: Connection, publisher: Publisher, s3_store: str, store: str, log
) -> None:
    """No lock reaches over machines: the commit itself must refuse."""
    await _publish(publisher, log, range(3))
    settings = WriterSettings(commit_rows=2)
    writers = [asyncio.create_task(Writer(s3_store, connection, settings).run(asyncio.Event())) for _ in "ab"]
    refused, others = await asyncio.wait(writers, return_when=asyncio.FIRST_COMPLETED)
    for writer in refused:
        with pytest.raises(StoreBusy):
            writer.result()
    for writer in others:
        writer.cancel()
    await asyncio.wait(writers)
    for target in (s3_store, store):
        await _write(target, connection)
    assert check(s3_store) == []
    assert store_digests(s3_store) == store_digests(store)


@pytest.mark.slow
async def test_connections_that_break_lose_and_double_nothing(
    connection: Connection, publisher: Publisher, proxied: tuple[str, Faults], store: str, log
) -> None:
    s3_store, faults = proxied
    await _publish(publisher, log, range(4))
    last = (await bounds(connection, names.EVENTS)).last
    faults.share = 0.1
    failures, reached = 0, START
    while reached.last(0) < last:
        try:
            await _write(s3_store, connection, rows=20)
            reached = await asyncio.to_thread(position, s3_store)
        except (StoreBusy, StoreUnreachable):
            failures += 1
            assert failures < 100
    faults.share = 0.0
    assert set(faults.counts) == {"refused", "cut", "unavailable"}
    assert min(faults.counts.values()) > 0
    await _write(store, connection)
    assert await asyncio.to_thread(store_digests, s3_store) == store_digests(store)
    assert await asyncio.to_thread(check, s3_store) == []


async def test_a_file_that_comes_short_is_a_store_that_cannot_be_used(
    connection: Connection, publisher: Publisher, store: str, log
) -> None:
    """As after a reply that was cut within its headers, which Arrow takes for one about an empty file."""
    await _publish(publisher, log, range(1))
    await _write(store, connection)
    location = Location.parse(store)
    events = StoreTable(location, EVENTS)
    for size in (100, 0):
        os.truncate(location.key("tables", EVENTS, events.files()[-1].path), size)
        with pytest.raises(StoreUnreachable, match="Parquet"):
            last_event_ids(location, events.files(), Position((1,)))


async def test_a_service_that_stalls_does_not_stop_the_writers_process(
    connection: Connection, proxied: tuple[str, Faults]
) -> None:
    """The loop has signals and NATS to serve while the writer waits for its last call to S3."""
    s3_store, faults = proxied
    faults.open.clear()
    writer = asyncio.create_task(Writer(s3_store, connection).run(asyncio.Event()))
    await faults.waiting.wait()
    writer.cancel()
    for _ in range(3):  # the writer has come to its end, which waits for its thread
        await asyncio.sleep(0)
    assert not writer.done()
    faults.open.set()
    with pytest.raises(asyncio.CancelledError):
        await writer


async def test_a_service_that_is_away_is_one_clear_error(
    monkeypatch: pytest.MonkeyPatch, s3_store: str, connection: Connection
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(StorageError, match=s3_store):
        await _write(s3_store, connection)


@pytest.mark.slow
async def test_sigkill_on_s3_loses_and_doubles_nothing(
    nats_server: EmbeddedServer,
    connection: Connection,
    publisher: Publisher,
    s3_store: str,
    store: str,
    log,
) -> None:
    chance = random.Random(5)
    for kill in range(2):
        before = (await bounds(connection, names.EVENTS)).last
        await _publish(publisher, log, range(kill * 4, kill * 4 + 4))
        goal = before + chance.randrange(5, 20)
        async with writer_process(s3_store, nats_server.url) as process:
            while (await asyncio.to_thread(position, s3_store)).last(0) < goal:
                assert process.returncode is None
                await asyncio.sleep(0.1)  # a look is five requests to a service that the writer needs too
            process.send_signal(signal.SIGKILL)
            await process.wait()
    await _write(s3_store, connection)
    await _write(store, connection)
    assert store_digests(s3_store) == store_digests(store)

"""A stream whose files lost bytes: nothing is published until it holds again whatever it or the tables
hold."""

import asyncio
import os
import random
import shutil
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace

from orchard.pipelines.campaigns.archiving import Archiving
from orchard.pipelines.campaigns.commands import Campaigns
from orchard.schemas.blobs import BlobRef
from orchard.schemas.campaigns import CampaignSpec, CampaignState, ModelSpec, TaskRef
from orchard.schemas.events import Event, encode_event
from orchard.schemas.positions import Position
from orchard.schemas.queues import Queue
from orchard.storage.blobs import BlobStore
from orchard.storage.campaigns import restore_campaigns
from orchard.storage.digest import store_digests
from orchard.storage.errors import EventsLost, OtherStream
from orchard.storage.reader import log_end, open_tables
from orchard.storage.settings import ArchiveSettings
from orchard.storage.upkeep.maintenance import check, rebuild_derived, rebuild_events
from orchard.storage.upkeep.restore import Restored, restore_stream
from orchard.storage.writing.writer import Writer, WriterSettings
from orchard.streams import names
from orchard.streams.backup import replace_stream
from orchard.streams.campaigns import CampaignBook
from orchard.streams.claims import Claims
from orchard.streams.connection import Connection, connect
from orchard.streams.errors import EventsForgotten, OutcomeRefused, StreamHeld
from orchard.streams.publish import OutgoingMessage, store_all
from orchard.streams.publisher import Publisher
from orchard.streams.reading import bounds, next_message
from orchard.streams.replay import replay
from orchard.streams.server import EmbeddedServer
from orchard.streams.settings import NatsSettings
from orchard.streams.stream_check import StreamGuard, guarded
from orchard.streams.stream_state import ExpectedStream
from orchard.streams.tasks import end
from orchard.streams.topology import declare
from tests.entries import named

SETTINGS = NatsSettings(patience=30.0)
SMALL_FILES = NatsSettings(event_max_bytes=100_000)
"""The server makes files of 32 KB for a stream that is declared with so small a limit."""
ROLLOUTS, COMMITTED = 50, 35


class Scene(NamedTuple):
    """A pipeline that was killed: its directory, and what its stream had by sequence."""

    directory: Path
    published: list[Event]
    watermark: int

    @property
    def store(self) -> str:
        return str(self.directory / "store")

    @property
    def streams(self) -> Path:
        return next((self.directory / "nats").glob("jetstream/*/streams"))


@pytest.fixture
async def scene(tmp_path: Path, log, prose: Callable[[int], str]) -> Scene:
    """Rollouts in the stream, most of them in the tables, requests in the queue; then SIGKILL."""
    return await make_scene(tmp_path, log, prose, COMMITTED)


@pytest.fixture
async def committed(tmp_path: Path, log, prose: Callable[[int], str]) -> Scene:
    """As `scene`, with all of them in the tables."""
    return await make_scene(tmp_path, log, prose, ROLLOUTS)


async def make_scene(tmp_path: Path, log, prose: Callable[[int], str], committed: int) -> Scene:
    directory = tmp_path / "scene"
    server = EmbeddedServer(directory / "nats")
    await server.start()
    published: list[Event] = []
    async with connect(SETTINGS, name="first", url=server.url) as connection:
        await declare(connection, SMALL_FILES, [Queue()])
        await declare(connection, SETTINGS, [Queue()])
        for sample in range(ROLLOUTS):
            published += await _publish(connection, log.whole_rollout(sample, prose(3_000)))
            if sample + 1 == committed:
                await write(str(directory / "store"), connection)
        entries = [named(Queue(), f"r{number}", prose(300).encode()) for number in range(100)]
        await Publisher(connection).offer_all(entries)
    os.kill(server.pid, signal.SIGKILL)
    await server.wait()
    return Scene(directory, published, committed * 6)


async def _publish(connection: Connection, events: list[Event]) -> list[Event]:
    await Publisher(connection).events(events)
    return events


async def write(store: str, connection: Connection) -> None:
    stop = asyncio.Event()
    stop.set()
    await Writer(store, connection).run(stop)


@asynccontextmanager
async def pipeline(scene: Scene) -> AsyncIterator[tuple[Connection, Connection]]:
    """The server started again, with its topology: a connection for a worker and one for the operator."""
    async with (
        EmbeddedServer(scene.directory / "nats") as server,
        connect(SETTINGS, name="worker", url=server.url) as worker,
        connect(SETTINGS, name="operator", url=server.url) as operator,
    ):
        await declare(operator, SETTINGS, [Queue()])
        yield worker, operator


async def nothing_known() -> ExpectedStream:
    return ExpectedStream()


def guard_of(scene: Scene, connection: Connection) -> StreamGuard:
    async def look() -> ExpectedStream:
        watermark, last_ids = log_end(scene.store)
        return ExpectedStream(watermark.last(0), last_id=last_ids.get(0))

    return StreamGuard(connection, SETTINGS, look, settle=0.0)


async def held(connection: Connection) -> dict[int, bytes]:
    return {stored.sequence: stored.raw async for stored in replay(connection)}


async def restore(scene: Scene, connection: Connection) -> Restored:
    return await restore_stream(scene.store, connection, SETTINGS, scene.directory / "work")


def cut_last(scene: Scene, size: int) -> None:
    blocks = scene.streams.glob(f"{names.EVENTS}/msgs/*.blk")
    for block in sorted(blocks, key=lambda path: -int(path.stem)):
        there = block.stat().st_size
        os.truncate(block, max(0, there - size))
        size = max(0, size - there)


def damage(scene: Scene, chance: random.Random) -> str:
    """Cut or flip bytes at a random place of the stream's files; what was done."""
    files = sorted(path for path in scene.streams.glob(f"{names.EVENTS}/**/*") if path.is_file())
    path = chance.choices(files, weights=[path.stat().st_size + 2000 for path in files])[0]
    size = path.stat().st_size
    if chance.random() < 0.4:
        left = chance.randrange(size)
        os.truncate(path, left)
        return f"{path.name} cut to {left} of {size}"
    place, count = chance.randrange(size), chance.randint(1, 64)
    with path.open("r+b") as file:
        file.seek(place)
        old = file.read(count)
        file.seek(place)
        file.write(bytes(byte ^ chance.randint(1, 255) for byte in old))
    return f"{path.name}: {len(old)} bytes flipped at {place} of {size}"


async def test_what_is_lost_on_the_way_to_the_server_is_sent_again(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a batch only the last message has an answer."""
    posted, dropped, post = 0, set[int](), Connection.post

    async def leaky(self: Connection, *words: Any, **options: Any) -> None:
        nonlocal posted
        posted += not options
        if not options and posted in (3, 40):
            dropped.add(posted)
            return
        await post(self, *words, **options)

    shutil.rmtree(scene.directory / "nats")
    async with pipeline(scene) as (_, operator):
        monkeypatch.setattr(Connection, "post", leaky)
        result = await restore(scene, operator)
        monkeypatch.undo()
        assert dropped and (result.put_back, result.last) == (scene.watermark, scene.watermark)
        for number, raw in (await held(operator)).items():
            assert raw == encode_event(scene.published[number - 1])


@pytest.mark.long
@pytest.mark.parametrize(
    "seed", [pytest.param(n, marks=pytest.mark.slow) if n >= 8 else n for n in range(50)]
)
async def test_bytes_lost_anywhere_lose_no_event_that_the_tables_have(scene: Scene, seed: int) -> None:
    original = {number: encode_event(event) for number, event in enumerate(scene.published, 1)}
    done = damage(scene, random.Random(seed))
    async with pipeline(scene) as (worker, operator):
        survived = await held(operator)
        assert all(original[sequence] == raw for sequence, raw in survived.items()), done
        worker.saw(len(original), original[len(original)])  # it has gone on over the restart
        guard = guard_of(scene, worker)
        await guard.check()
        if survived == original:
            assert not worker.held, done
            return
        assert "run `orchard store restore-stream`" in worker.held, done
        with pytest.raises(StreamHeld):
            await worker.ready(0)

        result = await restore(scene, operator)

        after = await held(operator)
        if after.get(len(original)) == original[len(original)]:
            await guard.check()
            assert not worker.held, done
        else:
            with pytest.raises(EventsForgotten):
                await guard.check()
        known = survived | {n: raw for n, raw in original.items() if n <= scene.watermark}
        assert {n: after[n] for n in known} == known, done
        assert sorted(after) == list(range(1, len(after) + 1)), done
        for sequence, event in enumerate(scene.published[: scene.watermark], 1):
            if event.type == "rollout.finished":
                found = await Publisher(worker).outcome(event.rollout_id or "")
                assert found is not None and found.sequence == sequence, done
        await write(scene.store, operator)
        assert result.lost or check(scene.store) == []
        assert await restore(scene, operator) == Restored(last=len(after))


async def grow(scene: Scene, operator: Connection, log) -> str:
    """What yesterday's workers did: go on at the end of a stream that has lost its end, until it has more
    events than the store. A rollout whose outcome is lost gets another one, by an attempt of the same
    number; another rollout is aborted, reopened and done. Gives the former's id."""
    publisher = Publisher(operator)
    end = (await bounds(operator, names.EVENTS)).last
    started = next(event for event in scene.published[end:] if event.type == "rollout.started")
    rollout = started.rollout_id or ""
    await publisher.event(log.started(rollout))
    await publisher.event(log.message(rollout, text="told otherwise"))
    await publisher.terminal(log.finished(rollout, resolved=None))
    again = log.rollout(1)
    await publisher.event(log.requested(1))
    aborted = await publisher.terminal(log.aborted(again))
    reopened = await publisher.terminal(log.reopened(again, aborted), aborted)
    await publisher.terminal(log.finished(again, attempt=2), fence=reopened)
    while (await bounds(operator, names.EVENTS)).last <= scene.watermark:
        await publisher.event(log.call(again, attempt=2))
    return rollout


def outcomes(store: str) -> list[tuple[object, ...]]:
    with open_tables(store) as tables:
        return tables.sql("select rollout_id, sequence, event_id, reward from rollouts order by 2").fetchall()


@pytest.mark.long
async def test_a_stream_that_went_on_after_a_loss_replaces_no_accepted_outcome(committed: Scene, log) -> None:
    scene, other = committed, type(log)("second")
    before = outcomes(scene.store)
    cut_last(scene, 30_000)
    async with pipeline(scene) as (worker, operator):
        rollout = await grow(scene, operator, other)
        diverged = await held(operator)
        await guard_of(scene, worker).check()

        with pytest.raises(
            EventsLost, match=r"event \d+ is second-1 in the stream and demo-\d+ in the tables"
        ):
            await rebuild_events(scene.store, operator)
        assert outcomes(scene.store) == before
        with pytest.raises(OtherStream, match="orchard store restore-stream"):
            await write(scene.store, operator)

        result = await restore(scene, operator)

        assert result.put_back > 0 and result.moved > 0
        await write(scene.store, operator)
        assert check(scene.store) == []
        assert outcomes(scene.store)[: len(before)] == before
        assert len(outcomes(scene.store)) == len(before) + 1
        with open_tables(scene.store) as tables:
            set_aside = tables.execute(
                "select payload->>'$.raw' from events where type = 'event.displaced' order by sequence"
            ).fetchall()
            superseded = tables.execute(
                "select rollout_id, accepted_attempt from tables.attempts_all where kind = 'superseded'"
            ).fetchall()
            told = tables.execute("select count(*) from messages where content = 'told otherwise'").fetchone()
        after = await held(operator)
        kept = set(after.values()) | {text.encode() for (text,) in set_aside}
        assert set(diverged.values()) <= kept
        assert (rollout, 1) in superseded
        assert told == (0,)
        live = store_digests(scene.store)
        await rebuild_events(scene.store, operator)
        rebuild_derived(scene.store)
        assert store_digests(scene.store) == live


async def test_the_guard_sees_a_stream_that_ends_before_the_tables(committed: Scene, log) -> None:
    """A process that has just started, and saw nothing confirmed."""
    cut_last(committed, 30_000)
    async with pipeline(committed) as (worker, operator):
        with pytest.raises(StreamHeld, match=r"the tables hold events up to 300: .* restore-stream"):
            async with guarded(guard_of(committed, worker), worker, hold=False):
                pass
        with pytest.raises(EventsLost, match="restore-stream"):
            await write(committed.store, operator)

        result = await restore(committed, operator)

        assert result == Restored(put_back=result.put_back, last=300) and result.put_back > 0
        async with guarded(guard_of(committed, worker), worker, hold=False):
            await Publisher(worker).event(type(log)("after").requested(0))


async def test_held_workers_go_on_by_themselves_when_the_stream_is_restored(committed: Scene, log) -> None:
    cut_last(committed, 30_000)
    told: list[str] = []
    async with pipeline(committed) as (worker, operator):
        guard = guard_of(committed, worker)
        guard.on_change = told.append
        async with guarded(guard, worker, hold=True), Claims(worker, Queue()) as claims:
            assert await claims.next(0.3) is None
            publishing = asyncio.create_task(Publisher(worker).event(type(log)("after").requested(0)))
            await asyncio.sleep(0)

            await restore(committed, operator)

            assert await publishing == 301
            claim = await claims.next(10)
            assert claim is not None
            await claim.complete()
    assert len(told) == 2
    assert "restore-stream" in told[0] and "well again" in told[1]


class Process:
    """A process of a pipeline: a guarded connection on a server that is started again under it."""

    def __init__(self, store: str, server: EmbeddedServer, name: str, settle: float) -> None:
        self.connection: Connection
        self.publisher: Publisher
        self._told = asyncio.Event()
        self.task = asyncio.create_task(self._run(store, server, name, settle))

    async def _run(self, store: str, server: EmbeddedServer, name: str, settle: float) -> None:
        async def look() -> ExpectedStream:
            watermark, last_ids = log_end(store)
            return ExpectedStream(watermark.last(0), last_id=last_ids.get(0))

        async with connect(SETTINGS, name=name, url=server.url) as self.connection:
            self.publisher = Publisher(self.connection)
            async with guarded(
                StreamGuard(self.connection, SETTINGS, look, settle=settle), self.connection, hold=True
            ):
                self._told.set()
                await asyncio.Event().wait()

    async def started(self) -> "Process":
        await self._told.wait()
        return self

    async def held(self) -> None:
        await until(lambda: bool(self.connection.held))


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.02)


@asynccontextmanager
async def processes(tmp_path: Path, *names: str) -> AsyncIterator[tuple[EmbeddedServer, str, list[Process]]]:
    """A server with its topology and processes, of which `writer` says after a start that all is well."""
    store = str(tmp_path / "store")
    async with EmbeddedServer(tmp_path / "nats") as server:
        async with connect(SETTINGS, name="declare", url=server.url) as connection:
            await declare(connection, SETTINGS, [Queue()])
        running = [Process(store, server, name, 0.3 if name == "writer" else 60.0) for name in names]
        try:
            yield server, store, [await process.started() for process in running]
        finally:
            for process in running:
                process.task.cancel()
            await asyncio.gather(*(process.task for process in running), return_exceptions=True)


async def damage_newest(server: EmbeddedServer) -> None:
    """The server is killed, a byte of its newest event is another, and it is started again."""
    os.kill(server.pid, signal.SIGKILL)
    await server.wait()
    blocks = server.store.glob(f"jetstream/*/streams/{names.EVENTS}/msgs/*.blk")
    newest = max(blocks, key=lambda path: int(path.stem))
    with newest.open("r+b") as file:
        file.seek(-40, os.SEEK_END)
        (byte,) = file.read(1)
        file.seek(-40, os.SEEK_END)
        file.write(bytes([byte ^ 1]))
    await server.start()


async def restore_over(server: EmbeddedServer, store: str, tmp_path: Path) -> Restored:
    async with connect(SETTINGS, name="operator", url=server.url) as operator:
        return await restore_stream(store, operator, SETTINGS, tmp_path / "work")


@pytest.mark.long
async def test_nobody_publishes_past_a_loss_that_one_process_alone_has_seen(tmp_path: Path, log) -> None:
    """The outcome is confirmed to one worker, not yet read by the writer, and lost."""
    rollout = log.rollout(0)
    async with processes(tmp_path, "knows", "knows not", "writer") as (
        server,
        store,
        (first, second, writer),
    ):
        await first.publisher.events([log.requested(0), log.started(rollout)])
        await write(store, writer.connection)
        await second.publisher.event(log.requested(1))
        lost = await first.publisher.terminal(log.finished(rollout))

        await damage_newest(server)
        publishing = asyncio.create_task(second.publisher.event(log.requested(2)))

        for process in (first, second, writer):
            await process.held()
            assert "restore-stream" in process.connection.held
        assert (await bounds(second.connection, names.EVENTS)).last == lost - 1
        await restore_over(server, store, tmp_path)

        assert await publishing == lost
        with pytest.raises(EventsForgotten):
            await first.task
        again = await second.publisher.terminal(log.finished(rollout, attempt=2))
        await write(store, second.connection)
        assert [sequence for _, sequence, *_ in outcomes(store)] == [again]


async def test_what_the_writer_has_read_and_not_committed_is_not_replaced(tmp_path: Path, log) -> None:
    rollout = log.rollout(0)
    async with processes(tmp_path, "worker", "writer") as (server, store, (worker, writer)):
        stop = asyncio.Event()
        slowly = WriterSettings(commit_seconds=600.0)
        writing = asyncio.create_task(Writer(store, writer.connection, slowly).run(stop))
        await worker.publisher.events([log.requested(0), log.started(rollout)])
        accepted = await worker.publisher.terminal(log.finished(rollout))
        await until(lambda: writer.connection.newest.get(0, (0,))[0] == accepted)
        worker.connection.newest = {}  # it has died, and another one came

        await damage_newest(server)
        publishing = asyncio.create_task(worker.publisher.event(log.requested(1)))
        await writer.held()
        stop.set()
        await writing

        assert log_end(store)[0] == Position.of(accepted)
        assert (await bounds(worker.connection, names.EVENTS)).last == accepted - 1
        assert (await restore_over(server, store, tmp_path)).put_back == 1
        assert await publishing == accepted + 1
        with pytest.raises(OutcomeRefused):
            await worker.publisher.terminal(log.finished(rollout, attempt=2))


async def test_sequences_that_were_given_again_are_recognized(tmp_path: Path, log) -> None:
    """Whoever is not guarded has published past the loss before anybody looked."""
    async with (
        processes(tmp_path, "writer") as (server, _, _),
        connect(SETTINGS, name="worker", url=server.url) as worker,
    ):
        guard = StreamGuard(worker, SETTINGS, nothing_known, settle=0.0)
        await guard.check()
        await Publisher(worker).events([log.requested(number) for number in range(3)])
        await damage_newest(server)
        async with connect(SETTINGS, name="stranger", url=server.url) as stranger:
            await Publisher(stranger).events([log.requested(number) for number in range(10, 15)])

        await guard.check()

        assert "has another event at 3 than it had confirmed" in worker.held


async def test_what_one_process_has_found_holds_until_the_stream_is_restored(tmp_path: Path, log) -> None:
    """Also when that process is gone, and the server was started again."""
    async with processes(tmp_path, "knows", "writer") as (server, store, (first, writer)):
        await first.publisher.events([log.requested(number) for number in range(3)])
        await damage_newest(server)
        await writer.held()
        first.task.cancel()
        os.kill(server.pid, signal.SIGKILL)
        await server.wait()
        await server.start()
        newcomer = await Process(store, server, "newcomer", 0.0).started()

        await newcomer.held()

        await restore_over(server, store, tmp_path)
        assert await newcomer.publisher.event(log.requested(5)) == 3
        await end(newcomer.task)


@pytest.mark.long
@pytest.mark.parametrize("moment", ["comparing", "rebuilding", "replacing the stream"])
async def test_a_restore_that_is_ended_anywhere_goes_on(
    scene: Scene, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ended is a cancelled task here: what it leaves behind is what SIGKILL leaves."""
    original = {number: encode_event(event) for number, event in enumerate(scene.published, 1)}
    os.truncate(next(scene.streams.glob(f"{names.EVENTS}/msgs/2.blk")), 10_000)
    monkeypatch.setattr("orchard.storage.upkeep.restore._BATCH", 20)

    def ended(what: str, *_: int) -> None:
        if what == moment:
            raise asyncio.CancelledError

    async with pipeline(scene) as (_, operator):
        with pytest.raises(asyncio.CancelledError):
            await restore_stream(scene.store, operator, SETTINGS, scene.directory / "work", tell=ended)
        result = await restore(scene, operator)
        assert result.put_back > 0 and result.lost == 0
        assert await held(operator) == original


async def test_a_stream_that_grows_back_has_no_new_mark_before_it_is_whole(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server shows it while it grows. A guard that looks then tells of a loss, which the mark ends."""
    os.truncate(next(scene.streams.glob(f"{names.EVENTS}/msgs/2.blk")), 10_000)
    seen: list[str] = []

    async def mark(connection: Connection) -> str:
        config = (await connection.jetstream.stream_info(names.EVENTS)).config
        return (config.metadata or {}).get(names.RESTORED, "")

    async def watched(source: Connection, target: Connection, *rest: Any) -> None:
        await replace_stream(source, target, *rest)
        seen.append(await mark(target))

    monkeypatch.setattr("orchard.storage.upkeep.restore.replace_stream", watched)
    async with pipeline(scene) as (worker, operator):
        before = await mark(operator)
        await restore(scene, operator)
        assert seen == [before] and await mark(operator) != before

        await guard_of(scene, worker).check()
        assert not worker.held


async def test_a_deleted_stream_comes_back_from_the_tables(committed: Scene) -> None:
    original = {number: encode_event(event) for number, event in enumerate(committed.published, 1)}
    shutil.rmtree(committed.streams / names.EVENTS)
    async with pipeline(committed) as (worker, operator):
        await guard_of(committed, worker).check()
        assert "restore-stream" in worker.held

        await restore(committed, operator)

        assert await held(operator) == original


async def test_foreign_encodings_come_back_byte_for_byte(
    connection: Connection, store: str, tmp_path
) -> None:
    """Events of other producers, whose JSON has another order, blanks or attributes; and what is no event."""
    foreign = [
        b'{"id": "x", "source":"s","type":"t.u","subject":"a","time":"2026-01-01T00:00:00+02:00",'
        b'"dataschema":"d","campaign":"c", "data": {"a" : 1}, "more": [1, 2]}',
        b"\xff\x00 no event",
        b"[1, 2]",
    ]
    for raw in foreign:
        await connection.jetstream.publish("orchard.events.c.00.t.u", raw)
    await write(store, connection)
    await connection.jetstream.purge_stream(names.EVENTS)
    await connection.jetstream.delete_stream(names.EVENTS)

    await restore_stream(store, connection, NatsSettings(), tmp_path / "work")

    assert list((await held(connection)).values()) == foreign


@pytest.mark.parametrize("raw", [b"\xff\x00 no event", b'{"id": "x", "campaign": "other"}'])
async def test_what_was_archived_under_its_subject_stays_away_though_it_cannot_be_read(
    connection: Connection, publisher: Publisher, store: str, tmp_path: Path, log: Any, raw: bytes
) -> None:
    await publisher.events(log.whole_rollout(0))
    await connection.jetstream.publish("orchard.events.demo.00.t.u", raw)
    await write(store, connection)
    archiving = Archiving(connection, store, BlobStore(store), ArchiveSettings())
    async for _ in archiving.archive("demo"):
        pass
    await write(store, connection)
    before = await held(connection)

    restored = await restore_stream(store, connection, NatsSettings(), tmp_path / "work")

    assert restored.put_back == 0 and await held(connection) == before


async def test_lost_requests_and_campaigns_do_not_keep_the_server_from_starting(scene: Scene) -> None:
    for stream in (names.WORK, names.CAMPAIGNS_STREAM, names.LATER):
        for path in [path for path in (scene.streams / stream).rglob("*") if path.is_file()]:
            os.truncate(path, path.stat().st_size // 2)
    async with (
        pipeline(scene) as (worker, operator),
        guarded(guard_of(scene, worker), worker, hold=False),
    ):
        assert (await bounds(operator, names.WORK)).messages < 100
        await Publisher(worker).offer(named(Queue(), "another", b"body"))
        async with Claims(worker, Queue()) as claims:
            claim = await claims.next(5)
            assert claim is not None
            await claim.complete()


FIRST_CAMPAIGN = CampaignSpec(
    name="first",
    tasks=(TaskRef(task_id="t1", source="test", repo="a/b", blob=BlobRef(sha256="0" * 64, size=1)),),
    harnesses=("orchard-bash",),
    models=(ModelSpec(name="m"),),
    samples=3,
)


async def test_a_lost_campaign_is_made_again_from_the_log(connection: Connection, store: str) -> None:
    campaigns = Campaigns(connection, BlobStore(store))
    async for _ in campaigns.submit(FIRST_CAMPAIGN):
        pass
    await campaigns.pause("first")
    plan = await next_message(connection, names.EVENTS, 1, "orchard.events.first.*.campaign.submitted")
    move = await next_message(connection, names.EVENTS, 1, "orchard.events.first.*.campaign.state_changed")
    assert plan is not None and move is not None
    strange = (plan.data.replace(b'"size":3', b'"size":"3"'), move.data.replace(b'"paused"', b'"gone"'))
    await store_all(
        connection, [OutgoingMessage("orchard.events.first.00.x", raw, raw.hex()[-64:]) for raw in strange]
    )
    before = await CampaignBook(connection).get("first")
    await write(store, connection)
    await connection.jetstream.purge_stream(names.CAMPAIGNS_STREAM)

    assert await restore_campaigns(store, connection) == ["first"]

    after = await CampaignBook(connection).get("first")
    assert before is not None and after is not None
    assert after[0] == before[0]
    assert await restore_campaigns(store, connection) == []

    running = replace(after[0], state=CampaignState.RUNNING)
    await connection.jetstream.purge_stream(names.CAMPAIGNS_STREAM)
    await CampaignBook(connection).create("first", running)  # at a revision above that of the log's state
    assert await restore_campaigns(store, connection) == []


async def test_an_older_state_of_a_campaign_is_moved_on_to_that_of_the_log(
    connection: Connection, store: str
) -> None:
    campaigns, book = Campaigns(connection, BlobStore(store)), CampaignBook(connection)
    async for _ in campaigns.submit(FIRST_CAMPAIGN):
        pass
    running = await book.get("first")
    async for _ in campaigns.cancel("first"):
        pass
    await write(store, connection)
    await connection.jetstream.delete_stream(names.CAMPAIGNS_STREAM)
    await declare(connection, SETTINGS, [])
    assert running is not None
    await book.create("first", running[0])

    assert await restore_campaigns(store, connection) == ["first"]

    cancelled = await book.get("first")
    assert cancelled is not None
    assert cancelled[0] == replace(running[0], state=CampaignState.CANCELLED)
    assert await restore_campaigns(store, connection) == []

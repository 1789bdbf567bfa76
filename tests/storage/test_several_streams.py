"""One log in several event streams: one order, one outcome per rollout, and each stream mended by itself."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest

from orchard.actions.expected_stream import expected
from orchard.actions.rollout_index import RolloutIndex
from orchard.pipelines.campaigns.archiving import Archiving
from orchard.schemas.events import Event
from orchard.schemas.identity import rollout_stream
from orchard.schemas.positions import Position, own_sequence, sequence_in, stream_of
from orchard.storage.archive.verify import verify_archive
from orchard.storage.blobs import BlobStore
from orchard.storage.checking import check
from orchard.storage.digest import store_digests
from orchard.storage.reader import open_tables, position, refresh
from orchard.storage.settings import ArchiveSettings
from orchard.storage.upkeep.maintenance import compact, rebuild_derived, rebuild_events
from orchard.storage.upkeep.restore import restore_stream
from orchard.storage.writing.writer import Writer, WriterSettings
from orchard.streams.connection import Connection, connect
from orchard.streams.errors import OutcomeRefused, TopologyError
from orchard.streams.event_streams import log_end, stream_count, usable_streams
from orchard.streams.names import stored_subject, stream_name
from orchard.streams.publisher import Publisher
from orchard.streams.reading import subjects
from orchard.streams.replay import replay, replay_batches
from orchard.streams.server import EmbeddedServer
from orchard.streams.settings import NatsSettings
from orchard.streams.stream_check import StreamGuard
from orchard.streams.topology import declare
from tests.storage.conftest import Log
from tests.storage.test_kill import writer_process

ONE, FOUR = NatsSettings(), NatsSettings(event_streams=4)
CONSERVATION = "select campaign, requested, finished, holds from conservation order by 1"
SMALL_COMMITS = WriterSettings(commit_rows=7, commit_seconds=0.05)


@pytest.fixture
async def connection(nats_server: EmbeddedServer) -> AsyncIterator[Connection]:
    async with connect(FOUR, name="test", url=nats_server.url) as opened:
        await declare(opened, FOUR, [])
        yield opened


@pytest.fixture
def wide() -> Log:
    """Makes the events of a campaign whose rollouts are spread over four streams."""
    return Log("wide", streams=4)


def rollouts(log: Log, samples: range) -> list[Event]:
    return [event for sample in samples for event in log.whole_rollout(sample)]


async def written(
    store: str,
    connection: Connection,
    settings: WriterSettings | None = None,
    archive: ArchiveSettings | None = None,
) -> None:
    stop = asyncio.Event()
    stop.set()
    await Writer(store, connection, settings, archive).run(stop)


@pytest.mark.long
async def test_every_writer_and_rebuild_gives_the_same_rows(
    connection: Connection, publisher: Publisher, store: str, wide: Log, log: Log, tmp_path: Path
) -> None:
    """Whoever reads the streams when, and however what it reads is interleaved."""
    for part in range(3):
        narrow = rollouts(log, range(part * 2, part * 2 + 2))
        await publisher.events([*rollouts(wide, range(part * 6, part * 6 + 6)), *narrow])
        await written(store, connection, SMALL_COMMITS)
    assert check(store) == []
    end = await log_end(connection)
    assert position(store) == end and len(end) == 4
    with open_tables(store) as tables:
        held = tables.sql("select rollout_id, sequence from events").fetchall()
        counts = tables.sql(
            "select campaign, requested, finished, holds from conservation order by 1"
        ).fetchall()
    assert {stream_of(sequence) for rollout, sequence in held} == {0, 1, 2, 3}
    assert all(rollout_stream(rollout) == stream_of(sequence) for rollout, sequence in held)
    assert counts == [("demo", 6, 6, True), ("wide", 18, 18, True)]

    live = store_digests(store)
    other = str(tmp_path / "other")
    await written(other, connection)
    assert store_digests(other) == live
    compact(store)
    assert store_digests(store) == live
    rebuild_derived(store)
    assert await rebuild_events(store, connection) == end
    assert store_digests(store) == live
    assert check(store) == []


async def test_streams_without_an_event_are_whole(
    connection: Connection, publisher: Publisher, store: str, wide: Log
) -> None:
    found = [wide.whole_rollout(sample) for sample in range(12)]
    await publisher.events(
        [one for each in found for one in each if rollout_stream(one.rollout_id or "") == 3]
    )
    await written(store, connection)
    assert [own_sequence(end) > 0 for end in position(store)] == [False, False, False, True]
    assert check(store) == []
    live = store_digests(store)
    assert await rebuild_events(store, connection) == await log_end(connection)
    assert store_digests(store) == live and check(store) == []


@pytest.mark.long
async def test_a_killed_writer_loses_and_doubles_nothing(
    nats_server: EmbeddedServer, connection: Connection, publisher: Publisher, store: str, wide: Log, tmp_path
) -> None:
    chance = random.Random(7)
    for kill in range(4):
        await publisher.events(rollouts(wide, range(kill * 20, kill * 20 + 20)))
        before = position(store).events if Path(store).exists() else 0
        async with writer_process(store, nats_server.url) as process:
            while not Path(store).exists() or position(store).events <= before:
                await asyncio.sleep(0.01)
            await asyncio.sleep(chance.random() * 0.3)  # anywhere in the work: the moment is the test's input
            process.kill()
    await written(store, connection)
    assert check(store) == []
    whole = str(tmp_path / "whole")
    await written(whole, connection)
    assert store_digests(store) == store_digests(whole)


async def test_a_rollout_has_one_outcome_and_its_attempts_are_numbered_in_its_stream(
    publisher: Publisher, wide: Log
) -> None:
    ids = [wide.rollout(sample) for sample in range(8)]
    assert {rollout_stream(rollout) for rollout in ids} == {0, 1, 2, 3}
    for rollout in ids:
        assert await started(publisher, wide, rollout) == 1
        assert await started(publisher, wide, rollout) == 2
        outcome = wide.finished(rollout, attempt=2)
        sequence = await publisher.terminal(outcome)
        assert stream_of(sequence) == rollout_stream(rollout)
        assert await publisher.terminal(outcome) == sequence
        with pytest.raises(OutcomeRefused) as refused:
            await publisher.terminal(wide.finished(rollout, attempt=1))
        assert refused.value.accepted.sequence == sequence
    found = await publisher.outcomes([*ids, wide.rollout(99)])
    assert [one and one.event and one.event.rollout_id for one in found] == [*ids, None]
    starts = await publisher.starts(ids)
    assert [one and one.event and one.event.attempt for one in starts] == [2] * 8


async def test_an_aborted_rollout_is_reopened_in_its_stream(
    connection: Connection, publisher: Publisher, store: str, wide: Log
) -> None:
    sample = next(number for number in range(99) if rollout_stream(wide.rollout(number)) == 3)
    rollout = wide.rollout(sample)
    await publisher.event(wide.requested(sample))
    aborted = await publisher.terminal(wide.aborted(rollout))
    reopened = await publisher.terminal(wide.reopened(rollout, aborted), aborted)
    await publisher.terminal(wide.finished(rollout, attempt=2), fence=reopened)
    await written(store, connection)
    with open_tables(store) as tables:
        assert tables.sql("select rollout_id, attempt from rollouts").fetchall() == [(rollout, 2)]


@pytest.mark.long
async def test_more_streams_in_the_middle_of_rollouts_split_no_fence(
    nats_server: EmbeddedServer, log: Log, store: str
) -> None:
    """Processes of either setting publish for the same rollouts; the ids alone tell where."""
    wide = Log("wide", streams=4)
    async with (
        connect(ONE, name="earlier", url=nats_server.url) as earlier,
        connect(FOUR, name="later", url=nats_server.url) as later,
    ):
        await declare(earlier, ONE, [])
        with pytest.raises(TopologyError, match=r"nats\.event_streams is 4, and NATS at .* has 1"):
            await usable_streams(later)
        old, new = Publisher(earlier), Publisher(later)
        running = [log.rollout(sample) for sample in range(8)]
        for sample, rollout in enumerate(running):
            await old.event(log.requested(sample))
            assert await started(old, log, rollout) == 1
        stop = asyncio.Event()
        writing = asyncio.create_task(Writer(store, earlier, SMALL_COMMITS).run(stop))
        follower = replay_batches(earlier, follow=True)
        async with aclosing(follower):
            assert await anext(follower)

            await declare(later, FOUR, [])

            assert await usable_streams(later) == 4
            for number, rollout in enumerate(running):
                retrying, late = (new, old) if number % 2 else (old, new)
                assert await started(retrying, log, rollout) == 2
                await retrying.terminal(log.finished(rollout, attempt=2))
                with pytest.raises(OutcomeRefused):
                    await late.terminal(log.finished(rollout, attempt=1))
            for event in rollouts(wide, range(12)):
                await (new if event.type != "rollout.started" else old).event(event)
            last = await log_end(later)
            seen = dict.fromkeys(range(4), 0)
            async with asyncio.timeout(60):
                while any(seen[stream] < own_sequence(last.last(stream)) for stream in seen):
                    for one in await anext(follower):
                        seen[stream_of(one.sequence)] = own_sequence(one.sequence)
        stop.set()
        await writing
        assert [rollout_stream(rollout) for rollout in running] == [0] * 8
        for stream in range(1, 4):
            stored = await subjects(later, stream_name(stream), ">")
            assert stored and not any(rollout in subject for rollout in running for subject in stored)
    assert check(store) == []
    with open_tables(store) as tables:
        counts = tables.sql(
            "select campaign, requested, finished, holds from conservation order by 1"
        ).fetchall()
        twice = tables.sql("select rollout_id from rollouts group by 1 having count(*) > 1").fetchall()
    assert counts == [("demo", 8, 8, True), ("wide", 12, 12, True)] and twice == []


async def test_streams_are_never_fewer(nats_server: EmbeddedServer) -> None:
    async with connect(ONE, name="test", url=nats_server.url) as connection:
        for settings in (FOUR, NatsSettings(event_streams=2), ONE):
            await declare(connection, settings, [])
            assert await stream_count(connection) == 4
    async with connect(NatsSettings(event_streams=2), name="test", url=nats_server.url) as fewer:
        assert await usable_streams(fewer) == 2


async def started(publisher: Publisher, log: Log, rollout: str) -> int:
    return await publisher.start(rollout, 1, lambda number: log.started(rollout, number))


def guard_of(store: str, connection: Connection) -> StreamGuard:
    return StreamGuard(connection, FOUR, lambda: expected(store, ArchiveSettings()), settle=0.0)


@pytest.mark.parametrize("damage", ["end", "middle", "all"])
async def test_a_loss_in_one_stream_stops_all_and_is_restored(
    connection: Connection, publisher: Publisher, store: str, wide: Log, tmp_path: Path, damage: str
) -> None:
    await publisher.events(rollouts(wide, range(16)))
    await written(store, connection)
    before = {stored.sequence: stored.raw async for stored in replay(connection)}
    last = await log_end(connection)
    async with connect(FOUR, name="worker", url=connection.url) as worker:
        await guard_of(store, worker).check()
        assert not worker.held
    jetstream, name = connection.jetstream, stream_name(2)
    if damage == "middle":
        await jetstream.purge_stream(name, subject=stored_subject("orchard.events.wide.>", 2))
    else:
        kept = [one async for one in replay(connection, sequence_in(2, 1))][: -3 if damage == "end" else 0]
        await jetstream.delete_stream(name)
        await declare(connection, FOUR, [])
        for one in kept:
            await connection.nats.publish(stored_subject(one.subject, 2), one.raw)
        await connection.nats.flush()

    async with connect(FOUR, name="worker", url=connection.url) as worker:
        guard = guard_of(store, worker)
        await guard.check()
        assert "ORCHARD_EVENTS_2" in worker.held and "restore-stream" in worker.held

        await restore_stream(store, connection, FOUR, tmp_path / "work")

        await guard.check()
        assert not worker.held
        assert {stored.sequence: stored.raw async for stored in replay(worker)} == before
        assert await log_end(worker) == last
        rollout = next(one for one in map(wide.rollout, range(16)) if rollout_stream(one) == 2)
        with pytest.raises(OutcomeRefused):
            await Publisher(worker).terminal(wide.finished(rollout, attempt=9))


async def test_a_new_server_gets_every_stream_from_the_tables(
    connection: Connection, publisher: Publisher, store: str, wide: Log, tmp_path: Path
) -> None:
    """Whatever the setting is by then."""
    await publisher.events(rollouts(wide, range(8)))
    await written(store, connection)
    before = {stored.sequence: stored.raw async for stored in replay(connection)}
    async with (
        EmbeddedServer(tmp_path / "new") as server,
        connect(ONE, name="new", url=server.url) as fresh,
        connect(ONE, name="operator", url=server.url) as operator,
    ):
        guard = guard_of(store, fresh)
        await guard.check()
        assert "there is no stream of events" in fresh.held

        assert (await restore_stream(store, operator, ONE, tmp_path / "work")).put_back == len(before)

        assert await stream_count(fresh) == 4
        assert {stored.sequence: stored.raw async for stored in replay(fresh)} == before
        await guard.check()
        assert not fresh.held


async def test_a_process_that_saw_what_is_lost_stops_all(
    connection: Connection, publisher: Publisher, store: str, wide: Log
) -> None:
    """No table has it yet."""
    await publisher.events(rollouts(wide, range(8)))
    async with (
        connect(FOUR, name="saw", url=connection.url) as saw,
        connect(FOUR, name="other", url=connection.url) as other,
    ):
        first, second = guard_of(store, saw), guard_of(store, other)
        [one async for one in replay(saw)]
        await first.check()
        await second.check()
        assert not saw.held and not other.held
        await connection.jetstream.delete_stream(stream_name(1))
        await declare(connection, FOUR, [])
        await first.check()
        await second.check()
        assert "ORCHARD_EVENTS_1" in saw.held and other.held == saw.held


@pytest.mark.long
async def test_what_was_archived_is_read_by_stream(
    connection: Connection, publisher: Publisher, store: str, wide: Log, log: Log, tmp_path: Path
) -> None:
    await publisher.events([*rollouts(wide, range(12)), *rollouts(log, range(2))])
    await written(store, connection)
    archiving = Archiving(connection, store, BlobStore(store), ArchiveSettings())
    assert set(await archiving.closed()) == {"wide", "demo"}
    async for _ in archiving.archive("wide"):
        pass
    await publisher.events(rollouts(log, range(2, 4)))
    await written(store, connection)
    assert await archiving.closed() == ["demo"]
    for stream in range(1, 4):
        left = await subjects(connection, stream_name(stream), ">")
        assert left and all(subject.split(".")[2] in ("done", "started") for subject in left)
    assert len(archiving.shelf.parts()) == 4
    assert verify_archive(archiving.shelf, store).findings == []
    await guard_of(store, connection).check()
    assert not connection.held

    live = store_digests(store)
    rebuild_derived(store)
    await rebuild_events(store, connection)
    assert store_digests(store) == live
    fresh = str(tmp_path / "fresh")
    stop = asyncio.Event()
    stop.set()
    await Writer(fresh, connection, WriterSettings(), ArchiveSettings(url=archiving.shelf.location.url)).run(
        stop
    )
    assert store_digests(fresh) == live
    assert (await restore_stream(store, connection, FOUR, tmp_path / "work")).put_back == 0


@pytest.mark.long
async def test_tables_are_shown_as_of_the_last_sequence_of_each_stream(
    connection: Connection, publisher: Publisher, store: str, wide: Log
) -> None:
    await publisher.events(rollouts(wide, range(8)))
    await written(store, connection)
    then = position(store)
    with open_tables(store) as tables:
        before = tables.sql("select * from rollouts order by sequence").fetchall()
    await publisher.events(rollouts(wide, range(8, 16)))
    await written(store, connection)
    assert Position.parse(str(then)) == then == Position.of(then.plain)
    with open_tables(store, as_of=then) as tables:
        assert tables.sql("select * from rollouts order by sequence").fetchall() == before
        index = RolloutIndex(tables)
        index.follow(then)
        refresh(tables, store)
        index.follow(position(store))
        view = tables.sql("select rollout_id, sequence from rollouts order by all").fetchall()
        assert tables.sql("select rollout_id, sequence from indexed.ended order by all").fetchall() == view
        assert len(view) == 16
        index.close()

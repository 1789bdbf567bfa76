"""Every derived table comes again from `events`, and `events` from the stream, row for row the same."""

from collections.abc import Awaitable, Callable

import pytest

from orchard.schemas.positions import Position
from orchard.schemas.subjects import EVENTS_PREFIX
from orchard.storage import rebuilding
from orchard.storage.delta import StoreTable
from orchard.storage.digest import store_digests, table_digest
from orchard.storage.errors import EventsLost, StorageError, StoreBusy
from orchard.storage.location import Location
from orchard.storage.lock import writer_lock
from orchard.storage.log import log_batch
from orchard.storage.tables import EVENTS
from orchard.storage.upkeep.maintenance import check, rebuild_derived, rebuild_events, refuse_empty
from orchard.storage.writing.writer import WriterSettings
from orchard.streams import names
from orchard.streams.connection import Connection
from orchard.streams.publisher import Publisher
from orchard.streams.replay import replay_batches

Write = Callable[..., Awaitable[None]]


async def _publish(connection: Connection, publisher: Publisher, log, rollouts: int = 12) -> None:
    """Rollouts of every fate, and messages that are no events."""
    for sample in range(rollouts):
        await publisher.events(log.whole_rollout(sample))
    await connection.jetstream.publish(f"{EVENTS_PREFIX}.demo.00.odd", b"\xff\x00 not an event")
    rollout = log.rollout(99)
    await publisher.event(log.requested(99))
    aborted = await publisher.terminal(log.aborted(rollout))
    reopened = await publisher.terminal(log.reopened(rollout, aborted), aborted)
    await publisher.event(log.message(rollout, attempt=2))
    await publisher.terminal(log.finished(rollout, attempt=2), fence=reopened)


async def test_live_and_rebuilt_tables_are_equal(
    connection: Connection, publisher: Publisher, store: str, write: Write, log
) -> None:
    await _publish(connection, publisher, log)
    await write(WriterSettings(commit_rows=5))
    live = store_digests(store)
    rebuild_derived(store)
    derived = store_digests(store)
    await rebuild_events(store, connection)
    rebuild_derived(store)
    assert derived == live
    assert store_digests(store) == live
    assert check(store) == []


async def test_an_empty_store_beside_a_stream_with_events_is_not_rebuilt_from_nothing(
    connection: Connection, publisher: Publisher, store: str, write: Write, log
) -> None:
    await refuse_empty(store, connection)  # nothing is nowhere
    await _publish(connection, publisher, log)
    with pytest.raises(StorageError, match="--from-stream"):
        await refuse_empty(store, connection)
    await write()
    await refuse_empty(store, connection)


@pytest.mark.long
async def test_two_stores_of_one_stream_are_equal_however_their_commits_were_cut(
    connection: Connection, publisher: Publisher, store: str, write: Write, log, tmp_path, monkeypatch
) -> None:
    await _publish(connection, publisher, log)
    await write(WriterSettings(commit_rows=3))
    monkeypatch.setattr(rebuilding, "_FILE_BYTES", 1)  # files before the tables
    from_stream = str(tmp_path / "other")
    await rebuild_events(from_stream, connection)
    rebuild_derived(from_stream)
    assert store_digests(from_stream) == store_digests(store)


@pytest.mark.long
async def test_tables_catch_up_after_a_crash_between_events_and_derived(
    connection: Connection, publisher: Publisher, store: str, write: Write, log, tmp_path
) -> None:
    await _publish(connection, publisher, log, rollouts=3)
    await write()
    await _publish(connection, publisher, log.__class__("second"), rollouts=3)
    events = StoreTable(Location.parse(store), EVENTS)
    async for batch in replay_batches(connection, events.watermark):
        if batch:
            events.append(log_batch(batch).rows, Position.of(batch[-1].sequence))
    assert any("position" in finding for finding in check(store)) is False
    await write()
    whole = str(tmp_path / "whole")
    await rebuild_events(whole, connection)
    rebuild_derived(whole)
    assert store_digests(store) == store_digests(whole)


async def test_a_trimmed_stream_cannot_rebuild_and_changes_nothing(
    connection: Connection, publisher: Publisher, store: str, write: Write, log
) -> None:
    await _publish(connection, publisher, log)
    await write()
    before = table_digest(store, EVENTS)
    await connection.jetstream.purge_stream(names.EVENTS, seq=10)
    with pytest.raises(EventsLost, match="event 1 is neither in the stream nor in the archive"):
        await rebuild_events(store, connection)
    assert table_digest(store, EVENTS) == before


async def test_a_rebuild_is_refused_while_a_writer_works(
    connection: Connection, publisher: Publisher, store: str, write: Write, log
) -> None:
    await publisher.events(log.whole_rollout(0))
    await write()
    with writer_lock(Location.parse(store)):
        with pytest.raises(StoreBusy):
            rebuild_derived(store)
        with pytest.raises(StoreBusy):
            await rebuild_events(store, connection)


async def test_check_names_what_is_wrong(publisher: Publisher, store: str, write: Write, log) -> None:
    await publisher.events(log.whole_rollout(0))
    await write()
    location = Location.parse(store)
    messages = StoreTable(location, "messages_all")
    (file,) = messages.files()
    path = location.path / "tables" / "messages_all" / file.path
    content = path.read_bytes()
    path.unlink()
    (finding,) = check(store)
    assert finding.startswith(
        f"messages_all: the file {file.path} is missing or has another size: restore it"
    )
    assert finding.endswith("run `orchard store rebuild`")
    path.write_bytes(content)
    assert check(store) == []


def test_the_digest_of_a_table_that_does_not_exist_is_refused(tmp_path) -> None:
    with pytest.raises(StorageError, match="not a stored table: choose one of events"):
        table_digest(str(tmp_path), "nothing")

"""The writer commits each event once, whatever the events are, and says plainly why it cannot go on."""

import asyncio
import base64
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from orchard.schemas.events import encode_event
from orchard.schemas.positions import Position
from orchard.schemas.subjects import EVENTS_PREFIX, event_subject
from orchard.storage.delta import StoreTable
from orchard.storage.derived import Committed, DerivedTables
from orchard.storage.errors import EventsLost, OtherStream, StoreBusy
from orchard.storage.location import Location
from orchard.storage.log import log_batch
from orchard.storage.reader import open_tables, position
from orchard.storage.tables import EVENTS, PROGRESS
from orchard.storage.writing import writer as writer_module
from orchard.storage.writing.writer import Writer, WriterSettings
from orchard.streams import names
from orchard.streams.connection import Connection
from orchard.streams.publisher import Publisher
from orchard.streams.reading import message_at
from orchard.streams.records import StoredEvent, stored_event
from orchard.streams.settings import NatsSettings
from orchard.streams.topology import declare

Write = Callable[..., Awaitable[None]]


async def _publish_raw(connection: Connection, subject: str, raw: bytes) -> int:
    return (await connection.jetstream.publish(subject, raw)).seq


def _rows(store: str, query: str) -> list[tuple[object, ...]]:
    with open_tables(store, views=query) as tables:
        return tables.execute(query).fetchall()


async def test_every_event_becomes_one_row_with_its_envelope(
    connection: Connection, publisher: Publisher, store: str, write: Write, log
) -> None:
    event = log.message(log.rollout(0))
    sequence = await publisher.event(event)
    await write()
    with open_tables(store) as tables:
        row = tables.sql("select * from events").to_arrow_table().to_pylist()[0]
    stored = await message_at(connection, names.EVENTS, sequence)
    assert stored is not None
    assert row == {
        "sequence": sequence,
        "stream_time": row["stream_time"],
        "subject": event_subject(event),
        "id": event.id,
        "source": "orchard/test",
        "type": "message.appended",
        "ce_subject": event.subject,
        "time": event.time.replace(tzinfo=None),
        "dataschema": event.dataschema,
        "campaign": "demo",
        "raw": None,
        "rollout_id": event.rollout_id,
        "attempt": 1,
        "causation_id": None,
        "traceparent": None,
        "payload": bytes(event.data).decode(),
        "submitter": None,
        "team": None,
    }
    assert abs((row["stream_time"] - stored.time.replace(tzinfo=None)).total_seconds()) < 1e-5


async def test_a_second_run_goes_on_where_the_first_ended(
    publisher: Publisher, store: str, write: Write, log
) -> None:
    await publisher.events(log.whole_rollout(0))
    await write()
    await publisher.events(log.whole_rollout(1))
    await write()
    await write()
    assert _rows(store, "select sequence from events order by 1") == [(n,) for n in range(1, 13)]
    assert _rows(store, "select count(*) from rollouts") == [(2,)]


async def test_events_are_committed_while_the_writer_runs(
    connection: Connection, publisher: Publisher, store: str, log
) -> None:
    stop = asyncio.Event()
    settings = WriterSettings(commit_seconds=0.1)
    async with asyncio.TaskGroup() as group:
        group.create_task(Writer(store, connection, settings).run(stop))
        await publisher.events(log.whole_rollout(0))
        async with asyncio.timeout(20):
            while not (Location.parse(store).path / "tables" / "rewards_all").exists() or not _rows(
                store, "select 1 from rollouts"
            ):
                await asyncio.sleep(0.05)
        await publisher.events(log.whole_rollout(1))
        stop.set()
    assert _rows(store, "select count(*) from rollouts") == [(2,)]


@pytest.mark.long
async def test_derived_tables_follow_a_stream_that_never_rests(
    connection: Connection, publisher: Publisher, store: str, log
) -> None:
    """Every batch is full here, so that the writer always counts as behind the stream."""
    stop = asyncio.Event()
    writer = Writer(store, connection, WriterSettings(commit_rows=1, commit_seconds=1.0))
    running = asyncio.create_task(writer.run(stop))
    try:
        async with asyncio.timeout(30):
            sample = 0
            while not (sample and position(store)):
                sample += 1
                sequence = await publisher.event(log.requested(sample))
                while not writer.position.covers(sequence):
                    assert not running.done()
                    await asyncio.sleep(0.001)
    finally:
        stop.set()
        await running
    assert _rows(store, "select count(*) from requests") == [(sample,)]


@pytest.mark.long
async def test_the_log_goes_first_for_a_bounded_time(
    publisher: Publisher, store: str, write: Write, log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every batch is full here, and the log has a millisecond for itself: the time for a second commit, not
    for a third."""
    derived: list[DerivedTables] = []
    ahead: list[int] = []
    commit = writer_module._commit_batch

    class Observed(DerivedTables):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            derived.append(self)

    def committing(events: StoreTable, batch: list[StoredEvent]) -> Committed:
        reached = derived[0].reached if derived else events.watermark
        ahead.append(events.watermark.events - reached.events)
        return commit(events, batch)

    monkeypatch.setattr(writer_module, "DerivedTables", Observed)
    monkeypatch.setattr(writer_module, "_commit_batch", committing)
    await publisher.events([log.requested(sample) for sample in range(40)])
    await write(WriterSettings(commit_rows=1, commit_seconds=60.0, derive_seconds=0.001))
    assert len(ahead) == 40
    assert max(ahead[20:]) <= 2
    assert _rows(store, "select count(*) from requests") == [(40,)]


async def test_limits_on_rows_and_bytes_cut_commits(
    publisher: Publisher, store: str, write: Write, log, prose: Callable[[int], str]
) -> None:
    events = [log.message(log.rollout(0), text=prose(2000)) for _ in range(100)]
    await publisher.events(events)
    await write(WriterSettings(commit_rows=40, commit_bytes=50_000))
    files = StoreTable(Location.parse(store), EVENTS).files()
    assert sum(file.rows for file in files) == 100
    assert max(file.rows for file in files) <= 40
    assert len(files) >= 4


async def test_an_event_of_an_unknown_type_is_kept_as_it_is(
    connection: Connection, store: str, write: Write, log
) -> None:
    event = msgspec.structs.replace(
        log.started(log.rollout(0)), type="weather.changed", data=msgspec.Raw(b'{"sky": "blue", "n": [1, 2]}')
    )
    await _publish_raw(connection, event_subject(event), encode_event(event))
    await write()
    assert _rows(store, "select type, payload from events") == [
        ("weather.changed", '{"sky": "blue", "n": [1, 2]}')
    ]
    assert _rows(store, "select * from unreadable") == []


@pytest.mark.long
@pytest.mark.parametrize("raw", [b"not json", b"", b'{"id": 1}', '{"caf\u00e9": "'.encode(), b"null"])
async def test_bytes_that_are_no_event_are_kept_as_text(
    connection: Connection, store: str, write: Write, raw: bytes
) -> None:
    await _publish_raw(connection, f"{EVENTS_PREFIX}.demo.00.odd", raw)
    await write()
    assert _rows(store, "select type, dataschema, payload from events") == [
        ("unreadable", None, raw.decode())
    ]


async def test_bytes_that_are_not_utf8_are_kept_as_base64(
    connection: Connection, publisher: Publisher, store: str, write: Write, log
) -> None:
    good = log.message(log.rollout(0))
    hidden = encode_event(log.message(log.rollout(0), text="XX")).replace(b"XX", b"\xff\xfe")
    await publisher.event(good)
    for raw in (b"\x80\x81", hidden):
        await _publish_raw(connection, f"{EVENTS_PREFIX}.demo.00.odd", raw)
    await write()
    rows = _rows(store, "select type, dataschema, payload from events order by sequence")
    assert rows[0][0] == "message.appended"
    assert [(kind, how, base64.b64decode(text)) for kind, how, text in rows[1:]] == [
        ("unreadable", "base64", b"\x80\x81"),
        ("unreadable", "base64", hidden),
    ]
    assert _rows(store, "select count(*) from messages_all") == [(1,)]


async def test_a_payload_that_does_not_fit_its_type_is_kept_and_reported(
    connection: Connection, store: str, write: Write, log
) -> None:
    event = msgspec.structs.replace(log.started(log.rollout(0)), data=msgspec.Raw(b'{"worker": 5}'))
    huge = msgspec.structs.replace(
        log.started(log.rollout(0)),
        data=msgspec.Raw(b'{"worker": "w", "request_sequence": 99999999999999999999, "deliveries": 1}'),
    )
    for bad in (event, huge):
        await _publish_raw(connection, event_subject(bad), encode_event(bad))
    await write()
    assert _rows(store, "select type, payload from events order by sequence") == [
        ("rollout.started", bytes(event.data).decode()),
        ("rollout.started", bytes(huge.data).decode()),
    ]
    reported = _rows(store, "select sequence, type, reason from unreadable order by sequence")
    assert [(row[0], row[1]) for row in reported] == [(1, "rollout.started"), (2, "rollout.started")]
    assert "worker" in str(reported[0][2])


async def test_an_attempt_number_no_column_can_hold_makes_the_message_unreadable(
    connection: Connection, store: str, write: Write, log
) -> None:
    raw = encode_event(log.started(log.rollout(0))).replace(b'"attempt":1', b'"attempt":99999999999999999999')
    await _publish_raw(connection, f"{EVENTS_PREFIX}.demo.00.rollout.started", raw)
    await write()
    assert _rows(store, "select type, payload from events") == [("unreadable", raw.decode())]


async def test_a_terminal_event_beside_its_done_subject_is_no_outcome(
    connection: Connection, publisher: Publisher, store: str, write: Write, log
) -> None:
    real = log.finished(log.rollout(0))
    forged = log.finished(log.rollout(0), resolved=False)
    await publisher.terminal(real)
    await _publish_raw(connection, f"{EVENTS_PREFIX}.demo.00.rollout.finished", encode_event(forged))
    await write()
    assert _rows(store, "select resolved from rollouts") == [(True,)]
    assert "done subject" in str(_rows(store, "select reason from unreadable")[0][0])


async def test_a_second_writer_is_refused_in_one_sentence(connection: Connection, store: str) -> None:
    stop = asyncio.Event()
    first = asyncio.create_task(Writer(store, connection).run(stop))
    async with asyncio.timeout(20):
        while not (Location.parse(store).path / "tables" / EVENTS).exists():
            await asyncio.sleep(0.01)
    with pytest.raises(StoreBusy, match=r"another writer .* stop it, or choose another store"):
        await Writer(store, connection).run(stop)
    stop.set()
    await first


async def test_without_a_lock_the_later_writer_is_fenced_by_the_table(store: str, log) -> None:
    location = Location.parse(store)
    first, second = StoreTable(location, EVENTS), StoreTable(location, EVENTS)
    event = log.started(log.rollout(0))
    message = stored_event(1, event_subject(event), event.time, encode_event(event))
    first.append(log_batch([message]).rows, Position.of(1))
    with pytest.raises(StoreBusy, match="another writer committed to events"):
        second.append(log_batch([message]).rows, Position.of(1))
    assert _rows(store, "select sequence from events") == [(1,)]


async def test_a_stream_that_lost_events_stops_the_writer(
    connection: Connection, publisher: Publisher, store: str, write: Write, log
) -> None:
    await publisher.events(log.whole_rollout(0))
    await write()
    await publisher.events(log.whole_rollout(1))
    await connection.jetstream.purge_stream(names.EVENTS, seq=9)
    with pytest.raises(EventsLost, match="event 7 is neither in the stream nor in the archive"):
        await write()
    assert _rows(store, "select count(*) from events") == [(6,)]


async def test_a_trimmed_stream_is_fine_when_the_store_has_what_is_gone(
    connection: Connection, publisher: Publisher, store: str, write: Write, log
) -> None:
    await publisher.events(log.whole_rollout(0))
    await write()
    await connection.jetstream.purge_stream(names.EVENTS)
    await publisher.events(log.whole_rollout(1))
    await write()
    assert _rows(store, "select count(*) from events") == [(12,)]


async def test_another_stream_is_recognized(
    connection: Connection, publisher: Publisher, store: str, write: Write, log
) -> None:
    await publisher.events(log.whole_rollout(0))
    await write()
    await connection.jetstream.delete_stream(names.EVENTS)
    await declare(connection, NatsSettings(), [])
    with pytest.raises(EventsLost, match="ends at event 0, but the store has 6"):
        await write()
    await publisher.events([log.message(log.rollout(5)) for _ in range(8)])
    with pytest.raises(OtherStream, match="or is not this store's"):
        await write()
    assert _rows(store, "select count(*) from events") == [(6,)]


async def test_the_common_position_of_derived_tables_moves_without_rows_for_each(
    publisher: Publisher, store: str, write: Write, log
) -> None:
    await publisher.events([log.message(log.rollout(0)) for _ in range(10)])
    await write()
    assert StoreTable(Location.parse(store), PROGRESS).watermark == Position.of(10)

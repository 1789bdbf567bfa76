"""No event stops a reader of the log: mutants through decoding, rows, a real stream and a real writer."""

import base64
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from orchard.schemas import events as e
from orchard.schemas.events import encode_event
from orchard.schemas.outcomes import RolloutStatus
from orchard.schemas.subjects import EVENTS_PREFIX, done_subject, event_subject, started_subject
from orchard.storage.derive import derive_tables
from orchard.storage.log import facts, log_batch
from orchard.storage.reader import open_tables
from orchard.storage.tables import BASE64, TABLES
from orchard.storage.upkeep.maintenance import rebuild_derived, rebuild_events
from orchard.storage.views import VIEWS
from orchard.streams.connection import Connection
from orchard.streams.publish import OutgoingMessage, store_all
from orchard.streams.publisher import Publisher
from orchard.streams.records import stored_event
from tests.mutations import DEEP, mutants

NOW = datetime(2026, 1, 1, tzinfo=UTC)
Write = Callable[..., Awaitable[None]]


@pytest.fixture
def documents(log) -> list[bytes]:
    """An event of each type that a rollout has."""
    rollout = log.rollout(1)
    events = [*log.whole_rollout(0), log.aborted(rollout), log.reopened(rollout, 5)]
    return [encode_event(event) for event in events]


def kept(row: dict[str, object]) -> bytes:
    """The bytes of an unreadable row."""
    text = str(row["payload"])
    return base64.b64decode(text) if row["dataschema"] == BASE64 else text.encode()


@pytest.mark.long
def test_twelve_thousand_mutants_become_rows_that_give_the_same_tables_again(log, documents) -> None:
    subject = done_subject(log.rollout(0))
    raws = list(mutants(documents, 12_000, seed=1))
    unreadable = 0
    for start in range(0, len(raws), 500):
        part = raws[start : start + 500]
        batch = log_batch([stored_event(n, subject, NOW, raw) for n, raw in enumerate(part, 1)])
        rows = batch.rows.to_pylist()
        lost = [row for row in rows if row["type"] == "unreadable"]
        assert [kept(row) for row in lost] == [part[row["sequence"] - 1] for row in lost]
        live, rebuilt = derive_tables(batch.facts), derive_tables(facts(batch.rows))
        assert live.keys() == rebuilt.keys()
        assert all(live[table].equals(rebuilt[table]) for table in live)
        assert [table.to_pylist() for table in live.values()]
        unreadable += len(lost)
    assert 1000 < unreadable < 11_000


def test_one_mutant_at_a_time_gives_what_a_batch_gives(documents) -> None:
    messages = [
        stored_event(number, "orchard.events.demo.00.x", NOW, raw)
        for number, raw in enumerate(mutants(documents, 500, seed=2), 1)
    ]
    together = log_batch(messages)
    alone = [log_batch([message]) for message in messages]
    assert together.rows.equals(pa.concat_tables([one.rows for one in alone]))
    assert together.facts == [fact for one in alone for fact in one.facts]


@pytest.mark.long
async def test_a_writer_passes_hundreds_of_mutants_and_every_view_still_answers(
    connection: Connection, publisher: Publisher, store: str, write: Write, log, documents
) -> None:
    raws = list(mutants(documents, 400, seed=3))
    await publisher.events(log.whole_rollout(2))
    await store_all(
        connection,
        [
            OutgoingMessage(subject=_subject(raw, number), payload=raw, id=f"mutant-{number}")
            for number, raw in enumerate(raws)
        ],
    )
    last = log.message(log.rollout(2), text="after all of them")
    await publisher.event(last)
    await write()
    live = _tables(store)
    assert len(live["events"]) == 6 + len(raws) + 1
    assert live["events"][-1]["id"] == last.id
    with open_tables(store) as tables:
        for view in VIEWS:
            tables.execute(f'select * from "{view}"').fetchall()
    rebuild_derived(store)
    assert _tables(store) == live
    await rebuild_events(store, connection)
    rebuild_derived(store)
    assert _tables(store) == live


async def test_an_outcome_that_cannot_be_read_holds_the_fence_and_is_no_reward(
    connection: Connection, publisher: Publisher, store: str, write: Write, log
) -> None:
    (requested, started, *_, finished) = log.whole_rollout(0)
    await publisher.events([requested, started])
    damaged = encode_event(finished).replace(b'"completed"', b"7")
    await store_all(connection, [OutgoingMessage(event_subject(finished), damaged, "damaged", expected=0)])
    await write()
    with open_tables(store) as tables:
        assert tables.sql("select * from rollouts").fetchall() == []
        assert tables.sql("select open, holds from conservation").fetchall() == [(1, True)]
        assert tables.sql("select type from unreadable").fetchall() == [("rollout.finished",)]
    known = await publisher.outcome(log.rollout(0))
    assert known is not None
    assert known.event is not None
    assert isinstance(e.payload(known.event), e.UnreadablePayload)
    assert RolloutStatus.COMPLETED.value not in str(e.payload(known.event))


async def test_attempt_numbers_go_on_above_those_before_an_unreadable_start(
    connection: Connection, publisher: Publisher, log
) -> None:
    rollout = log.rollout(0)
    assert await publisher.start(rollout, 4, lambda number: log.started(rollout, number)) == 4
    await store_all(
        connection,
        [OutgoingMessage(started_subject(rollout), b'{"a":' + b"[" * DEEP, "no event", expected=None)],
    )
    assert await publisher.start(rollout, 1, lambda number: log.started(rollout, number)) == 5


def _subject(raw: bytes, number: int) -> str:
    """Where the event belongs as far as it can be read, so that it gets as far in as it can."""
    event = stored_event(1, "", NOW, raw).event
    fits = event is not None and event.type in e.DONE_TYPES and event.rollout_id
    if fits and event is not None and (event.rollout_id or "").isalnum():
        return event_subject(event)
    return f"{EVENTS_PREFIX}.demo.00.odd{number % 7}"


def _tables(store: str) -> dict[str, list[dict[str, object]]]:
    with open_tables(store) as tables:
        return {
            name: tables.sql(f"select * from tables.{name} order by sequence").to_arrow_table().to_pylist()
            for name in TABLES
        }

"""A message becomes a row, an event becomes rows of derived tables, and both without exception."""

import base64
import json
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st

from orchard.schemas import events as e
from orchard.schemas.events import encode_event
from orchard.schemas.positions import Position
from orchard.schemas.subjects import event_subject
from orchard.storage.delta import StoreTable
from orchard.storage.derive import derive, derive_tables
from orchard.storage.errors import StorageError
from orchard.storage.location import Location
from orchard.storage.log import Fact, facts, log_batch
from orchard.storage.reader import open_tables
from orchard.storage.tables import BASE64, EVENTS, PROGRESS, ROWS, SCHEMAS, TABLES, UNREADABLE
from orchard.streams.records import StoredEvent, stored_event

NOW = datetime(2026, 1, 1, tzinfo=UTC)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
ENVELOPE = (
    "id",
    "source",
    "type",
    "subject",
    "time",
    "dataschema",
    "campaign",
    "data",
    "attempt",
    "rollout_id",
)


def _messages(*raws: bytes) -> list[StoredEvent]:
    return [stored_event(number, "orchard.events.x.00.y", NOW, raw) for number, raw in enumerate(raws, 1)]


def _kept(row: dict[str, object]) -> bytes:
    text = str(row["payload"])
    return base64.b64decode(text) if row["dataschema"] == BASE64 else text.encode()


@settings(max_examples=150, deadline=None)
@given(raws=st.lists(st.binary(max_size=60), max_size=5))
def test_whatever_bytes_come_are_kept(raws: list[bytes]) -> None:
    rows = log_batch(_messages(*raws)).rows.to_pylist()
    assert [row["sequence"] for row in rows] == list(range(1, len(raws) + 1))
    assert [_kept(row) for row in rows] == raws


@pytest.mark.long
@settings(max_examples=150, deadline=None)
@given(
    fields=st.dictionaries(st.sampled_from(ENVELOPE), JSON),
    kind=st.sampled_from([*e.EVENT_TYPES, UNREADABLE, "unknown"]),
    data=JSON,
)
def test_a_stored_row_gives_the_same_rows_as_the_message_itself(
    fields: dict[str, object], kind: str, data: object
) -> None:
    good = dict.fromkeys(ENVELOPE[:-2], "x") | {
        "time": "2026-01-01T00:00:00.123456Z",
        "type": kind,
        "data": data,
    }
    batch = log_batch(_messages(json.dumps(good | fields).encode(), json.dumps(good).encode()))
    again = list(facts(batch.rows))
    live, rebuilt = derive_tables(batch.facts), derive_tables(again)
    assert len(again) == len(batch.facts)
    assert live.keys() == rebuilt.keys()
    assert all(live[table].equals(rebuilt[table]) for table in live)


def test_one_bad_row_does_not_take_its_neighbours_with_it(log) -> None:
    good = encode_event(log.message(log.rollout(0)))
    hidden = good.replace(b"hello", b"\xffello")
    batch = log_batch(_messages(good, hidden, good))
    assert batch.rows.column("type").to_pylist() == ["message.appended", UNREADABLE, "message.appended"]
    assert [fact.sequence for fact in batch.facts] == [1, 3]


def test_a_time_without_zone_is_utc_and_one_with_is_converted(log) -> None:
    raw = encode_event(log.started("ab")).replace(b'"2026-01-01T00:00:01Z"', b'"2026-01-01T02:00:00+02:00"')
    naive = raw.replace(b"T02:00:00+02:00", b"T00:00:00")
    assert log_batch(_messages(raw, naive)).rows.column("time").to_pylist() == [NOW, NOW]


def test_every_registered_type_has_a_rule_or_is_read_from_events() -> None:
    without = {
        "sandbox.created",
        "sandbox.failed",
        "sandbox.deleted",
        "request.dead_lettered",
        "request.requeued",
        "budget.raised",
        "event.displaced",
        "event.lost",
        "rollout.reconciled",
        "endpoint.rested",
        "team.held",
    }
    assert {kind for kind, struct in e.EVENT_TYPES.items() if struct not in ROWS} == without


def test_columns_stay_as_stores_have_them() -> None:
    """In number, order and type. A field that is added to a payload is a column more: add it to the file."""
    stored = json.loads((Path(__file__).parent / "columns.json").read_text())
    declared = {name: [(field.name, str(field.type)) for field in schema] for name, schema in SCHEMAS.items()}
    assert declared == {name: list(columns.items()) for name, columns in stored.items()}


def test_the_envelope_says_whose_row_it_is(log) -> None:
    event = log.requested(3)
    derived = derive(Fact(7, event_subject(event), event))
    assert derived is not None
    table, row = derived
    assert table == "requests_all"
    assert (row["sequence"], row["rollout_id"], row["campaign"]) == (7, event.rollout_id, "demo")


@pytest.mark.parametrize("opened_by_writer", [True, False])
def test_a_table_of_an_older_version_is_read_with_its_missing_columns_null(
    tmp_path, opened_by_writer: bool
) -> None:
    location = Location.parse(tmp_path)
    older = pa.schema([field for field in SCHEMAS["attempts_all"] if field.name != "worker"])
    row = {"sequence": 1, "kind": "started", "attempt": 1, "rollout_id": "r"}
    place = location.path / "tables" / "attempts_all"
    place.mkdir(parents=True)
    write_deltalake(place, pa.Table.from_pylist([row], schema=older))
    StoreTable(location, PROGRESS).append(SCHEMAS[PROGRESS].empty_table(), Position.of(2))
    if opened_by_writer:
        newer = pa.Table.from_pylist([row | {"sequence": 2, "worker": "w"}], schema=SCHEMAS["attempts_all"])
        StoreTable(location, "attempts_all").append(newer, Position.of(2))
    with open_tables(str(tmp_path)) as tables:
        found = tables.sql("select sequence, worker from attempts_all order by 1").fetchall()
    assert found == ([(1, None), (2, "w")] if opened_by_writer else [(1, None)])


def test_rows_beyond_the_common_position_are_not_shown_yet(tmp_path, log) -> None:
    location = Location.parse(tmp_path)
    events = [log.requested(0), log.finished(log.rollout(0))]
    found = derive_tables(Fact(number, event_subject(event), event) for number, event in enumerate(events, 1))
    for name, rows in found.items():
        StoreTable(location, name).append(rows, Position.of(2))
    with open_tables(str(tmp_path)) as tables:
        assert tables.sql("select * from rollouts").fetchall() == []
        StoreTable(location, PROGRESS).append(SCHEMAS[PROGRESS].empty_table(), Position.of(2))
    with open_tables(str(tmp_path)) as tables:
        assert tables.sql("select holds from conservation").fetchall() == [(True,)]


def test_only_directories_and_s3_are_stores() -> None:
    assert Location.parse("s3://bucket/prefix/").table_url(EVENTS) == "s3://bucket/prefix/tables/events"
    assert Location.parse("relative").path.is_absolute()
    with pytest.raises(StorageError, match="neither a directory nor an s3:// URL"):
        Location.parse("gs://bucket/prefix")


def test_every_derived_row_names_its_event() -> None:
    for table in TABLES[1:]:
        assert SCHEMAS[table].names[:6] == [
            "sequence",
            "time",
            "event_id",
            "campaign",
            "rollout_id",
            "attempt",
        ]

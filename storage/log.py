"""Converts stream messages to rows of `events` and back: pure, and the same live, in catch-up and in
rebuilds.

A message that is no event becomes a row of type `unreadable` that keeps its bytes. Columns are built in bulk;
only when Arrow refuses a batch is it converted row by row, to find the rows that do not fit.
"""

import base64
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from orchard.schemas.events import Event, encode_event
from orchard.storage.tables import BASE64, EVENTS, NO_EVENT, SCHEMAS, UNREADABLE
from orchard.streams.records import StoredEvent

_SCHEMA = SCHEMAS[EVENTS]
_EPOCH = datetime.fromtimestamp(0, UTC)
_CHUNK_BYTES = 1024 * 1024
"""Payload bytes that are joined at a time: more would be fresh memory from the system for each batch."""
REFUSALS = (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, UnicodeEncodeError)
"""Raised by Arrow, and Python's times, for a value that a column cannot hold."""


_ATTRIBUTES = {
    **{
        name: name
        for name in Event.__struct_fields__
        if name in _SCHEMA.names and name not in ("subject", "time")
    },
    "ce_subject": "subject",
}
"""Columns that are attributes of an event unchanged, by column."""


class Fact(NamedTuple):
    """A readable event with its position in the stream: all that derived tables may use."""

    sequence: int
    subject: str
    event: Event


class LogBatch(NamedTuple):
    """Consecutive messages as rows of `events`, and the facts among them."""

    rows: pa.Table
    facts: list[Fact]


def log_batch(messages: Sequence[StoredEvent]) -> LogBatch:
    """Convert messages, one row each, in order."""
    try:
        return _bulk(messages)
    except REFUSALS:
        parts = [_single(message) for message in messages]
        rows = pa.concat_tables([part.rows for part in parts])
        return LogBatch(rows, [fact for part in parts for fact in part.facts])


FACT_COLUMNS = tuple(name for name in _SCHEMA.names if name not in ("stream_time", "raw"))


def facts(rows: pa.Table) -> Iterator[Fact]:
    """Yield the facts of stored rows of `events`, as `log_batch` returned them when they were written.

    Their data are views of the rows' memory.
    """
    places = zip(rows.column("sequence").to_pylist(), rows.column("subject").to_pylist(), strict=True)
    named = rows.select(list(_ATTRIBUTES)).rename_columns(list(_ATTRIBUTES.values())).to_pylist()
    times = rows.column("time").cast(pa.int64()).to_pylist()  # a tenth of the time that times take
    for place, attributes, time, payload in zip(
        places, named, times, _bytes(rows.column("payload")), strict=True
    ):
        if attributes["type"] not in NO_EVENT:
            at = _EPOCH + timedelta(microseconds=time)
            yield Fact(*place, Event(**attributes, time=at, data=msgspec.Raw(payload)))


def _bytes(texts: pa.ChunkedArray) -> Iterator[memoryview]:
    """Yield the texts of a column as views of its buffers."""
    for chunk in texts.chunks:
        _, offsets, data = chunk.buffers()
        places = memoryview(offsets).cast("i")[chunk.offset : chunk.offset + len(chunk) + 1]
        view = memoryview(data or b"")
        for start, end in pairwise(places):
            yield view[start:end]


class Original(NamedTuple):
    """A message of the stream restored from its row: the same bytes on the same subject."""

    sequence: int
    subject: str
    stored_at: int
    """Nanoseconds since 1970 at which the server stored it."""
    raw: bytes


def originals(rows: pa.Table) -> Iterator[Original]:
    """Yield the stream's messages from rows of `events`.

    An event that another version encoded, in a store written before the column `raw` existed, comes in this
    version's encoding.
    """
    named = rows.select(list(_ATTRIBUTES)).rename_columns(list(_ATTRIBUTES.values())).to_pylist()
    places = rows.select(["sequence", "subject", "dataschema", "raw"]).to_pylist()
    times, stored = (rows.column(name).cast(pa.int64()).to_pylist() for name in ("time", "stream_time"))
    for place, attributes, time, at, payload in zip(
        places, named, times, stored, _bytes(rows.column("payload")), strict=True
    ):
        if attributes["type"] in NO_EVENT:
            raw = base64.b64decode(payload) if place["dataschema"] == BASE64 else bytes(payload)
        elif place["raw"] is not None:
            raw = place["raw"].encode()
        else:
            made = _EPOCH + timedelta(microseconds=time)
            raw = encode_event(Event(**attributes, time=made, data=msgspec.Raw(payload)))
        yield Original(place["sequence"], place["subject"], at * 1000, raw)


def _foreign(raw: bytes, event: Event | None) -> str | None:
    """Bytes of an event that its columns do not give back: other order, blanks, unknown attributes."""
    return None if event is None or encode_event(event) == raw else raw.decode()


def _single(message: StoredEvent) -> LogBatch:
    try:
        return _bulk([message])
    except REFUSALS:
        return LogBatch(_rows([message], [None], [_kept(message.raw)]), [])


def _bulk(messages: Sequence[StoredEvent]) -> LogBatch:
    events = [_claimable(message.event) for message in messages]
    kept = [
        ("", event.data) if event else _kept(message.raw)
        for message, event in zip(messages, events, strict=True)
    ]
    rows = _rows(messages, events, kept)
    found = [
        Fact(message.sequence, message.subject, event)
        for message, event in zip(messages, events, strict=True)
        if event
    ]
    return LogBatch(rows, found)


def _claimable(event: Event | None) -> Event | None:
    """Return None for an event that calls itself unreadable: that type is the log's own."""
    return None if event is None or event.type in NO_EVENT else event


def _kept(raw: bytes) -> tuple[str, bytes]:
    """Return unreadable bytes as text with the name of their encoding: nothing is dropped."""
    try:
        raw.decode()
    except UnicodeDecodeError:
        return BASE64, base64.b64encode(raw)
    return "", raw


def _rows(
    messages: Sequence[StoredEvent],
    events: Sequence[Event | None],
    kept: Sequence[tuple[str, bytes | msgspec.Raw]],
) -> pa.Table:
    columns: dict[str, Any] = {
        "sequence": [message.sequence for message in messages],
        "stream_time": [message.time for message in messages],
        "subject": [message.subject for message in messages],
        "time": [event and _utc(event.time) for event in events],
        "payload": _texts([data for _, data in kept]),
        "raw": [_foreign(message.raw, event) for message, event in zip(messages, events, strict=True)],
    }
    for column, attribute in _ATTRIBUTES.items():
        columns[column] = [event and getattr(event, attribute) for event in events]
    for index, event in enumerate(events):
        if event is None:
            columns["type"][index] = UNREADABLE
            columns["dataschema"][index] = kept[index][0] or None
    arrays = [
        value if isinstance(value := columns[field.name], pa.ChunkedArray) else pa.array(value, field.type)
        for field in _SCHEMA
    ]
    return pa.Table.from_arrays(arrays, schema=_SCHEMA)


def _texts(parts: Sequence[bytes | msgspec.Raw]) -> pa.ChunkedArray:
    """Build a string column over some joined buffers, checked to be UTF-8 (ArrowInvalid if not)."""
    sizes = [len(memoryview(part)) for part in parts]
    chunks, start, joined = [], 0, 0
    for end, size in enumerate(sizes, start=1):
        joined += size
        if joined >= _CHUNK_BYTES or end == len(sizes):
            chunks.append(_chunk(parts[start:end], sizes[start:end]))
            start, joined = end, 0
    return pa.chunked_array(chunks, pa.string())


def _chunk(parts: Sequence[bytes | msgspec.Raw], sizes: Sequence[int]) -> pa.Array:
    offsets = pa.array(accumulate(sizes, initial=0), pa.int32())
    buffers = [None, offsets.buffers()[1], pa.py_buffer(b"".join(parts))]
    texts = pa.Array.from_buffers(pa.string(), len(parts), buffers)
    texts.validate(full=True)
    return texts


def _utc(time: datetime) -> datetime:
    """Treat a time without a zone as UTC, as the envelope specifies."""
    return time if time.tzinfo else time.replace(tzinfo=UTC)

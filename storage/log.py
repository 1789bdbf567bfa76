"""From stream messages to rows of `events` and back: pure, and the same live, in catch-up and in rebuilds.

A message that is no event becomes a row of type `unreadable` that keeps its bytes. Columns are built in
bulk; only when Arrow refuses a batch is it looked at row by row, to find the rows that do not fit.
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
"""Of payloads that are joined: more at once would be fresh memory from the system for each batch."""
REFUSALS = (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, UnicodeEncodeError)
"""What Arrow, and Python's times, raise for a value that a column cannot hold."""


class Fact(NamedTuple):
    """A readable event with its place in the stream: all that derived tables may look at."""

    sequence: int
    subject: str
    event: Event


class LogBatch(NamedTuple):
    """Consecutive messages as rows of `events`, and the facts among them."""

    rows: pa.Table
    facts: list[Fact]


def log_batch(messages: Sequence[StoredEvent]) -> LogBatch:
    """One row for each message, in order."""
    try:
        return _bulk(messages)
    except REFUSALS:
        parts = [_single(message) for message in messages]
        rows = pa.concat_tables([part.rows for part in parts])
        return LogBatch(rows, [fact for part in parts for fact in part.facts])


FACT_COLUMNS = tuple(name for name in _SCHEMA.names if name not in ("stream_time", "raw"))
"""Of `events`, what `facts` needs."""


def facts(rows: pa.Table) -> Iterator[Fact]:
    """The facts of stored rows of `events`: what `log_batch` gave for them when they were written. Their data
    are views of the rows' memory."""
    plain = rows.select([name for name in FACT_COLUMNS if name not in ("time", "payload")]).to_pylist()
    times = rows.column("time").cast(pa.int64()).to_pylist()  # a tenth of the time that times take
    for row, time, payload in zip(plain, times, _bytes(rows.column("payload")), strict=True):
        if row["type"] not in NO_EVENT:
            event = _row_event(row, _EPOCH + timedelta(microseconds=time), payload)
            yield Fact(row["sequence"], row["subject"], event)


def _bytes(texts: pa.ChunkedArray) -> Iterator[memoryview]:
    """The texts of a column as they are in its buffers."""
    for chunk in texts.chunks:
        _, offsets, data = chunk.buffers()
        places = memoryview(offsets).cast("i")[chunk.offset : chunk.offset + len(chunk) + 1]
        view = memoryview(data or b"")
        for start, end in pairwise(places):
            yield view[start:end]


def _row_event(row: dict[str, Any], time: datetime, payload: bytes | memoryview) -> Event:
    """The event of a row that has one."""
    return Event(
        id=row["id"],
        source=row["source"],
        type=row["type"],
        subject=row["ce_subject"],
        time=time,
        dataschema=row["dataschema"],
        campaign=row["campaign"],
        data=msgspec.Raw(payload),
        rollout_id=row["rollout_id"],
        attempt=row["attempt"],
        causation_id=row["causation_id"],
        traceparent=row["traceparent"],
    )


class Original(NamedTuple):
    """A message of the stream as its row gives it back: the same bytes on the same subject."""

    sequence: int
    subject: str
    time: datetime
    raw: bytes


def originals(rows: pa.Table) -> Iterator[Original]:
    """What the stream had, of rows of `events`. An event that this version did not encode itself, in a store
    written before the column `raw` existed, comes in this version's encoding."""
    for row in rows.to_pylist():
        kept = row["payload"].encode()
        if row["type"] in NO_EVENT:
            raw = base64.b64decode(kept) if row["dataschema"] == BASE64 else kept
        elif row["raw"] is not None:
            raw = row["raw"].encode()
        else:
            raw = encode_event(_row_event(row, row["time"], kept))
        yield Original(row["sequence"], row["subject"], row["stream_time"], raw)


def _foreign(raw: bytes, event: Event | None) -> str | None:
    """The bytes of an event that its columns do not give back: other order, blanks, unknown attributes."""
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
    """An event may not call itself unreadable: that word is the log's own."""
    return None if event is None or event.type in NO_EVENT else event


def _kept(raw: bytes) -> tuple[str, bytes]:
    """Unreadable bytes as text with the name of their encoding: nothing is dropped."""
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
    payload = _texts([data for _, data in kept])
    columns: dict[str, object] = {
        "sequence": [message.sequence for message in messages],
        "stream_time": [message.time for message in messages],
        "subject": [message.subject for message in messages],
        "id": [event and event.id for event in events],
        "source": [event and event.source for event in events],
        "type": [event.type if event else UNREADABLE for event in events],
        "ce_subject": [event and event.subject for event in events],
        "time": [event and _utc(event.time) for event in events],
        "dataschema": [
            event.dataschema if event else encoding or None
            for event, (encoding, _) in zip(events, kept, strict=True)
        ],
        "campaign": [event and event.campaign for event in events],
        "rollout_id": [event and event.rollout_id for event in events],
        "attempt": [event and event.attempt for event in events],
        "causation_id": [event and event.causation_id for event in events],
        "traceparent": [event and event.traceparent for event in events],
        "payload": payload,
        "raw": [_foreign(message.raw, event) for message, event in zip(messages, events, strict=True)],
    }
    arrays = [
        value if isinstance(value, pa.ChunkedArray) else pa.array(value, _SCHEMA.field(name).type)
        for name, value in columns.items()
    ]
    return pa.Table.from_arrays(arrays, schema=_SCHEMA)


def _texts(parts: Sequence[bytes | msgspec.Raw]) -> pa.ChunkedArray:
    """A string column over some joined buffers, checked to be UTF-8 (ArrowInvalid where it is not)."""
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
    """A time without a zone is UTC: the envelope says so."""
    return time if time.tzinfo else time.replace(tzinfo=UTC)

"""Segments: stream messages as Parquet, byte for byte, and the hash of their contents. Pure functions.

A row has all that the stream has of a message. The payload is bytes, as in the stream, and not text as in the
table `events`: what is no event survives unchanged.
"""

import hashlib
from collections.abc import Iterator
from io import BytesIO

import pyarrow as pa
import pyarrow.parquet as pq

from orchard.schemas.archives import ArchiveSegment
from orchard.schemas.subjects import EVENTS_PREFIX, FENCES
from orchard.storage.errors import ArchiveCorrupt
from orchard.streams.reader import Arrived

SCHEMA = pa.schema(
    [
        pa.field("sequence", pa.int64(), nullable=False),
        pa.field("time", pa.timestamp("ns", "UTC"), nullable=False),
        pa.field("subject", pa.string(), nullable=False),
        pa.field("headers", pa.map_(pa.string(), pa.string()), nullable=False),
        pa.field("payload", pa.binary(), nullable=False),
    ]
)
SEGMENT_BYTES = 32 * 1024 * 1024
"""Payload bytes at which a segment ends. A reader holds one file for each part that it merges."""
_GROUP_BYTES = 4 * 1024 * 1024
_GROUP_ROWS = 2000
_PAGE_ROWS = 64
_LEVEL = 9


class ContentDigest:
    """SHA-256 over messages in their order: sequence, time, subject, headers by name, and payload.

    Each number is 8 bytes, big-endian; each text or payload comes after its length in bytes.
    """

    def __init__(self) -> None:
        self._sha256 = hashlib.sha256()

    def take(self, message: Arrived) -> None:
        texts = [part.encode() for pair in sorted(message.headers.items()) for part in pair]
        parts = [message.subject.encode(), *texts, message.data]
        numbers = [message.sequence, message.time, len(texts), *map(len, parts)]
        self._sha256.update(b"".join(number.to_bytes(8, "big") for number in numbers))
        for part in parts:
            self._sha256.update(part)

    def hexdigest(self) -> str:
        return self._sha256.hexdigest()


class SegmentWriter:
    def __init__(self) -> None:
        self._buffer = BytesIO()
        self._writer = pq.ParquetWriter(
            self._buffer,
            SCHEMA,
            compression="zstd",
            compression_level=_LEVEL,
            use_dictionary=["subject"],
            write_statistics=["sequence", "subject"],
            write_batch_size=_PAGE_ROWS,
        )
        self._waiting: list[Arrived] = []
        self._waiting_bytes = 0
        self._content = ContentDigest()
        self._first = self._last = 0
        self.events = 0
        self.bytes = 0

    def take(self, message: Arrived) -> None:
        self._first = self._first or message.sequence
        self._last = message.sequence
        self._content.take(message)
        self._waiting.append(message)
        self._waiting_bytes += len(message.data)
        self.events += 1
        self.bytes += len(message.data)
        if len(self._waiting) >= _GROUP_ROWS or self._waiting_bytes >= _GROUP_BYTES:
            self._write_group()

    @property
    def full(self) -> bool:
        return self.bytes >= SEGMENT_BYTES

    def finish(self) -> tuple[ArchiveSegment, bytes]:
        if self._waiting:
            self._write_group()
        self._writer.close()
        data = self._buffer.getvalue()
        sha256 = hashlib.sha256(data).hexdigest()
        segment = ArchiveSegment(
            path=f"segment-{self._first:020}-{sha256}.parquet",
            size=len(data),
            sha256=sha256,
            content_sha256=self._content.hexdigest(),
            first_sequence=self._first,
            last_sequence=self._last,
            events=self.events,
        )
        return segment, data

    def _write_group(self) -> None:
        rows, self._waiting, self._waiting_bytes = self._waiting, [], 0
        columns = [
            pa.array([row.sequence for row in rows], pa.int64()),
            pa.array([row.time for row in rows], pa.timestamp("ns", "UTC")),
            pa.array([row.subject for row in rows], pa.string()),
            pa.array([sorted(row.headers.items()) for row in rows], SCHEMA.field("headers").type),
            pa.array([row.data for row in rows], pa.binary()),
        ]
        self._writer.write_table(pa.Table.from_arrays(columns, schema=SCHEMA))


def read_segment(data: bytes, after: int = 0) -> Iterator[list[Arrived]]:
    """Yield the messages at sequences over `after`, in order, a few megabytes at a time. Raises
    ArchiveCorrupt."""
    try:
        file = pq.ParquetFile(BytesIO(data))
        for group in range(file.num_row_groups):
            statistics = file.metadata.row_group(group).column(0).statistics
            if statistics is not None and statistics.max <= after:
                continue
            rows = file.read_row_group(group, use_threads=False).cast(SCHEMA)
            yield [message for message in _messages(rows) if message.sequence > after]
    except (pa.ArrowException, OSError) as error:
        raise ArchiveCorrupt(f"not a segment ({' '.join(str(error).split())[:200]})") from error


def _messages(rows: pa.Table) -> Iterator[Arrived]:
    columns = [
        rows.column("sequence").to_pylist(),
        rows.column("subject").to_pylist(),
        rows.column("time").cast(pa.int64()).to_pylist(),
        rows.column("payload").to_pylist(),
        rows.column("headers").to_pylist(),
    ]
    for sequence, subject, time, payload, headers in zip(*columns, strict=True):
        yield Arrived(sequence, subject, time, payload, dict(headers))


def counted_subject(subject: str) -> str:
    """Return the subject with `*` for a shard or an id, by which a manifest counts."""
    head, *rest = subject.removeprefix(f"{EVENTS_PREFIX}.").split(".")
    if head in FENCES:
        rest = [*rest[:-1], "*"]
    elif len(rest) > 1:
        rest = ["*", *rest[1:]]
    return ".".join([EVENTS_PREFIX, head, *rest])


def is_fence(subject: str) -> bool:
    """Whether a message stays in the stream when its campaign is archived."""
    return subject.removeprefix(f"{EVENTS_PREFIX}.").partition(".")[0] in FENCES

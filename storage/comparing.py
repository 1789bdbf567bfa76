"""Compares the stream with the table `events`: sequence by sequence, by ids and bytes, never by lengths."""

import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from orchard.storage.delta import DataFile
from orchard.storage.derived import read_rows
from orchard.storage.errors import StorageError
from orchard.storage.location import Location
from orchard.storage.log import log_batch
from orchard.storage.tables import EVENTS, SCHEMAS
from orchard.streams.records import StoredEvent

log = logging.getLogger(__name__)

_NOT_COMPARED = ("stream_time", "raw")
"""Columns left out: the time differs where a message was restored without it; older rows have no `raw`."""


class Cursor:
    """Takes rows of `events` in order, piece by piece. Unreadable files are skipped."""

    def __init__(
        self, location: Location, files: Sequence[DataFile], columns: Sequence[str] | None = None
    ) -> None:
        self._parts = _readable(location, files, columns)
        self._waiting: pa.Table | None = None

    def up_to(self, last: int | None) -> Iterator[pa.Table]:
        """Yield the rows not taken yet with sequences up to `last`; None: all of them."""
        while (part := self._waiting or next(self._parts, None)) is not None:
            self._waiting = None
            if last is None or part.column("sequence")[-1].as_py() <= last:
                yield part
                continue
            count = pc.sum(pc.less_equal(part.column("sequence"), last)).as_py() or 0
            self._waiting = part.slice(count)
            if count:
                yield part.slice(0, count)
            return


def _readable(
    location: Location, files: Sequence[DataFile], columns: Sequence[str] | None
) -> Iterator[pa.Table]:
    for file in files:
        try:
            yield from (rows for rows in read_rows(location, EVENTS, file, columns) if rows.num_rows)
        except (StorageError, pa.ArrowException) as error:
            log.warning("%s cannot be compared with the stream: %s", file.path, error)


class Piece(NamedTuple):
    """A range of sequences, `first` to `last`, in the stream and in the tables."""

    first: int
    last: int
    stream: list[StoredEvent]
    rows: pa.Table

    def differences(self) -> list[int]:
        """Sequences whose event in the tables differs from the stream's, or is missing there."""
        if not self.rows.num_rows or not self.stream:
            found: list[int] = self.rows.column("sequence").to_pylist()
            return found
        stored = self.rows.drop_columns(list(_NOT_COMPARED))
        held = log_batch(self.stream).rows.drop_columns(list(_NOT_COMPARED))
        if held.num_rows >= stored.num_rows:
            offset = stored.column("sequence")[0].as_py() - self.stream[0].sequence
            if offset >= 0 and held.slice(offset, stored.num_rows).equals(stored):
                return []
        by_sequence = {row["sequence"]: row for row in held.to_pylist()}
        return [row["sequence"] for row in stored.to_pylist() if by_sequence.get(row["sequence"]) != row]


async def side_by_side(
    batches: AsyncIterator[list[StoredEvent]], location: Location, files: Sequence[DataFile], first: int = 1
) -> AsyncIterator[Piece]:
    """Yield all that the stream and the tables hold from the sequence `first` on, in order; rows after the
    stream's end come last."""
    cursor = Cursor(location, files)
    async for batch in batches:
        if not batch:
            continue
        last = batch[-1].sequence
        yield Piece(first, last, batch, _table(cursor.up_to(last)))
        first = last + 1
    for piece in _alone(cursor, first):
        yield piece


def after_the_stream(
    first: int, location: Location, files: Sequence[DataFile], columns: Sequence[str]
) -> Iterator[Piece]:
    """Yield what files hold alone, from the sequence `first`; of their columns those named."""
    return _alone(Cursor(location, files, columns), first)


def _alone(cursor: Cursor, first: int) -> Iterator[Piece]:
    for rows in cursor.up_to(None):
        last = rows.column("sequence")[-1].as_py()
        yield Piece(first, last, [], rows)
        first = last + 1


def _table(parts: Iterator[pa.Table]) -> pa.Table:
    found = list(parts)
    return pa.concat_tables(found) if found else SCHEMAS[EVENTS].empty_table()

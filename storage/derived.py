"""Keeps the derived tables current: collects rows until they are worth a commit."""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import reduce
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from orchard.schemas.positions import Position, stream_of
from orchard.storage.delta import DataFile, StoreTable, snapshot, verify_file
from orchard.storage.derive import derive_tables
from orchard.storage.errors import store_errors
from orchard.storage.location import Location
from orchard.storage.log import FACT_COLUMNS, Fact, facts
from orchard.storage.pins import pinned
from orchard.storage.tables import EVENTS, SCHEMAS

_SLICE_BYTES = 3 * 512 * 1024
"""Bytes of events that are read and derived at a time.

What they need is small enough to be memory that was used before: fresh memory from the system, for each
batch, took a fifth of the writer's time.
"""


class Appender:
    """The rows of one derived table that wait for a commit, with the position they bring the table to."""

    def __init__(self, table: StoreTable, complete: Position, rows: int, size: int) -> None:
        self.table = table
        self.reached = table.watermark.joined(complete)
        self._limits = rows, size
        self._parts: list[pa.Table] = []
        self._rows = self._size = 0

    def take(self, rows: pa.Table | None, reached: int) -> None:
        """Add rows of the events of one stream up to sequence `reached`; those the table has already are left
        out."""
        known = self.reached.last(stream_of(reached))
        if rows is not None and (rows := after(rows, known)).num_rows:
            self._parts.append(rows)
            self._rows += rows.num_rows
            self._size += rows.nbytes
        if reached > known:
            self.reached = self.reached.with_last(reached)

    @property
    def full(self) -> bool:
        rows, size = self._limits
        return self._rows >= rows or self._size >= size

    @property
    def waiting(self) -> bool:
        return self._rows > 0

    def commit(self) -> Callable[[], None]:
        """Return a function that commits the waiting rows once; it raises as `StoreTable.append` does."""
        parts, self._parts = self._parts, []
        self._rows = self._size = 0
        reached = self.reached

        def append() -> None:
            self.table.append(pa.concat_tables(parts), reached)
            parts.clear()

        return append


class Committed(NamedTuple):
    """A batch of one stream that is now in `events`: its sequences, both inclusive, and its facts."""

    first: int
    last: int
    facts: list[Fact]


class DerivedTables:
    """All derived tables of a store. Not for concurrent use.

    A table commits alone when it has many rows, and all commit together when a row has waited long enough;
    then the table `progress` records up to where all are complete. Readers look no further, so that they
    never see an outcome without its request; and after a crash no table without rows is made again.

    A thread compresses and commits a table while the caller derives the rows that follow.
    """

    def __init__(
        self,
        progress: StoreTable,
        tables: Sequence[StoreTable],
        rows: int,
        size: int,
        seconds: float,
        threads: ThreadPoolExecutor,
    ) -> None:
        """The limits are those of commits: rows and bytes of a table, and seconds a row may wait. The
        commits run in one of `threads`."""
        self._location = progress.location
        self._seconds = seconds
        self._progress = progress
        complete = self._progress.watermark
        self._appenders = [Appender(table, complete, rows, size) for table in tables]
        self.reached = reduce(Position.common, (appender.reached for appender in self._appenders))
        """Position up to which every table has its rows, committed or waiting."""
        self._since: float | None = None
        self._threads = threads
        self._committing: Future[None] | None = None

    def take(self, batch: Committed) -> None:
        """Take a batch of `events`, and commit the tables for which it is time.

        A batch that leaves a gap after the last event taken is ignored: `catch_up` finds it.
        """
        if batch.first <= self.reached.last(stream_of(batch.last)) + 1 <= batch.last:
            for piece in _pieces(batch.facts):
                self._take(piece, piece[-1].sequence)
            self._take([], batch.last)

    def catch_up(self, watermark: Position, cancelled: Callable[[], bool]) -> None:
        """Take what `events` has up to `watermark` from its files, as after a crash between two commits."""
        files, pin = pinned(
            self._location,
            lambda: snapshot(self._location, EVENTS),
            lambda found: [f"tables/{EVENTS}/{file.path}" for file in found],
        )
        try:
            for rows in read_events(self._location, files, self.reached, FACT_COLUMNS):
                if cancelled():
                    return
                self._take(list(facts(rows)), rows.column("sequence")[-1].as_py())
                if self.reached.reaches(watermark):
                    return
        finally:
            pin.release()

    @property
    def due(self) -> float:
        """Seconds until `flush_in_time` has something to do."""
        waited = 0.0 if self._since is None else time.monotonic() - self._since
        return max(self._seconds - waited, 0.0)

    def flush(self) -> None:
        """Commit everything, and that it is complete."""
        for appender in self._appenders:
            if appender.waiting:
                self._commit(appender)
        self._committed()
        if self.reached != self._progress.watermark:
            self._progress.append(self._progress.schema.empty_table(), self.reached)
        self._since = None

    def _take(self, found: Sequence[Fact], reached: int) -> None:
        if self._since is None:
            self._since = time.monotonic()
        tables = derive_tables(found)
        for appender in self._appenders:
            appender.take(tables.get(appender.table.name), reached)
            if appender.full:
                self._commit(appender)
        self.reached = self.reached.with_last(reached)
        self.flush_in_time()

    def _commit(self, appender: Appender) -> None:
        """Start the commit of a table when the one before has ended: two batches are in memory at most."""
        self._committed()
        self._committing = self._threads.submit(appender.commit())

    def _committed(self) -> None:
        """Wait for the running commit; raises what it raised."""
        if self._committing is not None:
            self._committing.result()
            self._committing = None

    def flush_in_time(self) -> None:
        """Commit everything when a row has waited long enough."""
        if self._since is not None and time.monotonic() - self._since >= self._seconds:
            self.flush()


def _pieces(found: Sequence[Fact]) -> Iterator[Sequence[Fact]]:
    start = size = 0
    for end, fact in enumerate(found, start=1):
        size += len(memoryview(fact.event.data))
        if size >= _SLICE_BYTES:
            yield found[start:end]
            start, size = end, 0
    if start < len(found):
        yield found[start:]


def read_events(
    location: Location, files: Sequence[DataFile], position: Position, columns: Sequence[str] | None = None
) -> Iterator[pa.Table]:
    """Yield rows of `events` after a position, in order, some megabytes at a time, each of one stream."""
    for file in files:
        if not file.rows or position.covers(file.last):
            continue
        for rows in read_rows(location, EVENTS, file, columns):
            if (rows := after(rows, position.last(stream_of(file.last)))).num_rows:
                yield rows


def after(rows: pa.Table, sequence: int) -> pa.Table:
    """Rows of a table that has some, in order, with a higher sequence."""
    if rows.column("sequence")[0].as_py() > sequence:
        return rows
    return rows.filter(pc.field("sequence") > sequence)


def read_rows(
    location: Location, table: str, file: DataFile, columns: Sequence[str] | None = None
) -> Iterator[pa.Table]:
    """Yield the rows of one file in the table's declared columns, or those named, some megabytes at a time.

    The file is compared with its SHA-256 first, so that no damage is copied or derived from. Raises
    StoreDamaged, StoreUnreachable.
    """
    verify_file(location, table, file)
    schema = SCHEMAS[table]
    if columns is not None:
        schema = pa.schema([schema.field(name) for name in columns])
    key = location.key("tables", table, file.path)
    with store_errors(location.url), location.filesystem.open_input_file(key) as source:
        parquet = pq.ParquetFile(source)
        stored = [name for name in parquet.schema_arrow.names if name in schema.names]
        for group in range(parquet.num_row_groups):
            about = parquet.metadata.row_group(group)
            step = max(1, _SLICE_BYTES * about.num_rows // max(about.total_byte_size, 1))
            for batch in parquet.iter_batches(step, row_groups=[group], columns=stored, use_threads=False):
                rows = pa.Table.from_batches([batch])
                for field in schema:
                    if field.name not in rows.column_names:
                        rows = rows.append_column(field, pa.nulls(rows.num_rows, field.type))
                yield rows.select(schema.names).cast(schema)

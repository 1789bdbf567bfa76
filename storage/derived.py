"""The derived tables as the writer keeps them: rows collected until worth a commit."""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from orchard.storage.delta import DataFile, Table, snapshot
from orchard.storage.derive import derive_tables
from orchard.storage.errors import store_errors
from orchard.storage.location import Location
from orchard.storage.log import Fact, facts
from orchard.storage.pins import pinned
from orchard.storage.tables import DERIVED, EVENTS, PROGRESS, SCHEMAS

_SLICE_ROWS = 128
"""Rows that are given at once when a file is read; a row group is in memory."""


class Appender:
    """The rows of one derived table that wait for a commit, with the position they bring the table to."""

    def __init__(self, table: Table, complete: int, rows: int, size: int) -> None:
        self.table = table
        self.reached = max(table.watermark, complete)
        self._rows, self._size = rows, size
        self._parts: list[pa.Table] = []

    def take(self, rows: pa.Table | None, reached: int) -> None:
        """Rows of the events up to sequence `reached`; those the table has already are left out."""
        if rows is not None and rows.column("sequence")[0].as_py() <= self.reached:
            rows = rows.filter(pc.field("sequence") > self.reached)
        if rows is not None and rows.num_rows:
            self._parts.append(rows)
        self.reached = max(self.reached, reached)

    def full(self) -> bool:
        """Whether the rows are worth a commit by their number or bytes."""
        rows = sum(part.num_rows for part in self._parts)
        size = sum(part.nbytes for part in self._parts)
        return bool(rows >= self._rows or size >= self._size)

    def flush(self) -> None:
        """Commits what waits. Raises as `Table.append` does."""
        if self._parts:
            rows = pa.concat_tables(self._parts)
            self._parts = []
            self.table.append(rows, self.reached)


class Committed(NamedTuple):
    """A batch that is in `events` now: its sequences, both inclusive, and its facts."""

    first: int
    last: int
    facts: list[Fact]


class DerivedTables:
    """All derived tables of a store. Not for concurrent use.

    A table commits alone when it has many rows, and all commit together when a row has waited long enough;
    then the table `progress` says up to where all are complete. Readers look no further, so that they never
    see an outcome without its request; and after a crash no table without rows is made again.
    """

    def __init__(self, location: Location, rows: int, size: int, seconds: float) -> None:
        """The limits are those of commits: rows and bytes of a table, and seconds a row may wait."""
        self._location = location
        self._seconds = seconds
        with ThreadPoolExecutor(4) as threads:
            self._progress, *tables = threads.map(partial(Table, location), (PROGRESS, *DERIVED))
        complete = self._progress.watermark
        self._appenders = [Appender(table, complete, rows, size) for table in tables]
        self.reached = min(appender.reached for appender in self._appenders)
        """Sequence up to which every table has its rows, committed or waiting."""
        self._since: float | None = None

    def take(self, batch: Committed) -> None:
        """The next batch of `events`. Commits the tables for which it is time."""
        self._take(batch.facts, batch.last)

    def catch_up(self, watermark: int, cancelled: Callable[[], bool]) -> None:
        """Takes what `events` has up to `watermark` from its files, as after a crash between two commits."""
        files, pin = pinned(
            self._location,
            lambda: snapshot(self._location, EVENTS),
            lambda found: [f"tables/{EVENTS}/{file.path}" for file in found],
        )
        try:
            for rows in read_events(self._location, files, self.reached):
                if cancelled():
                    return
                self._take(list(facts(rows)), rows.column("sequence")[-1].as_py())
                if self.reached >= watermark:
                    return
        finally:
            pin.release()

    @property
    def due(self) -> float:
        """Seconds until `flush_in_time` has something to do."""
        waited = 0.0 if self._since is None else time.monotonic() - self._since
        return max(self._seconds - waited, 0.0)

    def flush(self) -> None:
        """Commits everything, and that it is complete."""
        for appender in self._appenders:
            appender.flush()
        if self.reached > self._progress.watermark:
            self._progress.append(self._progress.schema.empty_table(), self.reached)
        self._since = None

    def _take(self, found: Sequence[Fact], reached: int) -> None:
        if self._since is None:
            self._since = time.monotonic()
        tables = derive_tables(found)
        for appender in self._appenders:
            appender.take(tables.get(appender.table.name), reached)
            if appender.full():
                appender.flush()
        self.reached = reached
        self.flush_in_time()

    def flush_in_time(self) -> None:
        """Commits everything when a row has waited long enough."""
        if self._since is not None and time.monotonic() - self._since >= self._seconds:
            self.flush()


def read_events(location: Location, files: Sequence[DataFile], after: int) -> Iterator[pa.Table]:
    """Rows of `events` with a sequence over `after`, in order, some hundred at a time."""
    for file in files:
        if file.last <= after:
            continue
        for rows in read_rows(location, EVENTS, file):
            kept = rows.filter(pc.field("sequence") > after)
            if kept.num_rows:
                yield kept


def read_rows(location: Location, table: str, file: DataFile) -> Iterator[pa.Table]:
    """The rows of one file in the table's declared columns, some hundred at a time."""
    schema = SCHEMAS[table]
    key = location.key("tables", table, file.path)
    with store_errors(location.url), location.filesystem.open_input_file(key) as source:
        parquet = pq.ParquetFile(source)
        for group in range(parquet.num_row_groups):
            rows = parquet.read_row_group(group, use_threads=False)
            for field in schema:
                if field.name not in rows.column_names:
                    rows = rows.append_column(field, pa.nulls(rows.num_rows, field.type))
            rows = rows.select(schema.names).cast(schema)
            for start in range(0, rows.num_rows, _SLICE_ROWS):
                yield rows.slice(start, _SLICE_ROWS)


def last_event_id(location: Location, files: Sequence[DataFile], watermark: int) -> str | None:
    """Id of the stored event at the watermark of `events`; None when there is none or it was unreadable."""
    if not watermark or not files:
        return None
    key = location.key("tables", EVENTS, files[-1].path)
    with store_errors(location.url), location.filesystem.open_input_file(key) as source:
        parquet = pq.ParquetFile(source)
        last = parquet.num_row_groups - 1
        rows = parquet.read_row_group(last, columns=["sequence", "id"], use_threads=False)
    found: str | None = rows.filter(pc.field("sequence") == watermark).column("id").to_pylist()[-1]
    return found

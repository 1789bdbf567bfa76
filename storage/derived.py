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
from orchard.storage.tables import DERIVED, EVENTS, PROGRESS, SCHEMAS

_SLICE_ROWS = 128
"""Rows that are in memory at once when a file is read."""


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

    def advance(self, watermark: int, batch: Committed | None, cancelled: Callable[[], bool]) -> None:
        """Brings the tables to the `watermark` of `events`: with the batch at hand where it is the next one,
        else from the files, as after a crash between two commits. Commits the tables for which it is time."""
        if batch is not None and batch.first == self.reached + 1:
            self._take(batch.facts, batch.last)
        if self.reached < watermark:
            for rows in read_events(self._location, snapshot(self._location, EVENTS), self.reached):
                if cancelled():
                    return
                self._take(list(facts(rows)), rows.column("sequence")[-1].as_py())
        self._flush_in_time()

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
        self._flush_in_time()

    def _flush_in_time(self) -> None:
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
        for batch in pq.ParquetFile(source).iter_batches(_SLICE_ROWS, use_threads=False):
            rows = pa.Table.from_batches([batch])
            for field in schema:
                if field.name not in rows.column_names:
                    rows = rows.append_column(field, pa.nulls(rows.num_rows, field.type))
            yield rows.select(schema.names).cast(schema)


def last_event_id(location: Location, events: Table) -> str | None:
    """Id of the stored event at the watermark; None when there is none or it was unreadable."""
    for rows in read_events(location, events.files()[-1:], events.watermark - 1):
        found: str | None = rows.column("id")[-1].as_py()
        return found
    return None

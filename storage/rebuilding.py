"""Derives rows anew from the log: those that another version of Orchard derived, or all.

Each commit of a derived table records its position under the name of this version's derivation, and so does
each commit of `progress` for all tables (`orchard.storage.delta`). Rows beyond both positions are another
version's: its columns may differ, or it did not know the events. The writer derives them anew as it starts.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from functools import partial, reduce

import pyarrow as pa

from orchard.schemas.positions import Position, stream_of
from orchard.storage.delta import DataFile, StoreTable, by_stream, write_file
from orchard.storage.derive import derive_tables
from orchard.storage.derived import after, read_events
from orchard.storage.errors import store_errors
from orchard.storage.location import Location
from orchard.storage.log import FACT_COLUMNS, facts
from orchard.storage.tables import DERIVED, PROGRESS

log = logging.getLogger(__name__)

_FILE_BYTES = 32 * 1024 * 1024
"""Bytes of rows in memory at which a rebuild writes a file."""


def opened_for_writing(
    events: StoreTable, cancelled: Callable[[], bool] = lambda: False
) -> tuple[StoreTable, list[StoreTable]]:
    """Open `progress` and all derived tables, after rows of another version's derivation were derived anew.

    One commit replaces them in each table; a crash on the way changes nothing in the others. Raises
    CancelledError, and as StoreTable does.
    """
    with ThreadPoolExecutor(4) as threads:
        progress, *tables = threads.map(partial(StoreTable, events.location), (PROGRESS, *DERIVED))
    starts = {table.name: start for table in tables if (start := table.stale_from(progress)) is not None}
    if starts:
        log.info("deriving rows of %s anew: another version derived them", ", ".join(starts))
        files = derived_files(events, starts, cancelled)
        for table in tables:
            if table.name in starts:
                table.replace(files[table.name], events.watermark, starts[table.name])
    return progress, tables


def derived_files(
    events: StoreTable, starts: Mapping[str, Position], cancelled: Callable[[], bool] = lambda: False
) -> dict[str, Sequence[DataFile]]:
    """Write the rows of tables, after a position each, to files that no commit names yet."""
    found = {table: RowFiles(events.location, table) for table in starts}
    first = reduce(Position.common, starts.values())
    for rows in read_events(events.location, events.files(), first, FACT_COLUMNS):
        if cancelled():
            raise CancelledError
        stream = stream_of(rows.column("sequence")[0].as_py())
        for table, derived in derive_tables(facts(rows)).items():
            if table in starts:
                found[table].take(after(derived, starts[table].last(stream)))
    return {table: files.written() for table, files in found.items()}


class RowFiles:
    """Collects a table's rows into files that no commit names yet."""

    def __init__(self, location: Location, table: str) -> None:
        self._location, self._table = location, table
        self._waiting: list[pa.Table] = []
        self._size = 0
        self._written: list[DataFile] = []

    def take(self, rows: pa.Table) -> None:
        if rows.num_rows:
            self._waiting.append(rows)
            self._size += rows.nbytes
        if self._size >= _FILE_BYTES:
            self._write()

    def written(self) -> Sequence[DataFile]:
        if self._waiting:
            self._write()
        return self._written

    def _write(self) -> None:
        rows, self._waiting, self._size = pa.concat_tables(self._waiting), [], 0
        if not self._location.is_s3:
            (self._location.path / "tables" / self._table).mkdir(parents=True, exist_ok=True)
        with store_errors(self._location.url):
            self._written += [write_file(self._location, self._table, [part]) for part in by_stream(rows)]

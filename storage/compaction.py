"""Compaction: many small files become few large ones, while the writer appends and readers read.

Rows keep their order. The commit removes the small files and adds the large ones at once; the bytes of the
small ones stay on disk until a vacuum after the retention, so a reader that has opened them reads on.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

import pyarrow as pa
from deltalake import DeltaTable

from orchard.storage.delta import (
    COMPACT_LEVEL,
    GROUP_BYTES,
    GROUP_ROWS,
    VACUUM_HOURS,
    DataFile,
    list_files,
    swap_files,
    write_file,
)
from orchard.storage.derived import read_rows
from orchard.storage.errors import StorageError, store_errors
from orchard.storage.location import Location
from orchard.storage.tables import SCHEMAS

TARGET_BYTES = 128 * 1024 * 1024
"""Compressed size that files are merged towards; from half of it on a file is left alone."""


class CompactionCancelled(Exception):
    """The caller asked to stop; the table is as it was."""


def plan(files: Sequence[DataFile], target: int = TARGET_BYTES) -> list[list[DataFile]]:
    """Runs of neighbouring small files to merge, each run into one file of about `target` bytes at most."""
    bins: list[list[DataFile]] = [[]]
    size = 0
    for file in files:
        small = file.size * 2 < target
        if not small or size + file.size > target:
            bins.append([])
            size = 0
        if small:
            bins[-1].append(file)
            size += file.size
    return [found for found in bins if len(found) > 1]


def compact(
    location: Location,
    table: str,
    *,
    above: int = 100,
    target: int = TARGET_BYTES,
    cancelled: Callable[[], bool] = lambda: False,
) -> int:
    """Merges the small files of a table when it has more than `above` of them; how many were merged away.

    Leaves the table as it was when somebody else compacted it meanwhile. Raises CompactionCancelled,
    StoreFull or StoreUnreachable.
    """
    with store_errors(location.url):
        delta = DeltaTable(location.table_url(table), storage_options=location.storage_options)
        bins = plan(list_files(delta), target)
    if sum(map(len, bins)) <= above:
        return 0
    merged = 0
    for found in bins:
        rows = (rows for file in found for rows in _watched(read_rows(location, table, file), cancelled))
        with store_errors(location.url):
            new = write_file(location, table, regroup(rows), COMPACT_LEVEL)
            if not swap_files(delta, SCHEMAS[table], found, new):
                return merged
            delta.update_incremental()
        merged += len(found) - 1
    return merged


def vacuum(location: Location, table: str, hours: int = VACUUM_HOURS) -> int:
    """Deletes files that no snapshot of the last `hours` names; how many. A reader whose connection is older
    than that must refresh. Raises StorageError for less than an hour."""
    if hours < 1:
        raise StorageError("vacuum would break running readers: keep files for at least 1 hour")
    with store_errors(location.url):
        delta = DeltaTable(location.table_url(table), storage_options=location.storage_options)
        gone = delta.vacuum(retention_hours=hours, dry_run=False, enforce_retention_duration=False, full=True)
    return len(gone)


def regroup(parts: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """The same rows in pieces of the size of a row group."""
    waiting: list[pa.Table] = []
    rows = size = 0
    for part in parts:
        if waiting and (rows + part.num_rows > GROUP_ROWS or size + part.nbytes > GROUP_BYTES):
            yield pa.concat_tables(waiting)
            waiting, rows, size = [], 0, 0
        waiting.append(part)
        rows += part.num_rows
        size += part.nbytes
    if waiting:
        yield pa.concat_tables(waiting)


def _watched(parts: Iterable[pa.Table], cancelled: Callable[[], bool]) -> Iterator[pa.Table]:
    for part in parts:
        if cancelled():
            raise CompactionCancelled
        yield part

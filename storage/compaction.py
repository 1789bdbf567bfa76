"""Compaction: merges many small files into few large ones, while the writer appends and readers read.

Rows keep their order. The commit removes the small files and adds the large ones at once; the bytes of the
small ones stay on disk until no reader can need them (`orchard.storage.pins`).
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

import pyarrow as pa
import pyarrow.fs as pafs
from deltalake import DeltaTable

from orchard.schemas.positions import stream_of
from orchard.storage import pins
from orchard.storage.delta import (
    COMPACT_LEVEL,
    GROUP_BYTES,
    GROUP_ROWS,
    MERGED_LEVEL,
    VACUUM_HOURS,
    DataFile,
    list_files,
    rewrites_of,
    swap_files,
    write_file,
)
from orchard.storage.derived import read_rows
from orchard.storage.errors import StorageError, StoreUnreachable, store_errors
from orchard.storage.location import Location
from orchard.storage.table_log import FollowedTable, opened
from orchard.storage.tables import SCHEMAS

TARGET_BYTES = 128 * 1024 * 1024
"""Compressed size that files are merged towards; a file of half of it or more is left alone."""


class CompactionCancelled(Exception):
    """The caller asked to stop; the table is unchanged."""


def plan(files: Sequence[DataFile], target: int = TARGET_BYTES) -> list[list[DataFile]]:
    """Return runs of neighbouring small files of one stream to merge, each into one file of about `target`
    bytes at most.

    A file joins a run only when those after it are together at least half its size: so a byte is rewritten a
    few times, and not whenever some small files have come after it.
    """
    bins: list[list[DataFile]] = [[]]
    size = 0
    for file in files:
        small = file.size * 2 < target
        other = bins[-1] and stream_of(bins[-1][-1].last) != stream_of(file.last)
        if not small or other or size + file.size > target:
            bins.append([])
            size = 0
        if small:
            bins[-1].append(file)
            size += file.size
    return [run for found in bins if len(run := _worthwhile(found)) > 1]


def _worthwhile(run: list[DataFile]) -> list[DataFile]:
    rest = sum(file.size for file in run)
    for index, file in enumerate(run):
        rest -= file.size
        if file.size <= 2 * rest:
            return run[index:]
    return []


def compact(
    location: Location,
    table: str,
    *,
    above: int = 100,
    target: int = TARGET_BYTES,
    cancelled: Callable[[], bool] = lambda: False,
    followed: FollowedTable | None = None,
) -> int:
    """Merge the small files of a table if it has more than `above`; returns by how many files fewer it has.

    `followed` is the same table, where the caller looks at it again and again. Leaves the table unchanged
    when another process compacted it meanwhile. Raises CompactionCancelled, StoreFull or StoreUnreachable;
    that of one file when the files that are not merged with it are done.
    """

    followed = followed or FollowedTable(location, table)

    def look() -> tuple[DeltaTable | None, list[list[DataFile]]]:
        delta = followed.current()
        bins = plan(list_files(delta), target) if delta else []
        return delta, bins if sum(map(len, bins)) > above else []

    with store_errors(location.url):
        (delta, bins), pin = pins.pinned(
            location, look, lambda seen: [_key(table, file.path) for run in seen[1] for file in run]
        )
    try:
        return _merge(location, table, delta, bins, target, cancelled) if delta else 0
    finally:
        pin.release()


def _merge(
    location: Location,
    table: str,
    delta: DeltaTable,
    bins: list[list[DataFile]],
    target: int,
    cancelled: Callable[[], bool],
) -> int:
    merged = 0
    unreadable: StoreUnreachable | None = None
    for run in bins:
        rows = (rows for file in run for rows in _watched(read_rows(location, table, file), cancelled))
        last_time = sum(file.size for file in run) * 2 >= target
        level = COMPACT_LEVEL if last_time else MERGED_LEVEL
        with store_errors(location.url):
            try:
                new = write_file(location, table, regroup(rows), level)
            except StoreUnreachable as error:
                unreadable = unreadable or error
                continue
            if not swap_files(delta, SCHEMAS[table], run, new):
                return merged
            delta.update_incremental()
        merged += len(run) - 1
    if unreadable:
        raise unreadable
    return merged


def vacuum(location: Location, table: str, hours: int = VACUUM_HOURS) -> int:
    """Delete files replaced more than `hours` ago, and leftovers of that age; returns how many.

    Files that a reader has pinned, or a writer is about to commit, stay. The hours end at the newest file of
    the table, not at this machine's clock. Raises StorageError for less than an hour.
    """
    if hours < 1:
        raise StorageError("vacuum would take files that are about to be committed: give at least 1 hour")
    delta = opened(location, table)
    if delta is None:
        return 0
    retention = hours + _hours_since_the_newest(location, table)
    with store_errors(location.url):
        replaced = _candidates(delta, retention, full=False)
        left_over = pins.abandoned(location, _candidates(delta, retention, full=True) - replaced)
    return len(_delete(location, table, replaced | left_over))


def _candidates(delta: DeltaTable, hours: int, *, full: bool = False) -> set[str]:
    """Files that were replaced so many hours ago, and with `full` those that no commit names."""
    return set(delta.vacuum(retention_hours=hours, dry_run=True, enforce_retention_duration=False, full=full))


def _hours_since_the_newest(location: Location, table: str) -> int:
    """Hours since the table's newest file was written, by this machine's clock; at least 0."""
    infos = location.filesystem.get_file_info(pafs.FileSelector(location.key("tables", table)))
    newest = max((info.mtime_ns for info in infos if info.mtime_ns), default=time.time_ns())
    return max(math.ceil((time.time_ns() - newest) / 3600e9), 0)


class Vacuum:
    """Deletes replaced files of a table as soon as no reader can need them.

    That is when no reader has pinned them and this object first saw them replaced GRACE seconds ago.
    """

    def __init__(self, followed: FollowedTable, clock: Callable[[], float] = time.monotonic) -> None:
        self._followed, self._clock = followed, clock
        self._rewrites = -1
        """Commits that removed files, when this object last looked for these."""
        self._seen: dict[str, float] = {}
        """Replaced files that may be on disk, by the time they were first seen."""
        self._gone: set[str] = set()
        """Deleted files that the log still names."""

    @property
    def waiting(self) -> bool:
        """Whether there are replaced files that are not deleted yet."""
        return bool(self._seen)

    def run(self) -> int:
        """Delete what is due; returns how many files. Raises StoreUnreachable."""
        now, location = self._clock(), self._followed.location
        delta = self._followed.current()
        if delta is None or (rewrites_of(delta) == self._rewrites and not self._seen):
            return 0
        with store_errors(location.url):
            found = _candidates(delta, 0)
        self._rewrites = rewrites_of(delta)
        self._gone &= found
        self._seen = {file: self._seen.get(file, now) for file in found if file not in self._gone}
        old = {file for file, since in self._seen.items() if now - since >= pins.GRACE}
        deleted = _delete(location, self._followed.table, old)
        self._gone |= deleted
        return len(deleted)


def _delete(location: Location, table: str, files: set[str]) -> set[str]:
    """Delete those of a table's files that nobody has pinned; returns them."""
    if not files:
        return set()
    with store_errors(location.url):
        free = sorted(files - {key.rpartition("/")[2] for key in pins.held(location)})
        keys = [location.key(_key(table, file)) for file in free]
        for info in location.filesystem.get_file_info(keys):
            if info.type == pafs.FileType.File:
                location.filesystem.delete_file(info.path)
    return set(free)


def _key(table: str, file: str) -> str:
    return f"tables/{table}/{file}"


def regroup(parts: Iterable[pa.Table]) -> Iterator[pa.Table]:
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

"""Maintains and rebuilds a store: compaction, vacuum, rebuilds.

Compaction and vacuum may run beside a writer. Rebuilds hold the writer's lock; they write all new files first
and replace the old ones in one commit for each table, so that readers see either and a crash on the way
changes nothing.
"""

from contextlib import aclosing

import pyarrow.fs as pafs

from orchard.schemas.positions import START, Position
from orchard.storage import compaction
from orchard.storage.archive.files import ArchiveFiles
from orchard.storage.archive.history import whole_log
from orchard.storage.checking import check as check
from orchard.storage.comparing import Piece, side_by_side
from orchard.storage.delta import (
    VACUUM_HOURS,
    DataFile,
    StoreTable,
    found_files,
    list_files,
    watermark_of,
)
from orchard.storage.errors import EventsLost, StorageError, StoreDamaged, store_errors
from orchard.storage.location import Location
from orchard.storage.lock import writer_lock
from orchard.storage.log import log_batch
from orchard.storage.rebuilding import RowFiles, derived_files
from orchard.storage.settings import ArchiveSettings, archive_url
from orchard.storage.table_log import opened
from orchard.storage.tables import DERIVED, EVENTS, PROGRESS, TABLES
from orchard.streams.connection import Connection
from orchard.streams.event_streams import log_end
from orchard.streams.stream_state import REMEDY


def compact(store_url: str, *, above: int = 1) -> dict[str, int]:
    """Merge the small files of each table with more than `above`; returns by how many files fewer, by
    table."""
    location = Location.parse(store_url)
    return {table: compaction.compact(location, table, above=above) for table in _existing(location)}


def vacuum(store_url: str, *, hours: int = VACUUM_HOURS) -> dict[str, int]:
    """Delete replaced and left-over files older than `hours` that no reader has pinned; returns how many, by
    table.

    Raises StorageError for less than an hour: a process may be about to commit them.
    """
    location = Location.parse(store_url)
    return {table: compaction.vacuum(location, table, hours) for table in _existing(location)}


def rebuild_derived(store_url: str) -> None:
    """Rebuild every derived table from `events`, in one commit each; those that cannot be opened are made
    anew.

    Raises StoreBusy while a writer works, StoreDamaged if `events` is damaged.
    """
    location = Location.parse(store_url)
    with writer_lock(location):
        events = StoreTable(location, EVENTS)
        for table, files in derived_files(events, dict.fromkeys(DERIVED, START)).items():
            StoreTable.anew(location, table).replace(files, events.watermark)
        progress = StoreTable.anew(location, PROGRESS)
        progress.append(progress.schema.empty_table(), events.watermark)


def has_events(store_url: str) -> bool:
    return bool(_held_events(Location.parse(store_url))[1])


async def refuse_empty(store_url: str, connection: Connection) -> None:
    """Raises StorageError if `events` is empty and the stream is not: derived tables would be made of
    nothing."""
    if not has_events(store_url) and await log_end(connection):
        raise StorageError(
            f"`events` of {store_url} is empty and the stream is not: run `orchard store rebuild "
            "--from-stream`"
        )


async def rebuild_events(
    store_url: str, connection: Connection, archive: ArchiveSettings | None = None
) -> Position:
    """Rebuild `events` from streams and archive, up to the streams' last events; returns their position.

    Derived tables follow when the writer runs next, or by `rebuild_derived`. The log of a damaged table is
    not needed: its files are compared with the stream as they are found. Raises EventsLost, with nothing
    changed, when an event from the first on is neither in the stream nor in the archive, or when the tables
    have an event that these lack, or a different one: then the side that has more is never given up. Raises
    StoreBusy.
    """
    location = Location.parse(store_url)
    archive_files = ArchiveFiles(archive_url(store_url, archive))
    with writer_lock(location):
        files = RowFiles(location, EVENTS)
        whole, watermark = _held_events(location)
        last = await log_end(connection)
        reached = START
        async with aclosing(whole_log(connection, archive_files, START, until=last)) as batches:
            async for piece in side_by_side(batches, location, whole):
                for different in piece.differences():
                    raise _differs(piece, different, last)
                if piece.stream:
                    files.take(log_batch(piece.stream).rows)
                    reached = reached.with_last(piece.last)
        if reached != last or not last.reaches(watermark):
            raise EventsLost(
                f"the stream gave events up to {reached} of {last.joined(watermark)}: nothing was "
                f"changed; {REMEDY}"
            )
        StoreTable.anew(location, EVENTS).replace(files.written(), reached)
        return reached


def _held_events(location: Location) -> tuple[list[DataFile], Position]:
    """Return the files of `events` and the position they reach.

    If its log is damaged, these are the intact files in its directory, without overlaps.
    """
    try:
        found = opened(location, EVENTS)
        return (list_files(found), watermark_of(found)) if found else ([], START)
    except StoreDamaged:
        files = found_files(location, EVENTS)
        return files, Position.up_to(file.last for file in files)


def _differs(piece: Piece, sequence: int, last: Position) -> EventsLost:
    ids = dict(
        zip(piece.rows.column("sequence").to_pylist(), piece.rows.column("id").to_pylist(), strict=True)
    )
    held = next((message for message in piece.stream if message.sequence == sequence), None)
    name = ids[sequence] or "a message that is no event"
    if held is None:
        what = f"the stream, which ends at {last}, has no event {sequence} and the tables have {name} there"
    else:
        other = held.event.id if held.event else "a message that is no event"
        what = f"event {sequence} is {other} in the stream and {name} in the tables"
        if other == name:
            what = f"event {sequence}, {name}, is not the same in the stream and in the tables"
    return EventsLost(f"{what}: a rebuild would lose it, so nothing was changed; {REMEDY}")


def _existing(location: Location) -> list[str]:
    with store_errors(location.url):
        infos = location.filesystem.get_file_info([location.key("tables", table) for table in TABLES])
    return [table for table, info in zip(TABLES, infos, strict=True) if info.type == pafs.FileType.Directory]

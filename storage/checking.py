"""Finds what is wrong with a store without writing to it, also beside a running writer.

All that is compared belongs together: the tables of one `reader.StoreSnapshot`. A plain check compares
sizes, rows and positions; a reading check compares every byte with its SHA-256, and every derived table with
the rows that follow from the events.
"""

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from orchard.schemas.positions import START, STREAM_BITS, Position, sequence_in, stream_of
from orchard.storage.blobs import BlobStore
from orchard.storage.delta import DataFile, stale_from, verify_file
from orchard.storage.derive import derive_tables
from orchard.storage.derived import read_events, read_rows
from orchard.storage.errors import BlobCorrupt, BlobMissing, StoreDamaged, StoreUnreachable, store_errors
from orchard.storage.location import Location
from orchard.storage.log import FACT_COLUMNS, facts
from orchard.storage.reader import Stored, StoreSnapshot, existing, held_snapshot, open_snapshot
from orchard.storage.table_log import file_damaged, mending, opened
from orchard.storage.tables import DERIVED, EVENTS, PROGRESS, TABLES

_PIECE = 1024 * 1024


@dataclass
class Checked:
    findings: list[str] = field(default_factory=list)
    """Problems, a sentence each."""
    unknown: Counter[str] = field(default_factory=Counter)
    """Number of files without a SHA-256 by table, which cannot be verified."""


def check(store_url: str, *, read: bool = False) -> list[str]:
    return examine(store_url, read=read).findings


def examine(store_url: str, *, read: bool = False) -> Checked:
    """Check a store, and with `read` every byte of it. Raises StorageError where there is none,
    StoreUnreachable."""
    location = existing(store_url)
    checked = Checked(_damaged_logs(location))
    if read:
        checked.findings += _damaged_blobs(location)
    if checked.findings:
        return checked
    with held_snapshot(location) as snapshot:
        for table, stored in snapshot.tables.items():
            checked.findings += _damaged_files(location, table, stored, read=read)
            checked.unknown[table] += sum(file.sha256 is None for file in stored.files)
        if not checked.findings:
            checked.findings += _damaged_rows(snapshot, read=read)
    checked.findings += _stale_tables(location)
    checked.unknown = +checked.unknown
    return checked


def _damaged_logs(location: Location) -> list[str]:
    def look(table: str) -> str:
        try:
            opened(location, table)
        except StoreDamaged as error:
            return str(error)
        return ""

    with ThreadPoolExecutor(4) as threads:
        return [finding for finding in threads.map(look, (PROGRESS, *TABLES)) if finding]


def _stale_tables(location: Location) -> Iterator[str]:
    progress = opened(location, PROGRESS)
    if progress is None:
        return
    with store_errors(location.url):  # `progress` has all positions of a table that does not exist
        stale = [
            table
            for table in DERIVED
            if stale_from(opened(location, table) or progress, progress, table) is not None
        ]
    if stale:
        yield (
            f"another version of Orchard derived rows of {', '.join(stale)}, which may lack columns: "
            "start `orchard up` of this version, which derives them anew"
        )


def _damaged_blobs(location: Location) -> Iterator[str]:
    blobs = BlobStore(location.url)
    with store_errors(location.url):
        found = location.filesystem.get_file_info(
            pafs.FileSelector(location.key("blobs"), allow_not_found=True, recursive=True)
        )
    for info in found:
        if info.type == pafs.FileType.File and not info.base_name.startswith("."):
            try:
                blobs.read(info.base_name)
            except BlobCorrupt as error:
                yield str(error)
            except BlobMissing:
                yield f"blobs: {info.path} has not the name of a blob: move it away"


def _damaged_files(location: Location, table: str, stored: Stored, *, read: bool) -> Iterator[str]:
    keys = [location.key("tables", table, file.path) for file in stored.files]
    with store_errors(location.url):
        infos = location.filesystem.get_file_info(keys)
    for file, info in zip(stored.files, infos, strict=True):
        if info.type != pafs.FileType.File or info.size != file.size:
            what = f"{table}: the file {file.path} is missing or has another size"
            yield f"{what}: restore it, or {mending(table)}"
        elif read:
            yield from _damage(location, table, file)


def _damage(location: Location, table: str, file: DataFile) -> Iterator[str]:
    """Yield the damage of a file: other bytes, or other rows than its log says. Raises StoreUnreachable."""
    key = location.key("tables", table, file.path)
    try:
        if not verify_file(location, table, file):
            for _ in read_rows(location, table, file):
                pass
        with store_errors(location.url), location.filesystem.open_input_file(key) as source:
            sequences = pq.read_table(source, columns=["sequence"], use_threads=False).column("sequence")
    except StoreDamaged as error:
        yield str(error)
        return
    except (StoreUnreachable, pa.ArrowException):
        with store_errors(location.url), location.filesystem.open_input_stream(key) as source:
            while source.read(_PIECE):
                pass
        yield str(file_damaged(table, file.path))  # every byte can be read, and they are no such table
        return
    first, last = (pc.min_max(sequences)[end].as_py() for end in ("min", "max"))
    if (len(sequences), first, last) != (file.rows, file.first, file.last):
        yield (
            f"{table}: its log says {file.rows} rows, {file.first} to {file.last}, of {file.path}, which has "
            f"{len(sequences)}, {first} to {last}: {mending(table)}"
        )


_SUSPECTS = {
    "select rollout_id from rollouts group by rollout_id having count(*) > 1": (
        "rollouts: {} has more than one accepted outcome"
    ),
    "select campaign from conservation where not holds": (
        "campaign {}: requested is not finished + aborted + open"
    ),
}
"""Queries for violations, with the finding for each name that they return."""


def _damaged_rows(snapshot: StoreSnapshot, *, read: bool) -> list[str]:
    try:
        with open_snapshot(snapshot) as connection:
            found = list(_misplaced(connection, snapshot))
            return found or list(_not_derived(connection, snapshot) if read else ())
    except duckdb.Error as error:
        reason = str(error).splitlines()[0]
        return [f"the tables cannot be read ({reason}): `orchard store check --read` names the file"]


def _misplaced(connection: duckdb.DuckDBPyConnection, snapshot: StoreSnapshot) -> Iterator[str]:
    """Yield rows that are duplicated, beyond their table's position, or missing."""
    written = snapshot.tables[EVENTS].watermark
    if not written.reaches(snapshot.complete):
        yield f"progress: position {snapshot.complete}, events {written}: {mending(PROGRESS)}"
    for table, stored in snapshot.tables.items():
        found = connection.execute(
            f"select sequence >> {STREAM_BITS} as stream, count(*), count(distinct sequence), min(sequence), "
            f"max(sequence) from tables.{table} group by 1 order by 1"
        ).fetchall()
        last = Position.up_to(row[4] for row in found)
        last = last.joined(Position.up_to(file.last for file in stored.files if file.rows))
        if twice := sum(rows - distinct for _, rows, distinct, *_ in found):
            yield f"{table}: {twice} rows are there twice: {mending(table)}"
        if not stored.watermark.reaches(last) or not written.reaches(stored.watermark):
            yield (
                f"{table}: rows up to {last}, position {stored.watermark}, events {written}: {mending(table)}"
            )
        if table == EVENTS:
            held = {stream: (rows, first, last) for stream, rows, _, first, last in found}
            for stream, end in enumerate(written):
                before = sequence_in(stream, 0)
                rows, first, last_row = held.get(stream, (0, before + 1, before))
                if rows != last_row - first + 1 or last_row != end:
                    yield f"events: {rows} rows for sequences {first} to {end}: {mending(table)}"
    for query, finding in _SUSPECTS.items():
        for (name,) in connection.execute(query).fetchall():
            yield finding.format(name)


def _not_derived(connection: duckdb.DuckDBPyConnection, snapshot: StoreSnapshot) -> Iterator[str]:
    """Yield derived tables that do not have the rows which follow from the events."""
    wanted: dict[str, list[int]] = {table: [0, 0] for table in DERIVED}
    for rows in read_events(snapshot.location, snapshot.tables[EVENTS].files, START, FACT_COLUMNS):
        end = snapshot.complete.last(stream_of(rows.column("sequence")[0].as_py()))
        known = rows.filter(pc.field("sequence") <= end)
        for table, derived in derive_tables(list(facts(known))).items():
            wanted[table][0] += derived.num_rows
            wanted[table][1] += pc.sum(derived.column("sequence")).as_py() or 0
    for table, (rows, total) in wanted.items():
        held = connection.execute(
            f"select count(*), coalesce(sum(sequence), 0)::bigint from tables.{table}"
        ).fetchall()[0]
        if held != (rows, total):
            yield f"{table}: {held[0]} rows where the events lead to {rows}: {mending(table)}"

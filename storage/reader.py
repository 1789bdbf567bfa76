"""The read side: DuckDB in memory over the tables' files, for any number of processes while the writer runs.

A connection sees the store as it was when it was opened or last refreshed: `events` to its last commit, and
all other tables to the one sequence up to which every one of them is complete. Its files stay on disk until
it is closed or refreshed (`orchard.storage.pins`).
"""

import os
import re
import tempfile
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from orchard.schemas.positions import START, Position, own_sequence, stream_of
from orchard.storage.delta import EVOLVED, DataFile, list_files, verify_file, watermark_of
from orchard.storage.errors import StorageError, StoreUnreachable, store_errors
from orchard.storage.location import Location
from orchard.storage.pins import Pin, pinned
from orchard.storage.table_log import FollowedTable, opened
from orchard.storage.tables import EVENTS, PROGRESS, SCHEMAS, TABLES
from orchard.storage.views import VIEWS

Row = dict[str, Any]

_SETTINGS = (
    "set autoinstall_known_extensions = false",
    "set autoload_known_extensions = false",
    "set TimeZone = 'UTC'",
)


def open_tables(
    store_url: str,
    *,
    as_of: Position | None = None,
    views: Iterable[str] | str = VIEWS,
    memory: str | None = None,
    verify: Collection[str] = (),
) -> duckdb.DuckDBPyConnection:
    """Open a connection with every view of `orchard.storage.views` and, as `tables.<name>`, the stored
    tables.

    Tables that do not exist yet are empty, with their columns. Close it when done (it is a context manager).
    With `as_of` it shows the log up to that position and nothing later. With `views` it has only these, or
    those that a text of SQL names, and what they are made of: opening all takes a processor 150 ms. With
    `memory`, such as `300MB`, a query that needs more continues in a temporary directory. Each file of the
    tables in `verify` is read first and compared with its SHA-256, if it has one. Raises StorageError when
    there is no such directory or `as_of` is not in the tables yet, StoreDamaged, StoreUnreachable.
    """
    location = existing(store_url)
    chosen, tables = needed(views)
    with _connected(memory) as connection:
        _show(connection, *_pinned(_followed(connection, location, tables)), as_of, verify)
        _create(connection, chosen)
    return connection


@contextmanager
def _connected(memory: str | None) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open a connection, which stays open unless the block fails."""
    connection = duckdb.connect(":memory:")
    try:
        for setting in _SETTINGS:
            connection.execute(setting)
        if memory is not None:
            spill = Path(tempfile.gettempdir(), f"orchard-spill-{os.getpid()}")
            connection.execute(f"set memory_limit = '{memory}'")
            connection.execute(f"set temp_directory = '{spill}'")
        connection.execute("create schema tables")
        yield connection
    except BaseException:
        connection.close()
        raise


def _create(connection: duckdb.DuckDBPyConnection, views: Iterable[str]) -> None:
    for name in views:
        connection.execute(f"create view {name} as {VIEWS[name]}")


def refresh(connection: duckdb.DuckDBPyConnection, store_url: str, *, as_of: Position | None = None) -> None:
    """Show a connection of `open_tables` what has been committed since, to any table; `as_of` as there."""
    _show(connection, *_pinned(_followed(connection, Location.parse(store_url), TABLES)), as_of, ())


def needed(views: Iterable[str] | str) -> tuple[list[str], list[str]]:
    """Return the views in the order of their creation, with those they are made of, and the tables of all."""
    tables = set[str]()

    def named(query: str) -> set[str]:
        words = re.findall(r"(tables\.)?\b(\w+)", query)
        tables.update(word for prefix, word in words if prefix)
        return {word for prefix, word in words if not prefix}

    wanted = named(views) if isinstance(views, str) else set(views)
    for name, query in reversed(VIEWS.items()):
        if name in wanted:
            wanted |= named(query)
    return [name for name in VIEWS if name in wanted], [table for table in TABLES if table in tables]


def existing(store_url: str) -> Location:
    """Return the store's location. Raises StorageError for a missing directory."""
    location = Location.parse(store_url)
    if not location.is_s3 and not location.path.is_dir():
        raise StorageError(
            f"there is no store at {location.url}: check the path, or start the pipeline first"
        )
    return location


@dataclass(frozen=True)
class Stored:
    files: list[DataFile] = field(default_factory=list)
    evolved: bool = False
    """Whether its files differ in their columns."""
    watermark: Position = START


@dataclass(frozen=True)
class StoreSnapshot:
    """Tables that belong together.

    Whatever a writer does meanwhile, none is behind `complete`, and none has rows that `events` lacks.
    """

    location: Location
    complete: Position
    """Position up to which all derived tables are complete."""
    tables: dict[str, Stored]

    @property
    def keys(self) -> list[str]:
        return [f"tables/{table}/{file.path}" for table, one in self.tables.items() for file in one.files]


@contextmanager
def held_snapshot(location: Location, tables: Sequence[str] = TABLES) -> Iterator[StoreSnapshot]:
    """Hold the current tables, whose files stay on disk while the block runs."""
    found, pin = _pinned(_Followed(location, tables))
    try:
        yield found
    finally:
        pin.release()


def open_snapshot(snapshot: StoreSnapshot) -> duckdb.DuckDBPyConnection:
    """Open all tables of a snapshot, which must be held for as long as the connection is open."""
    with _connected(None) as connection:
        _show(connection, snapshot, None, None, ())
        _create(connection, list(VIEWS))
    return connection


class _Followed:
    """Tables that are looked at again and again."""

    def __init__(self, location: Location, tables: Sequence[str]) -> None:
        self.location, self.tables = location, tables
        self._logs = {table: FollowedTable(location, table) for table in {*tables, PROGRESS}}
        self._known: dict[str, tuple[DeltaTable, int, Stored]] = {}
        """With the version that was looked at."""

    def look(self) -> StoreSnapshot:
        """Read the tables in the reverse order of their commits, so that each has what those before it derive
        from."""
        progress = self._logs[PROGRESS].current()
        with store_errors(self.location.url):
            complete = watermark_of(progress) if progress else START
        derived = [table for table in self.tables if table != EVENTS]
        with ThreadPoolExecutor(4) as threads:
            found = dict(zip(derived, threads.map(self._stored, derived), strict=True))
        if EVENTS in self.tables:
            found[EVENTS] = self._stored(EVENTS)
        return StoreSnapshot(self.location, complete, found)

    def _stored(self, table: str) -> Stored:
        delta = self._logs[table].current()
        if delta is None:
            return Stored()
        with store_errors(self.location.url):
            known, version = self._known.get(table), delta.version()
            if known is None or known[:2] != (delta, version):
                declared = {field.name for field in SCHEMAS[table]}
                stored = {field.name for field in delta.schema().fields}
                evolved = EVOLVED in delta.metadata().configuration or not declared <= stored
                known = delta, version, Stored(list_files(delta), evolved, watermark_of(delta))
                self._known[table] = known
        return known[2]


def _followed(connection: duckdb.DuckDBPyConnection, location: Location, tables: Sequence[str]) -> _Followed:
    """Return what the connection follows; in S3 nothing tells that a table has another log, so it is read
    anew."""
    found = _follows.get(connection)
    if found is None or location.is_s3 or (found.location, found.tables) != (location, tables):
        found = _follows[connection] = _Followed(location, tables)
    return found


def _pinned(followed: _Followed) -> tuple[StoreSnapshot, Pin]:
    return pinned(followed.location, followed.look, lambda found: found.keys)


def _show(
    connection: duckdb.DuckDBPyConnection,
    found: StoreSnapshot,
    pin: Pin | None,
    as_of: Position | None,
    verify: Collection[str],
) -> None:
    if pin is not None:
        _keep(connection, pin)
    _verify(found, verify)
    location = found.location
    if as_of is not None and not found.complete.reaches(as_of):
        raise StorageError(
            f"the tables of {location.url} are complete up to sequence {found.complete}, not {as_of}: "
            "wait for the writer, or name an earlier sequence"
        )
    complete = found.complete if as_of is None else as_of
    view, before = _Shown(found, {}), _shown.get(connection)
    for table, stored in found.tables.items():
        whole = all(file.last >= 0 and complete.covers(file.last) for file in stored.files if file.rows)
        view.ends[table] = None if whole or (table == EVENTS and as_of is None) else complete
        if before and before.snapshot.location == location and before.shows(table, stored, view.ends[table]):
            continue
        scan = _scan(connection, location, table, stored)
        rows_shown = _scanned(table, scan, view.ends[table])
        connection.execute(f"create or replace view tables.{table} as {rows_shown}")
    _shown[connection] = view


def _verify(found: StoreSnapshot, tables: Collection[str]) -> None:
    """Raise StoreDamaged for a file of these tables with other bytes than it was written with."""
    chosen = [(table, file) for table in tables for file in found.tables[table].files]
    with ThreadPoolExecutor(4) as threads:
        for _ in threads.map(lambda one: verify_file(found.location, *one), chosen):
            pass


def within(connection: duckdb.DuckDBPyConnection, query: str, first: int, last: int) -> str:
    """Restrict each `tables.<name>` in a query to a range of sequences, for a connection of `open_tables`.

    It reads only the files that can have rows of the range. A filter in the query does not spare the others:
    DuckDB opens every file of a table to see what it has. On 100,000 rollouts in 17 files, the messages of
    one take 4 ms so, and 34 with a filter.
    """
    return _of_files(
        connection,
        query,
        lambda file: file.last >= first and file.first <= last,
        f"sequence between {first} and {last}",
    )


def beyond(connection: duckdb.DuckDBPyConnection, query: str, position: Position) -> str:
    """Restrict each `tables.<name>` in a query to what a position does not cover, reading no other files."""
    return _of_files(
        connection,
        query,
        lambda file: file.rows > 0 and not (file.last >= 0 and position.covers(file.last)),
        f"not {position.sql()}",
    )


def _of_files(
    connection: duckdb.DuckDBPyConnection, query: str, wanted: Callable[[DataFile], bool], condition: str
) -> str:
    known = _shown[connection]
    location = known.snapshot.location

    def reduced(found: re.Match[str]) -> str:
        table = found[1]
        stored = known.snapshot.tables[table]
        chosen = [file for file in stored.files if wanted(file)]
        scan = _scan(connection, location, table, Stored(chosen, stored.evolved), f"_{table}_within")
        return f"({_scanned(table, scan, known.ends[table])} and {condition})"

    return re.sub(r"\btables\.(\w+)", reduced, query)


def rows(tables: duckdb.DuckDBPyConnection, query: str, parameters: object = None) -> list[Row]:
    """Rows of a query as dictionaries."""
    result = tables.execute(query, parameters)
    columns = [column[0] for column in result.description or []]
    return [dict(zip(columns, row, strict=True)) for row in result.fetchall()]


def one(tables: duckdb.DuckDBPyConnection, query: str, parameters: object = None) -> Row | None:
    """First row of the result, or None."""
    return next(iter(rows(tables, query, parameters)), None)


def _scanned(table: str, scan: str, end: Position | None) -> str:
    return f"select {_columns(table)} from {scan} where {end.sql() if end is not None else 'true'}"


def _keep(connection: duckdb.DuckDBPyConnection, pin: Pin) -> None:
    """Release the pin when the connection is closed, collected, or gets another pin.

    DuckDB then drops what is registered under this name.
    """
    token = pa.table({"pin": pa.nulls(1)})
    weakref.finalize(token, pin.release)
    connection.register("_pin", token)


def position(store_url: str) -> Position:
    """Position up to which every table is complete; empty for a store without data."""
    return _watermark(Location.parse(store_url), PROGRESS)


def log_position(store_url: str) -> Position:
    """Position up to which the table `events` is complete; empty for a store that does not exist yet."""
    return _watermark(Location.parse(store_url), EVENTS)


def _watermark(location: Location, table: str) -> Position:
    found = opened(location, table)
    with store_errors(location.url):
        return watermark_of(found) if found else START


def log_end(store_url: str) -> tuple[Position, dict[int, str | None]]:
    """Return `log_position`, and the ids of the events there by stream, None for one that is unknown."""
    location = Location.parse(store_url)
    events = opened(location, EVENTS)
    if events is None:
        return START, {}
    with store_errors(location.url):
        watermark = watermark_of(events)
        return watermark, last_event_ids(location, list_files(events), watermark)


def last_event_ids(
    location: Location, files: Sequence[DataFile], watermark: Position
) -> dict[int, str | None]:
    """Ids of the stored events at the watermark of `events` by stream; None for one that was unreadable."""
    newest = {stream_of(file.last): file for file in files if file.rows}
    return {
        stream: _event_id(location, file, watermark.last(stream))
        for stream, file in newest.items()
        if own_sequence(watermark.last(stream))
    }


def _event_id(location: Location, file: DataFile, sequence: int) -> str | None:
    key = location.key("tables", EVENTS, file.path)
    try:
        with store_errors(location.url), location.filesystem.open_input_file(key) as source:
            parquet = pq.ParquetFile(source)
            last = parquet.num_row_groups - 1
            rows = parquet.read_row_group(last, columns=["sequence", "id"], use_threads=False)
        at = rows.column("sequence").to_pylist().index(sequence)  # a filter would import pandas
    except (StoreUnreachable, ValueError):
        verify_file(location, EVENTS, file)  # says so where it is the file's fault
        raise
    found: str | None = rows.column("id")[at].as_py()
    return found


@dataclass(frozen=True)
class _Shown:
    snapshot: StoreSnapshot
    ends: dict[str, Position | None]
    """Position up to which each table is shown; None: all of it."""

    def shows(self, table: str, stored: Stored, end: Position | None) -> bool:
        return self.snapshot.tables.get(table) == stored and self.ends[table] == end


_follows: "weakref.WeakKeyDictionary[duckdb.DuckDBPyConnection, _Followed]" = weakref.WeakKeyDictionary()
_shown: "weakref.WeakKeyDictionary[duckdb.DuckDBPyConnection, _Shown]" = weakref.WeakKeyDictionary()


def _scan(
    connection: duckdb.DuckDBPyConnection, location: Location, table: str, stored: Stored, name: str = ""
) -> str:
    """Return a table expression over the files.

    DuckDB reads a directory itself; S3 goes through Arrow, because DuckDB's own S3 support is an extension
    that an air-gapped machine cannot download. Arrow's tables are registered as `name`.
    """
    keys = [location.key("tables", table, file.path) for file in stored.files]
    name = name or f"_{table}"
    if keys and not location.is_s3 and not stored.evolved:
        names = ", ".join("'" + key.replace("'", "''") + "'" for key in keys)
        return f"read_parquet([{names}])"
    schema = SCHEMAS[table]
    if not keys:
        connection.register(name, pa.Table.from_batches([], schema))  # `empty_table` imports pandas
        return name
    import pyarrow.dataset as pads  # imports pandas where there is one: a third of a second for who reads

    found = pads.dataset(keys, schema=schema, format="parquet", filesystem=location.filesystem)
    connection.register(name, found)
    return name


def _columns(table: str) -> str:
    """Select the declared columns, times as plain timestamps in UTC so that no reader's time zone matters."""
    return ", ".join(
        f'"{field.name}" at time zone \'UTC\' as "{field.name}"'
        if str(field.type).startswith("timestamp")
        else f'"{field.name}"'
        for field in SCHEMAS[table]
    )

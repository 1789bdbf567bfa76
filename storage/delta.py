"""One Delta table: rows and stream position committed together, files written whole before they are named.

The position is an application transaction of the table, so it is in the same atomic commit as the rows. It
also fences: Delta refuses a commit on a snapshot that another writer has moved past.

Tables are not partitioned. By campaign, over 100,000 rollouts of 20 campaigns in 50 commits, there were three
times the files, pass rates took 2.3 times as long, and one campaign alone came in 6 instead of 8 ms.
"""

import contextlib
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction

from orchard.schemas.positions import START, STREAM_BITS, Position
from orchard.storage import pins
from orchard.storage.checksums import Digesting, is_intact, known_sha256, named
from orchard.storage.derive import derivation
from orchard.storage.durable import sync
from orchard.storage.errors import StorageError, StoreBusy, StoreDamaged, store_errors
from orchard.storage.location import Location
from orchard.storage.table_log import file_damaged, opened, set_aside
from orchard.storage.tables import DERIVED, PROGRESS, SCHEMAS

LIVE_LEVEL = 1
"""zstd level of files as they are first written: 17 % larger than level 3 for three quarters of its time."""
MERGED_LEVEL = 3
COMPACT_LEVEL = 9
"""zstd level of a compacted file that is large enough never to be compacted again."""
GROUP_ROWS = 2000
GROUP_BYTES = 32 * 1024 * 1024
"""A row group ends at whichever comes first; it is what a reader or a compaction holds in memory."""
_PAGE_ROWS = 64
"""Rows after which Parquet checks whether a page is full.

With its default of 1024, long texts make pages of whole row groups, held in memory three times over.
"""
VACUUM_HOURS = 24
"""Age from which a file that no commit names is a leftover and not about to be committed."""

_WRITER = "writer"
"""Application transaction whose version is the table's watermark: a sequence of stream 0. Each further stream
has one of its own, with its number in the name."""
_REWRITER = "rewriter"
"""Application transaction that counts commits which remove files.

Delta lets two of them remove the same file and add its rows twice; two that count to the same number it
refuses.
"""
_CONFIGURATION = {
    "delta.checkpointInterval": "8",
    "delta.logRetentionDuration": "interval 1 minutes",
    "delta.deletedFileRetentionDuration": "interval 10 minutes",
}
"""Each commit lists the log and reads what came after its last checkpoint, so both are kept short: 2,000
commits made appends three times slower, and with 20 commits between checkpoints one takes 1.6 times as long
as with 8 (with 4 the checkpoints cost more than they save)."""
EVOLVED = "orchard.evolved"
"""Table property: columns were added after files had been written, so files differ in their columns."""


@dataclass(frozen=True)
class DataFile:
    """A Parquet file of a table; `first` and `last` are sequences (0 and -1 for a file without rows), of one
    stream."""

    path: str
    size: int
    rows: int
    first: int
    last: int

    @property
    def sha256(self) -> str | None:
        """SHA-256 that it was written with; None if that is unknown."""
        return known_sha256(self.path)


class StoreTable:
    """A table opened for writing. Not for concurrent use; readers use `files` of their own instance."""

    def __init__(self, location: Location, name: str, *, create: bool = False) -> None:
        """Open the table, or create it empty; `create` skips the check for an existing one.

        Raises StoreDamaged, StoreFull or StoreUnreachable.
        """
        self.location, self.name, self.schema = location, name, SCHEMAS[name]
        with store_errors(location.url):
            self._delta = (None if create else opened(location, name)) or self._created()
            self._add_columns()
            self._configure()
        self.watermark = watermark_of(self._delta)

    @classmethod
    def anew(cls, location: Location, name: str) -> "StoreTable":
        """Open the table to replace all of its content; one with a damaged log is set aside."""
        with contextlib.suppress(StoreDamaged):
            table = cls(location, name)
            if table.fits:
                return table
        set_aside(location, name)
        return cls(location, name, create=True)

    def _created(self) -> DeltaTable:
        if not self.location.is_s3:
            (self.location.path / "tables" / self.name).mkdir(parents=True, exist_ok=True)
        created = DeltaTable.create(
            self.location.table_url(self.name),
            self.schema,
            mode="ignore",
            name=self.name,
            configuration=_CONFIGURATION,
            storage_options=self.location.storage_options,
        )
        created.update_incremental()
        return created

    @property
    def fits(self) -> bool:
        """Whether its columns have the declared types, which a damaged log may contradict."""
        held = {field.name: field.type for field in self._delta.schema().fields}
        declared = type(self._delta.schema()).from_arrow(self.schema).fields
        return all(held.get(field.name) == field.type for field in declared)

    def _add_columns(self) -> None:
        stored = {field.name for field in self._delta.schema().fields}
        added = [field for field in self.schema if field.name not in stored]
        if added:
            fields = type(self._delta.schema()).from_arrow(pa.schema(added)).fields
            self._delta.alter.add_columns(fields)
            self._delta.alter.set_table_properties({EVOLVED: "true"}, raise_if_not_exists=False)
            self._delta.update_incremental()

    def _configure(self) -> None:
        """Give a table made by an earlier version the settings of this one."""
        if not _CONFIGURATION.items() <= self._delta.metadata().configuration.items():
            self._delta.alter.set_table_properties(_CONFIGURATION, raise_if_not_exists=False)
            self._delta.update_incremental()

    def refresh(self) -> None:
        """Load others' commits (compaction). Raises StoreBusy if another writer committed."""
        with store_errors(self.location.url):
            self._delta.update_incremental()
        if watermark_of(self._delta) != self.watermark:
            raise self._busy()

    def _busy(self) -> StoreBusy:
        return StoreBusy(
            f"another writer committed to {self.name} of the store {self.location.url} at the same time: "
            "stop it and start again, or give each writer a store of its own"
        )

    def files(self) -> list[DataFile]:
        """The files of the current snapshot, by their first sequence."""
        return list_files(self._delta)

    def stale_from(self, progress: "StoreTable") -> Position | None:
        with store_errors(self.location.url):
            return stale_from(self._delta, progress._delta, self.name)

    def append(self, rows: pa.Table, watermark: Position) -> None:
        """Commit rows, which may be none, together with the position they bring the table up to.

        Raises StoreBusy, StoreFull or StoreUnreachable; then nothing of it is visible.
        """
        with store_errors(self.location.url):
            added = [write_file(self.location, self.name, [part]) for part in by_stream(rows)]
        self._commit([_add(file, data_change=True) for file in added], watermark, [])

    def replace(self, files: Sequence[DataFile], watermark: Position, after: Position = START) -> None:
        """Make the given files the whole table, or all of it that has rows after a position, in one commit.
        Raises as `append` does."""
        old = [
            _remove(file, data_change=True)
            for file in self.files()
            if not file.rows or not after.covers(file.last)
        ]
        new = [_add(file, data_change=True) for file in files]
        self._commit([*old, *new], watermark, [_rewriting(self._delta)])

    def _commit(
        self, actions: list[AddAction | RemoveAction], watermark: Position, also: list[Transaction]
    ) -> None:
        tables = DERIVED if self.name == PROGRESS else (self.name,) if self.name in DERIVED else ()
        names = [_WRITER, *map(_by_this_version, tables)]
        transactions = [one for name in names for one in _transactions(name, watermark)]
        transactions += also
        with store_errors(self.location.url):
            if not _committed(self._delta, self.schema, actions, transactions):
                raise self._busy()
        self.watermark = watermark
        self.refresh()
        self._sync_log()

    def _sync_log(self) -> None:
        if self.location.is_s3:
            return
        log = self.location.path / "tables" / self.name / "_delta_log"
        with store_errors(self.location.url):
            sync(log / f"{self._delta.version():020}.json")
            sync(log)


def snapshot(location: Location, table: str) -> list[DataFile]:
    """The current files of a table, by their first sequence."""
    found = opened(location, table)
    if found is None:
        raise StorageError(f"the store {location.url} has no table {table}: check the path")
    with store_errors(location.url):
        return list_files(found)


def swap_files(delta: DeltaTable, schema: pa.Schema, old: Sequence[DataFile], new: DataFile) -> bool:
    """Replace several files by one with the same rows; False when the table was rewritten since."""
    actions: list[AddAction | RemoveAction] = [
        *(_remove(file, data_change=False) for file in old),
        _add(new, data_change=False),
    ]
    return _committed(delta, schema, actions, [_rewriting(delta)])


def watermark_of(delta: DeltaTable) -> Position:
    """Position up to which a snapshot is complete; empty for a new table."""
    return _position(delta, _WRITER)


def _position(delta: DeltaTable, name: str) -> Position:
    """The position that transactions of a name have recorded."""
    found = [delta.transaction_version(name) or 0]
    while (last := delta.transaction_version(f"{name} {len(found)}")) is not None:
        found.append(last)
    return Position(found)


def _transactions(name: str, position: Position) -> list[Transaction]:
    others = [Transaction(f"{name} {stream}", position[stream]) for stream in range(1, len(position))]
    return [Transaction(name, position.last(0)), *others]


def stale_from(delta: DeltaTable, progress: DeltaTable, table: str) -> Position | None:
    """Position after which a derived table may lack what this version derives, because another one derived
    it; no file has rows on both sides. None if there is nothing after it."""
    name = _by_this_version(table)
    known = _position(delta, name).joined(_position(progress, name))
    if known.reaches(watermark_of(delta).joined(watermark_of(progress))):
        return None
    for file in list_files(delta):
        if file.rows and known.covers(file.first) and not known.covers(file.last):
            known = known.with_last(file.first - 1)
    return known


def _by_this_version(table: str) -> str:
    """Application transaction whose version is the sequence up to which this version derived the table."""
    return f"{table} {derivation(table)}"


def rewrites_of(delta: DeltaTable) -> int:
    """How many commits have removed files of a table."""
    return delta.transaction_version(_REWRITER) or 0


def _rewriting(delta: DeltaTable) -> Transaction:
    return Transaction(_REWRITER, rewrites_of(delta) + 1)


def _committed(
    delta: DeltaTable,
    schema: pa.Schema,
    actions: list[AddAction | RemoveAction],
    transactions: list[Transaction],
) -> bool:
    """Commit on the snapshot at hand; False when one of the transactions has moved on since."""
    properties = CommitProperties(app_transactions=transactions)
    try:
        delta.create_write_transaction(actions, "append", schema, commit_properties=properties)
    except CommitFailedError as error:
        if "Concurrent transaction" in str(error):
            return False
        raise
    return True


def list_files(delta: DeltaTable) -> list[DataFile]:
    """The files of a snapshot, by their first sequence."""
    actions = pa.RecordBatchReader.from_stream(delta.get_add_actions(flatten=True)).read_all()
    columns = [actions.column(name).to_pylist() for name in ("path", "size_bytes", "num_records")]
    ranges = [
        actions.column(name).to_pylist() if name in actions.column_names else [None] * actions.num_rows
        for name in ("min.sequence", "max.sequence")
    ]
    files = [
        DataFile(path, size, rows or 0, 0 if first is None else first, -1 if last is None else last)
        for path, size, rows, first, last in zip(*columns, *ranges, strict=True)
    ]
    return sorted(files, key=lambda file: (file.first, file.last, file.path))


def found_files(location: Location, table: str) -> list[DataFile]:
    """Find all intact files in a table's directory, whether named by a commit or not, by their first
    sequence.

    Of files that overlap only the first is returned.
    """
    with store_errors(location.url):
        infos = location.filesystem.get_file_info(
            pafs.FileSelector(location.key("tables", table), allow_not_found=True)
        )
    found = [
        file for info in infos if info.extension == "parquet" and (file := _found(location, table, info))
    ]
    apart: list[DataFile] = []
    for file in sorted(found, key=lambda file: (file.first, -file.last)):
        if not apart or file.first > apart[-1].last:
            apart.append(file)
    return apart


def _found(location: Location, table: str, info: pafs.FileInfo) -> DataFile | None:
    try:
        with store_errors(location.url), location.filesystem.open_input_file(info.path) as source:
            sequences = pq.read_table(source, columns=["sequence"], use_threads=False).column("sequence")
        file = DataFile(
            info.base_name, info.size, len(sequences), sequences[0].as_py(), sequences[-1].as_py()
        )
        verify_file(location, table, file)
    except (StorageError, pa.ArrowException, IndexError):
        return None
    return file


def by_stream(rows: pa.Table) -> list[pa.Table]:
    """Divide rows by the stream of their events; none for no rows."""
    if not rows.num_rows:
        return []
    streams = pc.shift_right(rows.column("sequence"), STREAM_BITS)
    numbers = sorted(pc.unique(streams).to_pylist())
    return [rows] if len(numbers) == 1 else [rows.filter(pc.equal(streams, number)) for number in numbers]


def write_file(
    location: Location, table: str, parts: Sequence[pa.Table] | Iterator[pa.Table], level: int = LIVE_LEVEL
) -> DataFile:
    """Write a durable Parquet file into a table's directory, named by no commit yet; on failure it is
    deleted.

    It gets its name, with its SHA-256, when it is whole.
    """
    stem = f"{table}-{pins.writing(location)}"
    key = location.key("tables", table, f"{stem}.parquet")
    rows, first, last = 0, None, -1
    files = location.filesystem
    try:
        with files.open_output_stream(key) as stream:
            sink = Digesting(stream)
            with pq.ParquetWriter(
                sink,
                SCHEMAS[table],
                compression="zstd",
                compression_level=level,
                use_dictionary=_DICTIONARY[table],
                write_statistics=_STATISTICS[table],
                write_batch_size=_PAGE_ROWS,
            ) as writer:
                for part in parts:
                    for group in row_groups(part):
                        writer.write_table(group, row_group_size=group.num_rows)
                        sequences = group.column("sequence")
                        first = sequences[0].as_py() if first is None else first
                        last = sequences[-1].as_py()
                        rows += group.num_rows
        if not location.is_s3:
            sync(key)
        name = named(stem, sink.sha256)
        files.move(key, location.key("tables", table, name))
    except BaseException:
        _discard(location, key)
        raise
    # The size is what was written, not what S3 says: curl takes a reply cut in its headers for a whole one.
    return DataFile(name, sink.size, rows, first or 0, last)


def verify_file(location: Location, table: str, file: DataFile) -> bool:
    """Verify a file's bytes; False if it has no SHA-256.

    Raises StoreDamaged for other bytes, or a missing file, and StoreUnreachable, which names the file.
    """
    key = location.key("tables", table, file.path)
    with store_errors(f"{location.url} (file {file.path} of table {table})"):
        try:
            whole = is_intact(location, key)
        except FileNotFoundError:
            whole = False
    if whole is False:
        raise file_damaged(table, file.path)
    return whole is True


def row_groups(rows: pa.Table) -> Iterator[pa.Table]:
    """Yield slices of at most GROUP_ROWS rows and about GROUP_BYTES bytes."""
    if not rows.num_rows:
        return
    width = max(1, rows.nbytes // rows.num_rows)
    step = max(1, min(GROUP_ROWS, GROUP_BYTES // width))
    for start in range(0, rows.num_rows, step):
        yield rows.slice(start, step)


_LONG_TEXTS = frozenset({"payload", "content", "reasoning", "submission", "detail"})
_UNIQUE = frozenset({"id", "event_id", "sequence", "stream_time", "time", "causation_id", "traceparent"})


def _flat(table: str) -> list[str]:
    return [field.name for field in SCHEMAS[table] if not pa.types.is_nested(field.type)]


_STATISTICS = {table: [name for name in _flat(table) if name not in _LONG_TEXTS] for table in SCHEMAS}
_DICTIONARY = {
    table: [name for name in columns if name not in _UNIQUE] for table, columns in _STATISTICS.items()
}
"""Columns worth a dictionary: neither long texts nor values that never repeat."""


def _discard(location: Location, key: str) -> None:
    with contextlib.suppress(OSError):
        location.filesystem.delete_file(key)


def _add(file: DataFile, data_change: bool) -> AddAction:
    statistics = {
        "numRecords": file.rows,
        "minValues": {"sequence": file.first},
        "maxValues": {"sequence": file.last},
        "nullCount": {"sequence": 0},
    }
    return AddAction(
        path=file.path,
        size=file.size,
        partition_values={},
        modification_time=_milliseconds(),
        data_change=data_change,
        stats=json.dumps(statistics),
    )


def _remove(file: DataFile, data_change: bool) -> RemoveAction:
    return RemoveAction(file.path, data_change, _milliseconds(), file.size, {})


def _milliseconds() -> int:
    return time.time_ns() // 1_000_000

"""One SHA-256 over all rows of a table: equal digests mean equal tables, however their files are cut."""

import hashlib

import msgspec
import pyarrow as pa

from orchard.storage.derived import read_rows
from orchard.storage.errors import StorageError, StoreDamaged
from orchard.storage.reader import StoreSnapshot, existing, held_snapshot
from orchard.storage.table_log import mending
from orchard.storage.tables import EVENTS, SCHEMAS, TABLES


def table_digest(store_url: str, table: str) -> str:
    """Return 64 hexadecimal digits over the stored rows as canonical JSON, one line each, by sequence.

    `table` is a stored table (`events`, `rollouts_all`, ...). Raises StorageError for any other name.
    """
    if table not in TABLES:
        raise StorageError(f"{table!r} is not a stored table: choose one of {', '.join(TABLES)}")
    with held_snapshot(existing(store_url), [table]) as snapshot:
        return _digest(snapshot, table)


def store_digests(store_url: str) -> dict[str, str]:
    """Return `table_digest` of every table, all at one moment."""
    with held_snapshot(existing(store_url)) as snapshot:
        return {table: _digest(snapshot, table) for table in TABLES}


def _digest(snapshot: StoreSnapshot, table: str) -> str:
    """Read the files one after the other, some megabytes at a time: every commit adds later sequences."""
    digest = hashlib.sha256()
    plain = pa.schema([pa.field(field.name, _plain(field.type)) for field in SCHEMAS[table]])
    reached = 0
    for file in snapshot.tables[table].files:
        if file.first <= reached:
            raise StoreDamaged(f"{table}: {file.path} has rows that are in another file: {mending(table)}")
        reached = file.last
        for rows in read_rows(snapshot.location, table, file):
            for row in rows.cast(plain).to_pylist():
                if table == EVENTS or snapshot.complete.covers(row["sequence"]):
                    digest.update(msgspec.json.encode(row, order="deterministic") + b"\n")
    return digest.hexdigest()


def _plain(kind: pa.DataType) -> pa.DataType:
    """Remove time zones, as readers see times."""
    return pa.timestamp(kind.unit) if pa.types.is_timestamp(kind) else kind

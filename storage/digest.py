"""One SHA-256 over all rows of a table: equal digests mean equal tables, however their files are cut."""

import hashlib

import duckdb
import msgspec

from orchard.storage.errors import StorageError
from orchard.storage.reader import open_tables
from orchard.storage.tables import TABLES

_BATCH_ROWS = 1000


def table_digest(store_url: str, table: str) -> str:
    """64 hexadecimal digits over the stored rows as canonical JSON, one line each, by sequence.

    `table` is a stored table (`events`, `rollouts_all`, ...). Raises StorageError for any other name.
    """
    if table not in TABLES:
        raise StorageError(f"{table!r} is not a stored table: choose one of {', '.join(TABLES)}")
    with open_tables(store_url) as connection:
        return _digest(connection, table)


def store_digests(store_url: str) -> dict[str, str]:
    """`table_digest` of every table, all as they were at one moment."""
    with open_tables(store_url) as connection:
        return {table: _digest(connection, table) for table in TABLES}


def _digest(connection: duckdb.DuckDBPyConnection, table: str) -> str:
    digest = hashlib.sha256()
    rows = connection.sql(f"select * from tables.{table} order by sequence")
    for batch in rows.to_arrow_reader(_BATCH_ROWS):
        for row in batch.to_pylist():
            digest.update(msgspec.json.encode(row, order="deterministic") + b"\n")
    return digest.hexdigest()

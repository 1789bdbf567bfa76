"""Two datasets side by side, and where a row came from."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import msgspec

from orchard.pipelines.datasets.errors import DatasetError
from orchard.pipelines.datasets.manifest import Manifest, read_manifest
from orchard.pipelines.datasets.rows import Row, read_rows, row_digest
from orchard.schemas.positions import Position


@dataclass(frozen=True)
class Difference:
    equal: bool
    facts: dict[str, tuple[str, str]]
    """Facts of the manifests that differ, with both values."""
    only_a: list[str]
    only_b: list[str]
    changed: list[str]
    """Example ids: in one alone, or in both with other content."""


_FACTS = ("sha256", "range", "code_version", "config_hash", "config", "tokenizer_sha256")
_SUMS = ("rows", "tokens", "trained_tokens", "resolved", "counts")


def compare(a: Path, b: Path) -> Difference:
    """Reads both datasets whole, a row at a time; holds their example ids and digests."""
    first, second = read_manifest(a), read_manifest(b)
    facts = {
        name: (str(_plain(first, name)), str(_plain(second, name)))
        for name in (*_FACTS, *_SUMS)
        if getattr(first, name) != getattr(second, name)
    }
    if first.sha256 == second.sha256:
        return Difference(True, facts, [], [], [])
    known = {row.example_id: row_digest(row) for row in read_rows(a)}
    only_b, changed = [], []
    for row in read_rows(b):
        before = known.pop(row.example_id, None)
        if before is None:
            only_b.append(row.example_id)
        elif before != row_digest(row):
            changed.append(row.example_id)
    return Difference(False, facts, list(known), only_b, changed)


def find_row(directory: Path, which: str) -> Row:
    """The row of a number, counted from 0, or of an example id or its beginning. Raises DatasetError."""
    found = []
    for number, row in enumerate(read_rows(directory)):
        if which.isdigit() and len(which) < 9 and number == int(which):
            return row
        if row.example_id.startswith(which):
            found.append(row)
    if len(found) == 1:
        return found[0]
    what = "no row is" if not found else f"{len(found)} rows are"
    raise DatasetError(f"{what} {which!r} in {directory}: give a row's number, or its whole example id")


_EVENTS = """
select sequence, type, time, id from events
where rollout_id = $rollout and {covered} and (attempt is null or attempt = $attempt)
order by sequence
"""


def origin(tables: duckdb.DuckDBPyConnection, row: Row, last: Position) -> list[tuple[Any, ...]]:
    """The events that a row was made from, up to the position `last`: sequence, type, time and id of each."""
    query = _EVENTS.format(covered=last.sql())
    return tables.execute(query, {"rollout": row.rollout_id, "attempt": row.attempt}).fetchall()


def _plain(manifest: Manifest, name: str) -> Any:
    return msgspec.to_builtins(getattr(manifest, name))

"""Ranges of the event log that hold one attempt, so that queries for a rollout read nothing else."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import duckdb

from orchard.actions import rollout_queries as queries
from orchard.storage.reader import Row, rows, within

FOREVER = 2**62
"""A sequence higher than that of any event."""
QueryRange = Callable[[duckdb.DuckDBPyConnection, str, int, int], str]
"""Function that limits a query to a range of sequences, as `within` does."""


class AttemptRange(NamedTuple):
    """Range of the event log that holds one attempt of a rollout."""

    request: Row
    outcome: Row | None
    attempts: list[Row]
    attempt: int | None
    accepted: bool
    """Whether the rollout's outcome is that of this attempt."""
    first: int
    last: int
    """FOREVER while more events may follow."""

    def mine(self, found: Iterable[Row], key: str = "") -> list[Row]:
        """Selects the rows of this attempt; with `key`, the first row of each value."""
        rows = [r for r in found if r["attempt"] == self.attempt and self.first <= r["sequence"] <= self.last]
        return once(rows, key) if key else rows


def attempt_ranges(
    tables: duckdb.DuckDBPyConnection,
    rollouts: Sequence[str],
    attempt: int | None = None,
    narrow: QueryRange = within,
) -> dict[str, AttemptRange]:
    """Ranges of the rollouts that exist, in the order of their requests. `attempt` None: the accepted or
    newest."""
    ids = {"ids": list(rollouts)}
    asked = {row["rollout_id"]: row for row in rows(tables, queries.ASKED, ids)}
    if not asked:
        return {}
    first = min(row["sequence"] for row in asked.values())
    last = max(row["ended"] or FOREVER for row in asked.values())
    ended, attempts = (
        rows(tables, narrow(tables, query, first, last), ids)
        for query in (queries.OUTCOMES, queries.ATTEMPTS)
    )
    outcomes, tried = {row["sequence"]: row for row in ended}, by_rollout(attempts)
    return {
        name: _range_of(row, outcomes.get(row["ended"]), tried.get(name, []), attempt)
        for name, row in asked.items()
    }


def _range_of(request: Row, outcome: Row | None, attempts: list[Row], attempt: int | None) -> AttemptRange:
    last = outcome["attempt"] if outcome else max((row["attempt"] for row in attempts), default=None)
    shown = attempt if attempt is not None else last
    accepted = outcome is not None and shown == outcome["attempt"]
    began = min((row["sequence"] for row in attempts), default=request["sequence"])
    end = outcome["sequence"] if outcome is not None and accepted else FOREVER
    return AttemptRange(request, outcome, attempts, shown, accepted, began, end)


def by_rollout(found: Iterable[Row]) -> dict[str, list[Row]]:
    grouped: dict[str, list[Row]] = {}
    for row in found:
        grouped.setdefault(row["rollout_id"], []).append(row)
    return grouped


def once(found: Iterable[Row], key: str) -> list[Row]:
    """The first row of each key: an event may be in the log twice."""
    known: dict[Any, Row] = {}
    for row in found:
        known.setdefault(row[key], row)
    return list(known.values())

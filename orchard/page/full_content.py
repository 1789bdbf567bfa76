"""Parts of a rollout with an address of their own: a whole message, the submission, the tests' log, a
picture."""

import duckdb

from orchard.actions import rollout_queries as queries
from orchard.actions.attempt_ranges import FOREVER, AttemptRange, attempt_ranges
from orchard.storage.reader import Row, rows, within

_MESSAGE = "select * from tables.messages_all where rollout_id = $id and node_id = $node limit 1"
_NAMED = """
select 1 from tables.messages_all where rollout_id = $id
and list_contains(list_transform(images, lambda i: i.sha256), $sha256) limit 1
"""


def message(tables: duckdb.DuckDBPyConnection, rollout: str, node: str) -> Row | None:
    return _looked_for(tables, _MESSAGE, {"id": rollout, "node": node})


def has_picture(tables: duckdb.DuckDBPyConnection, rollout: str, sha256: str) -> bool:
    return _looked_for(tables, _NAMED, {"id": rollout, "sha256": sha256}) is not None


def submission(tables: duckdb.DuckDBPyConnection, rollout: str) -> tuple[str, str | None] | None:
    """Submission as text, and the hash of its blob; None without an outcome."""
    extent = attempt_ranges(tables, [rollout]).get(rollout)
    if extent is None or extent.outcome is None:
        return None
    return extent.outcome["submission"] or "", extent.outcome["submission_sha256"]


def test_log(tables: duckdb.DuckDBPyConnection, rollout: str) -> tuple[str, str | None] | None:
    """Output of the tests in the newest grade of the accepted attempt, or None."""
    extent = attempt_ranges(tables, [rollout]).get(rollout)
    if extent is None or not extent.accepted:
        return None
    query = within(tables, queries.REWARDS, extent.first, extent.last)
    found = extent.mine(rows(tables, query, {"ids": [rollout]}))
    return ("", found[-1]["log_sha256"]) if found else None


def _looked_for(tables: duckdb.DuckDBPyConnection, query: str, asked: dict[str, str]) -> Row | None:
    """Searches between request and outcome first, then the whole log: messages of another attempt may be
    later."""
    extent = attempt_ranges(tables, [asked["id"]]).get(asked["id"])
    spans = [(0, FOREVER)] if extent is None else [_lifetime(extent), (0, FOREVER)]
    answers = (rows(tables, within(tables, query, *span), asked) for span in spans)
    return next((found[0] for found in answers if found), None)


def _lifetime(extent: AttemptRange) -> tuple[int, int]:
    return extent.request["sequence"], extent.request["ended"] or FOREVER

"""Lists a campaign's events from the tables, to compare them with a part of the archive."""

from collections.abc import Iterable
from dataclasses import dataclass

import duckdb
import pyarrow as pa

from orchard.schemas.subjects import EVENTS_PREFIX, FENCES
from orchard.storage.archive.segments import is_fence
from orchard.storage.reader import open_tables

PART_EVENTS = 500_000
"""Largest number of events in one part: a campaign of any size is archived in bounded memory and frees
space as it goes."""
MEMORY_LIMIT = "300MB"
"""Memory limit of a query: archiving runs in the writer's process, which has 1 GiB in the manifests."""
_BOOKKEEPING = ("campaign.archived", "campaign.state_changed")
"""Types that archiving itself publishes: they alone are no reason for another part."""

_FENCES = " or ".join(f"starts_with(subject, '{EVENTS_PREFIX}.{fence}.')" for fence in sorted(FENCES))
_LISTED = f"""
select sequence, subject, type from tables.events
where sequence > $after and sequence <= $through and (
    starts_with(subject, $prefix) or campaign = $campaign and ({_FENCES})
)
order by sequence limit {PART_EVENTS}
"""


@dataclass(frozen=True)
class EventListing:
    """A campaign's events in one stream, at sequences over `after` and up to `through`, according to the
    tables."""

    after: int
    through: int
    sequences: list[int]
    subjects: list[str]

    @property
    def fences(self) -> list[int]:
        pairs = zip(self.sequences, self.subjects, strict=True)
        return [sequence for sequence, subject in pairs if is_fence(subject)]

    def differs(self, found: Iterable[tuple[int, str]]) -> str:
        """Describe the first difference to `found` in a sentence; empty when there is none."""
        expected = iter(zip(self.sequences, self.subjects, strict=True))
        for sequence, subject in found:
            if (wanted := next(expected, None)) != (sequence, subject):
                what = f"event {wanted[0]} on {wanted[1]}" if wanted else "no further event"
                return f"event {sequence} on {subject} stands where the tables have {what}"
        if wanted := next(expected, None):
            return f"event {wanted[0]} on {wanted[1]} of the tables is not there"
        return ""


def listed(store_url: str, campaign: str, after: int, through: int) -> EventListing | None:
    """List the next part of a campaign's events; None when there is nothing to archive."""
    with open_tables(store_url, views=_LISTED, memory=MEMORY_LIMIT) as tables:
        rows = _rows(tables, campaign, after, through)
    if all(kind in _BOOKKEEPING for kind in rows.column("type").unique().to_pylist()):
        return None
    sequences = rows.column("sequence").to_pylist()
    reached = sequences[-1] if len(sequences) == PART_EVENTS else through
    return EventListing(after, reached, sequences, rows.column("subject").to_pylist())


def relisted(store_url: str, campaign: str, after: int, through: int) -> EventListing:
    with open_tables(store_url, views=_LISTED, memory=MEMORY_LIMIT) as tables:
        rows = _rows(tables, campaign, after, through)
    return EventListing(
        after, through, rows.column("sequence").to_pylist(), rows.column("subject").to_pylist()
    )


def recorded(store_url: str) -> dict[tuple[str, str], int]:
    """Campaign and SHA-256 of each manifest that the log records, with the position it reaches."""
    with open_tables(store_url, views=["archives"], memory=MEMORY_LIMIT) as tables:
        rows = tables.execute("select campaign, manifest_sha256, through from archives").fetchall()
    return {(campaign, sha256): through for campaign, sha256, through in rows}


def _rows(tables: duckdb.DuckDBPyConnection, campaign: str, after: int, through: int) -> pa.Table:
    values = {
        "after": after,
        "through": through,
        "campaign": campaign,
        "prefix": f"{EVENTS_PREFIX}.{campaign}.",
    }
    found: pa.Table = tables.sql(_LISTED, params=values).to_arrow_table()
    return found

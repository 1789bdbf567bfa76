"""Configuration of the writer."""

import msgspec

from orchard.schemas.quantities import Count, Duration, Seconds, Size


class WriterSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `[writer]` section: a commit is made at whichever limit comes first."""

    commit_rows: Count = 10_000
    """Largest number of events in a commit."""
    commit_seconds: Seconds = 2.0
    """Longest time that the first event of a commit waits."""
    commit_bytes: Size = 12 * 1024 * 1024
    """Largest size of a commit's messages; it bounds the writer's memory."""
    compact_above: Count = 30
    """Small files of a table that start a compaction."""
    compact_seconds: Duration = 10.0
    """Time between two checks whether a table has that many."""
    derive_seconds: Seconds = 30.0
    """How long the log has the processors for itself when the stream is ahead of it; then the derived
    tables catch up before it continues."""

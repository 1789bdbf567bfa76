"""Configuration of the writer and of the archive."""

from typing import Annotated

import msgspec

from orchard.schemas.quantities import Count, Duration, Seconds, Size, Unit


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
    """Seconds for which only the log is written while it is behind the stream; then the derived tables catch
    up before it continues."""


class ArchiveSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `[archive]` section."""

    url: str | None = None
    """Directory or `s3://bucket/prefix` of sealed events; None: `archive` in the store."""
    after_days: Annotated[float, msgspec.Meta(ge=0, le=100_000), Unit("days")] | None = None
    """Days without an event after which the writer archives a closed campaign by itself; None: never."""


def archive_url(store_url: str, settings: ArchiveSettings | None) -> str:
    """URL of a store's archive, as configured or by default."""
    from orchard.storage.location import Location  # brings pyarrow, which reading a configuration needs not

    return (settings and settings.url) or f"{Location.parse(store_url).url}/archive"

"""Configuration of the archive."""

from typing import Annotated

import msgspec

from orchard.schemas.quantities import Unit


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

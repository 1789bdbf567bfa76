"""The archive of the event log: its manifest, and the event that records a part."""

import msgspec

MANIFEST_VERSION = 1


class ArchiveSegment(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One Parquet file of sealed messages, in the order of the stream."""

    path: str
    """Name of the file, beside the manifest."""
    size: int
    sha256: str
    """SHA-256 of the file's bytes."""
    content_sha256: str
    """SHA-256 of the messages, however they are encoded: `orchard.storage.archive.segments.ContentDigest`."""
    first_sequence: int
    last_sequence: int
    events: int


class ArchiveManifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that one part of a campaign's archive holds.

    It has every event that the stream held on the campaign's own subjects at sequences over `after` and up to
    `through`, and copies of the campaign's fences among them, which stay in the stream.
    """

    campaign: str
    after: int
    through: int
    first_sequence: int
    last_sequence: int
    events: int
    removed: int
    """Events on the campaign's own subjects, which leave the stream."""
    bytes: int
    """Bytes of all payloads together."""
    subjects: dict[str, int]
    """Events by subject; a shard or an id in it is `*`."""
    segments: tuple[ArchiveSegment, ...]
    version: int = MANIFEST_VERSION


class CampaignArchived(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a campaign's events is in the archive, verified, and leaves the stream."""

    manifest_sha256: str
    after: int
    through: int
    """Last sequence of this part of the archive."""
    first_sequence: int
    last_sequence: int
    events: int
    removed: int
    """Events that leave the stream with it."""
    bytes: int

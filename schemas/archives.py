"""The archive of the event log: what a manifest says, and the event that records one."""

import msgspec

MANIFEST_VERSION = 1


class ArchiveSegment(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One Parquet file of sealed messages, in the order of the stream."""

    path: str
    """File name, beside the manifest."""
    size: int
    """Bytes of the file."""
    sha256: str
    """Of the file."""
    content_sha256: str
    """Of the messages, however they are encoded: see `orchard.storage.archive.segments.Content`."""
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
    """Those on the campaign's own subjects, which leave the stream."""
    bytes: int
    """Of payloads."""
    subjects: dict[str, int]
    """Events by subject; a shard or an id in it is `*`."""
    segments: tuple[ArchiveSegment, ...]
    version: int = MANIFEST_VERSION


class CampaignArchived(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a campaign's events is in the archive, verified, and leaves the stream."""

    manifest_sha256: str
    after: int
    through: int
    """Sequence up to which the part goes."""
    first_sequence: int
    last_sequence: int
    events: int
    removed: int
    """Events that leave the stream with it."""
    bytes: int

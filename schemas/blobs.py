"""References to payloads too large for an event."""

import msgspec

INLINE_LIMIT = 256 * 1024
"""Bytes. Larger payloads are blobs, and the event carries a BlobRef."""


class BlobRef(msgspec.Struct, frozen=True, kw_only=True):
    """A blob by the SHA-256 (64 hexadecimal digits) of its bytes."""

    sha256: str
    """Its name in the store."""
    size: int
    """Bytes."""
    media_type: str = "application/octet-stream"
    """MIME type."""

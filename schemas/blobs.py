"""References to payloads too large for an event."""

import msgspec

INLINE_LIMIT = 256 * 1024
"""Payloads of more bytes than this are blobs, and the event carries a BlobRef."""


class BlobRef(msgspec.Struct, frozen=True, kw_only=True):
    """Names a blob by the SHA-256 (64 hexadecimal digits) of its bytes."""

    sha256: str
    """Name of the blob in the store."""
    size: int
    """Size of the blob in bytes."""
    media_type: str = "application/octet-stream"
    """MIME type of the content."""

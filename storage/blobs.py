"""Blobs: payloads too large for an event, stored once under the SHA-256 of their bytes.

A blob is written before the event that names it, is verified whenever it is read, and is never changed.
In a directory: `blobs/ab/cd/<sha256>`; on S3 the same keys. Any number of processes may put and get.
"""

import hashlib
import os
import re

import msgspec
import pyarrow.fs as pafs

from orchard.schemas.blobs import INLINE_LIMIT, BlobRef
from orchard.schemas.messages import MessageNode, NodeRest
from orchard.storage.durable import write_whole
from orchard.storage.errors import BlobCorrupt, BlobMissing, store_errors
from orchard.storage.location import Location

_SHA256 = re.compile(r"[0-9a-f]{64}")


class BlobStore:
    """The blobs of one store. Synchronous: async callers use `asyncio.to_thread`."""

    def __init__(self, url: str | os.PathLike[str]) -> None:
        self._location = Location.parse(url)
        self._files = self._location.filesystem

    def put(self, data: bytes, media_type: str = "application/octet-stream") -> BlobRef:
        """Stores `data` unless it is there whole already. Raises StoreFull or StoreUnreachable."""
        sha256 = hashlib.sha256(data).hexdigest()
        reference = BlobRef(sha256=sha256, size=len(data), media_type=media_type)
        with store_errors(self._location.url):
            if self._read(sha256) != data:
                self._write(sha256, data)
        return reference

    def get(self, reference: BlobRef) -> bytes:
        """The verified bytes. Raises BlobMissing, BlobCorrupt or StoreUnreachable."""
        with store_errors(self._location.url):
            data = self._read(reference.sha256)
        if data is None:
            raise BlobMissing(
                f"blob {reference.sha256} is not in the store {self._location.url}: "
                "restore it, or submit again what it belongs to"
            )
        if hashlib.sha256(data).hexdigest() != reference.sha256:
            raise BlobCorrupt(
                f"blob {reference.sha256} in the store {self._location.url} is corrupt "
                f"({len(data)} bytes with another SHA-256): delete the file and put the blob again"
            )
        return data

    def has(self, reference: BlobRef) -> bool:
        """Whether a blob of that name and size is there; only `get` verifies its bytes."""
        with store_errors(self._location.url):
            info = self._files.get_file_info(self._key(reference.sha256))
        return bool(info.type == pafs.FileType.File and info.size == reference.size)

    def _key(self, sha256: str) -> str:
        if not _SHA256.fullmatch(sha256):
            raise BlobMissing(f"{sha256!r} is no blob's name: it must be 64 lower-case hexadecimal digits")
        return self._location.key("blobs", sha256[:2], sha256[2:4], sha256)

    def _read(self, sha256: str) -> bytes | None:
        try:
            with self._files.open_input_stream(self._key(sha256)) as stream:
                return bytes(stream.read())
        except FileNotFoundError:
            return None

    def _write(self, sha256: str, data: bytes) -> None:
        if self._location.is_s3:
            with self._files.open_output_stream(self._key(sha256)) as stream:
                stream.write(data)
            return
        write_whole(self._location.path / "blobs" / sha256[:2] / sha256[2:4], sha256, data)


def slimmed(blobs: BlobStore, node: MessageNode) -> MessageNode:
    """The node as an event may carry it: parts over the inline limit, as JSON bytes, become blobs. Raises as
    `put` does."""
    size = len(msgspec.json.encode(node))
    if size <= INLINE_LIMIT:
        return node
    text = len(msgspec.json.encode(node.content))
    if text > INLINE_LIMIT // 2:
        blob = blobs.put(node.content.encode(), "text/plain; charset=utf-8")
        node = msgspec.structs.replace(node, content="", content_blob=blob)
        size -= text
    if size > INLINE_LIMIT:
        rest = NodeRest(reasoning=node.reasoning, tool_calls=node.tool_calls, tokens=node.tokens)
        blob = blobs.put(msgspec.json.encode(rest), "application/json")
        node = msgspec.structs.replace(node, reasoning="", tool_calls=(), tokens=None, rest_blob=blob)
    return node

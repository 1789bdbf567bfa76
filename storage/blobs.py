"""Blobs: payloads too large for an event, stored once under the SHA-256 of their bytes.

A blob is written before the event that names it, is verified whenever it is read, and is never changed. In a
directory: `blobs/ab/cd/<sha256>`; on S3 the same keys. Any number of processes may put and get.
"""

import hashlib
import os
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pyarrow.fs as pafs

from orchard.schemas.blobs import BlobRef
from orchard.storage.errors import BlobCorrupt, BlobMissing, store_errors
from orchard.storage.location import Location

_WRITERS = 16
_SHA256 = re.compile(r"[0-9a-f]{64}")


class BlobStore:
    """The blobs of one store. Synchronous: async callers use `asyncio.to_thread`."""

    def __init__(self, url: str | os.PathLike[str]) -> None:
        self._location = Location.parse(url)

    @property
    def url(self) -> str:
        return self._location.url

    @contextmanager
    def together(self) -> Iterator["BlobStore"]:
        """Give a store whose `put` waits: its blobs are stored, and durable, when the block has ended, which
        is faster for many. No event may name them before. Raises StoreFull or StoreUnreachable."""
        waiting = _Waiting(self._location.url)
        yield waiting
        with store_errors(self._location.url):
            if self._location.is_s3:
                with ThreadPoolExecutor(_WRITERS) as writers:
                    list(writers.map(self.put, waiting.blobs.values()))
                return
            for sha256, data in waiting.blobs.items():
                if self._location.read(*_place(sha256)) != data:
                    self._location.write(data, *_place(sha256), durable=False)
            self._location.sync()

    def put(self, data: bytes, media_type: str = "application/octet-stream") -> BlobRef:
        """Store `data` unless an intact copy exists. Raises StoreFull or StoreUnreachable."""
        reference = _reference(data, media_type)
        with store_errors(self._location.url):
            if self._location.read(*_place(reference.sha256)) != data:
                self._location.write(data, *_place(reference.sha256))
            else:
                self._location.sync_file(*_place(reference.sha256))  # `together` may have written it just now
        return reference

    def get(self, reference: BlobRef) -> bytes:
        """Return the verified bytes. Raises BlobMissing, BlobCorrupt or StoreUnreachable."""
        with store_errors(self._location.url):
            data = self._location.read(*_place(reference.sha256))
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

    def read(self, sha256: str) -> bytes:
        """Return the verified bytes of a blob of which only the name is known; raises as `get` does."""
        return self.get(BlobRef(sha256=sha256, size=0, media_type=""))

    def has(self, reference: BlobRef) -> bool:
        """Whether a blob of that name and size exists; only `get` verifies its bytes."""
        with store_errors(self._location.url):
            info = self._location.filesystem.get_file_info(self._location.key(*_place(reference.sha256)))
        return bool(info.type == pafs.FileType.File and info.size == reference.size)


class _Waiting(BlobStore):
    """Keeps what is put in memory."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.blobs: dict[str, bytes] = {}

    def put(self, data: bytes, media_type: str = "application/octet-stream") -> BlobRef:
        reference = _reference(data, media_type)
        self.blobs[reference.sha256] = data
        return reference


class NamedBlobs:
    """Files of one store under names of their own, `<kind>/ab/<name>`, which can be made again and replaced.

    Synchronous. Raises StoreFull or StoreUnreachable.
    """

    def __init__(self, url: str | os.PathLike[str], kind: str) -> None:
        self._location = Location.parse(url)
        self._kind = kind

    def get(self, name: str) -> bytes | None:
        with store_errors(self._location.url):
            return self._location.read(self._kind, name[:2], name)

    def put(self, name: str, data: bytes) -> None:
        with store_errors(self._location.url):
            self._location.write(data, self._kind, name[:2], name)


def _reference(data: bytes, media_type: str) -> BlobRef:
    return BlobRef(sha256=hashlib.sha256(data).hexdigest(), size=len(data), media_type=media_type)


def _place(sha256: str) -> tuple[str, ...]:
    """Path below the store's root. Raises BlobMissing for an invalid name."""
    if not _SHA256.fullmatch(sha256):
        raise BlobMissing(f"{sha256!r} is no blob's name: it must be 64 lower-case hexadecimal digits")
    return "blobs", sha256[:2], sha256[2:4], sha256

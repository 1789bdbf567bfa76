"""Puts the SHA-256 of a table's file into its name, and so into the commit that names it.

A Delta log has no other place for it that survives a checkpoint. Files of earlier versions have none and
cannot be verified.
"""

import hashlib
import re
from typing import Protocol

from orchard.storage.location import Location

_NAMED = re.compile(r"-([0-9a-f]{64})\.parquet$")
_PIECE = 1024 * 1024


class _Sink(Protocol):
    def write(self, data: bytes, /) -> object: ...
    def flush(self) -> None: ...


class Digesting:
    """A sink for Arrow that digests what passes into another one; it never seeks."""

    closed = False

    def __init__(self, sink: _Sink) -> None:
        self._sink = sink
        self._digest = hashlib.sha256()
        self.size = 0

    def write(self, data: bytes) -> int:
        self._digest.update(data)
        self._sink.write(data)
        self.size += len(data)
        return len(data)

    def tell(self) -> int:
        return self.size

    def flush(self) -> None:
        self._sink.flush()

    def close(self) -> None:
        """Leave the other sink open."""

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()


def named(stem: str, sha256: str) -> str:
    return f"{stem}-{sha256}.parquet"


def known_sha256(name: str) -> str | None:
    """SHA-256 in a file's name; None if there is none."""
    found = _NAMED.search(name)
    return found[1] if found else None


def is_intact(location: Location, key: str) -> bool | None:
    """Whether the file has the bytes that it was written with; None if its name has no SHA-256.

    Reads the whole file. Raises OSError.
    """
    wanted = known_sha256(key)
    if wanted is None:
        return None
    digest = hashlib.sha256()
    with location.filesystem.open_input_stream(key) as source:
        while piece := source.read(_PIECE):
            digest.update(piece)
    return digest.hexdigest() == wanted

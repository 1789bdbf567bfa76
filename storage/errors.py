"""Errors of a store, one class for each that a caller may want to tell apart."""

import errno
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa


class StorageError(Exception):
    """Base of this package's errors; the message is one sentence that names the fix."""


class StoreBusy(StorageError):
    """Another writer holds the store, or has committed to it since this one last read it."""


class StoreFull(StorageError):
    """No space left; what was committed is whole, and writing resumes after a restart."""


class StoreUnreachable(StorageError):
    """The directory or bucket cannot be opened, read or written."""


class StoreDamaged(StoreUnreachable):
    """Files of the store are not what was written; the message names the damage and what mends it."""


class EventsLost(StorageError):
    """The stream no longer holds events that the store does not have yet."""


class OtherStream(StorageError):
    """The stream is not the one this store was written from."""


class BlobMissing(StorageError):
    pass


class BlobCorrupt(StorageError):
    """A blob's bytes do not have the SHA-256 that is its name."""


class ArchiveCorrupt(StorageError):
    """A file of the archive is missing or does not have the bytes that it was written with."""


class ArchiveRefused(StorageError):
    """A campaign cannot be archived or restored in its state."""


_FULL = (errno.ENOSPC, errno.EDQUOT)
_FULL_TEXTS = ("os error 28", "os error 122", "No space left", "StorageFull")


def is_full(error: BaseException) -> bool:
    if isinstance(error, OSError) and error.errno in _FULL:
        return True
    return any(text in str(error) for text in _FULL_TEXTS)


def _translated() -> tuple[type[Exception], ...]:
    """Delta is not imported for its errors: whoever trains reads no tables. ArrowInvalid is a file that is
    shorter than it was."""
    delta = sys.modules.get("deltalake.exceptions")
    return (OSError, pa.ArrowInvalid, *((delta.DeltaError,) if delta else ()))


@contextmanager
def store_errors(where: str) -> Iterator[None]:
    """Translate errors of the operating system, Arrow and Delta about `where` into this package's."""
    try:
        yield
    except _translated() as error:
        if is_full(error):
            raise StoreFull(
                f"no space left in the store {where}: free some space and start again, "
                "everything committed so far is whole and nothing is lost"
            ) from error
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise StoreUnreachable(f"the store {where} cannot be used: {reason}") from error

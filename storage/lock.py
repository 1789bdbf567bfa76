"""Permits one writer on a store, by a lock that the operating system releases when its holder dies.

It works for directories. On S3, and for writers that a network file system hides from each other, the table
commits themselves are the fence (`storage/delta.py`): the later writer is refused at its first commit.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager

from orchard.storage import pins
from orchard.storage.errors import StoreBusy, store_errors
from orchard.storage.location import Location


@contextmanager
def writer_lock(location: Location) -> Iterator[None]:
    """Hold the store while the block runs. Raises StoreBusy when another process does."""
    if location.is_s3:
        try:
            yield
        finally:
            pins.written(location)
        return
    with store_errors(location.url):
        location.path.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(location.path / "writer.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StoreBusy(
                f"another writer (process {_holder(descriptor)}) is working on the store {location.url}: "
                "stop it, or choose another store"
            ) from None
        with store_errors(location.url):
            os.pwrite(descriptor, f"{os.getpid():<20}\n".encode(), 0)
        yield
    finally:
        pins.written(location)
        os.close(descriptor)


def writer_of(location: Location) -> str | None:
    """Id of the process that holds a store in a directory; None if nobody does."""
    try:
        descriptor = os.open(location.path / "writer.lock", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return None
    except BlockingIOError:
        return _holder(descriptor)
    finally:
        os.close(descriptor)


def _holder(descriptor: int) -> str:
    return os.pread(descriptor, 32, 0).decode().strip() or "unknown"

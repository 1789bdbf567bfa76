"""Pins: the files that readers hold, so that vacuum spares them for as long as they are read.

A pin is an object below `readers/` that names the files of one reader, one key a line. In a directory the
reader holds a lock on it, which the operating system releases when the reader dies, however it dies and for
however long it was stopped. On S3 the reader rewrites it every PULSE seconds, and one that was not rewritten
for DEAD_AFTER is void; both ages are taken from the store's clock.

Writers have pins, too: a mark that is part of the name of each file that the process makes (`writing`). So a
file that no commit names yet is told from one that a killed process left by the store's own facts, and by no
clock.

No pin is needed to read: a file outlives the commit that replaced it by GRACE seconds in any case. So a
reader lists files and pins them within that time, or starts again (`pinned`); vacuum reads the pins last.
"""

import atexit
import contextlib
import fcntl
import itertools
import logging
import os
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from typing import TypeVar

import pyarrow.fs as pafs

from orchard.storage.errors import StoreUnreachable
from orchard.storage.location import Location

log = logging.getLogger(__name__)

GRACE = 60.0
"""Seconds for which a replaced file stays on disk, pinned or not."""
PULSE = 60.0
DEAD_AFTER = 600.0
_READERS, _WRITERS = "readers", "writers"
_END_SECONDS = 10.0
"""Seconds that the end of a process waits for its pins to be deleted."""
_MARKED = re.compile(r"-([0-9a-f]{16})\.[0-9]+[-.]")
_T = TypeVar("_T")


class Pin:
    """Keeps files on disk until `release`, or until the process ends."""

    def __init__(self, location: Location, files: Iterable[str], folder: str = _READERS) -> None:
        """`files` are keys below the store's root.

        In a store that cannot be written to nothing is pinned: then only GRACE protects the reader.
        """
        self._release: Callable[[], None] = lambda: None
        text = "\n".join(files).encode()
        try:
            self._release = (
                _pulsing(location, text, folder) if location.is_s3 else _locked(location, text, folder)
            )
        except OSError as error:
            log.debug("files of %s are read without a pin: %s", location.url, error)

    def release(self) -> None:
        """Let vacuum delete the files from now on."""
        release, self._release = self._release, lambda: None
        release()


def pinned(
    location: Location, look: Callable[[], _T], files: Callable[[_T], Iterable[str]]
) -> tuple[_T, Pin]:
    """Return what `look` finds, with a pin on its `files`, all of which are then on disk."""
    while True:
        began = time.monotonic()
        found = look()
        pin = Pin(location, files(found))
        if time.monotonic() - began < GRACE / 2:
            return found, pin
        pin.release()


def held(location: Location) -> set[str]:
    """Return every file that a living reader has pinned. Pins of dead readers are removed."""
    return _held(location, _READERS)


def _held(location: Location, below: str) -> set[str]:
    return set((_held_on_s3 if location.is_s3 else _held_in_directory)(location, below))


_writers: dict[tuple[int, str], tuple[str, Pin, Iterator[int]]] = {}
"""Marks by process, so that a fork has its own, and store."""
_writers_lock = threading.Lock()


def writing(location: Location) -> str:
    """Return a name for the next file of this process, with the mark that it holds from now on."""
    with _writers_lock:
        place = os.getpid(), location.url
        if place not in _writers:
            mark = secrets.token_hex(8)
            _writers[place] = mark, Pin(location, [mark], _WRITERS), itertools.count()
        mark, _, numbers = _writers[place]
        return f"{mark}.{next(numbers)}"


def written(location: Location) -> None:
    """Release the mark: what this process made in a store is in its log, or is abandoned."""
    with _writers_lock:
        known = _writers.pop((os.getpid(), location.url), None)
    if known is not None:
        known[1].release()


def abandoned(location: Location, files: Iterable[str]) -> set[str]:
    """Return the files that have the mark of no living process."""
    alive = _held(location, _WRITERS)
    return {file for file in files if not ((found := _MARKED.search(file)) and found[1] in alive)}


# --- a directory ---------------------------------------------------------------------------------


def _locked(location: Location, text: bytes, below: str) -> Callable[[], None]:
    """Make a locked file; it gets its name only when it is locked and written."""
    folder = location.path / below
    folder.mkdir(exist_ok=True)
    process = os.getpid()
    name = f"{process}-{secrets.token_hex(8)}"
    hidden, path = folder / f".{name}", folder / name
    descriptor = os.open(hidden, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with open(descriptor, "wb", closefd=False) as file:
            file.write(text)
        hidden.replace(path)
    except BaseException:
        os.close(descriptor)
        hidden.unlink(missing_ok=True)
        raise

    def release() -> None:
        if os.getpid() == process:  # and not a fork of it
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
        os.close(descriptor)

    return release


def _held_in_directory(location: Location, below: str) -> Iterator[str]:
    folder = location.path / below
    if not folder.is_dir():
        return
    for path in folder.iterdir():
        try:
            with path.open("rb") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    yield from file.read().decode().splitlines()
                    continue
                if not path.name.startswith("."):
                    path.unlink(missing_ok=True)
        except FileNotFoundError:
            continue


# --- S3 ------------------------------------------------------------------------------------------


def _pulsing(location: Location, text: bytes, below: str) -> Callable[[], None]:
    """Make an object that a thread keeps rewriting."""
    place = (below, secrets.token_hex(12))
    location.write(text, *place)
    released = threading.Event()

    def pulse() -> None:
        while not released.wait(PULSE):
            with contextlib.suppress(OSError):
                location.write(text, *place)
        with contextlib.suppress(OSError):
            location.filesystem.delete_file(location.key(*place))
        del _pulses[released]

    _pulses[released] = threading.Thread(target=pulse, name="pin", daemon=True)
    _pulses[released].start()
    return released.set


_pulses: dict[threading.Event, threading.Thread] = {}
"""Threads by the event that releases their pin."""


@atexit.register
def _release_all() -> None:
    """Delete all pins before Arrow ends, whose shutdown a running request may block (`location._s3`)."""
    for released, thread in list(_pulses.items()):
        released.set()
        thread.join(_END_SECONDS)


def _held_on_s3(location: Location, below: str) -> Iterator[str]:
    files = location.filesystem
    clock = location.key(below, ".clock")
    location.write(b"", below, ".clock")
    now = files.get_file_info(clock).mtime
    if now is None:
        raise StoreUnreachable(f"the store {location.url} does not tell the age of its objects")
    for info in files.get_file_info(pafs.FileSelector(location.key(below))):
        if info.path == clock or info.mtime is None:
            continue
        if now - info.mtime > timedelta(seconds=DEAD_AFTER):
            files.delete_file(info.path)
            continue
        with contextlib.suppress(FileNotFoundError), files.open_input_stream(info.path) as stream:
            yield from bytes(stream.read()).decode().splitlines()

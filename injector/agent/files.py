"""Reads and writes files of a sandbox from outside, resolved with its root as root: no path can lead out.

All functions block; call them in a thread.
"""

import errno
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from orchard.injector.agent.accounts import UserAccount
from orchard.injector.agent.errors import AgentError, NotFound, RequestInvalid, TooLarge
from orchard.injector.agent.kernel import CGROUP, CGROUP2, PROC, SYSFS, filesystem_type, open_beneath

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
CHUNK = 1 << 18
"""Bytes; the allocator maps much larger blocks anew for each use (`hold_little_memory`)."""
MOST_ENTRIES = 100_000
"""Entries of a directory that is listed or packed; they are held in memory, which all sandboxes share."""

KERNEL_INTERFACES = (PROC, SYSFS, CGROUP, CGROUP2)
"""File systems that are refused: a task may link to one, and the agent has more rights there than the task.
"""


def open_for_reading(root: int, path: str, limit: int | None = None) -> tuple[BinaryIO, int]:
    """Open the regular file at `path`; returns it and its size in bytes.

    Raises NotFound when there is none, RequestInvalid for a directory, device, socket or pipe, and TooLarge
    beyond `limit` bytes.
    """
    with explained(path):
        fd = open_beneath(root, path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        check_regular(fd, path)
        size = os.fstat(fd).st_size
        if limit is not None and size > limit:
            raise TooLarge(f"{path} has {size} bytes, more than {limit}")
        return os.fdopen(fd, "rb"), size
    except BaseException:
        os.close(fd)
        raise


def make_directory(root: int, path: str, owner: UserAccount | None = None) -> None:
    with explained(path):
        make_directories(root, path, owner)


def link(root: int, path: str, target: str) -> None:
    """Make a symbolic link to `target` at `path`, in place of what is there."""
    with explained(path), _parent(root, path) as (parent, name):
        with suppress(FileNotFoundError):
            remove_at(parent, name)
        os.symlink(target, name, dir_fd=parent)


def remove(root: int, path: str) -> None:
    """Remove what is at `path`, directories recursively. Raises NotFound and RequestInvalid."""
    with explained(path), _parent(root, path) as (parent, name):
        remove_at(parent, name)


def remove_at(parent: int, name: str) -> None:
    if stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
        _remove_directory(parent, name)
    else:
        os.unlink(name, dir_fd=parent)


def _remove_directory(parent: int, name: str) -> None:
    """Remove a directory of any depth: neither calls nor open descriptors nest, so the way up leads by `..`.

    Raises OSError; ESTALE if someone moves directories meanwhile, because `..` would lead elsewhere.
    """
    above: list[tuple[tuple[int, int], list[str], str]] = []
    """Each parent's identity, its directories still to remove, and its name."""
    here = os.open(name, _DIRECTORY, dir_fd=parent)
    try:
        below = _emptied(here)
        while True:
            if below:
                above.append((_identity(here), below, name))
                name = below.pop()
                here = _replaced(here, name)
                below = _emptied(here)
            elif above:
                expected, below, last = above.pop()
                here = _replaced(here, "..")
                if _identity(here) != expected:
                    raise OSError(errno.ESTALE, "it was moved while it was removed")
                os.rmdir(name, dir_fd=here)
                name = last
            else:
                break
    finally:
        os.close(here)
    os.rmdir(name, dir_fd=parent)


def _emptied(directory: int) -> list[str]:
    below = []
    for name in os.listdir(directory):
        with suppress(FileNotFoundError):
            if stat.S_ISDIR(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode):
                below.append(name)
            else:
                os.unlink(name, dir_fd=directory)
    return below


def _replaced(directory: int, path: str) -> int:
    opened = os.open(path, _DIRECTORY, dir_fd=directory)
    os.close(directory)
    return opened


def _identity(directory: int) -> tuple[int, int]:
    status = os.fstat(directory)
    return status.st_dev, status.st_ino


def move(root: int, path: str, target: str) -> None:
    """Rename `path`. Raises NotFound, and RequestInvalid if the target is in the way or on another file
    system."""
    with explained(path), _parent(root, path) as (parent, name):
        os.stat(name, dir_fd=parent, follow_symlinks=False)
        with explained(target):
            make_directories(root, os.path.dirname(target))  # noqa: PTH120
            with _parent(root, target) as (above, new):
                os.rename(name, new, src_dir_fd=parent, dst_dir_fd=above)


@contextmanager
def _parent(root: int, path: str) -> Iterator[tuple[int, str]]:
    """Descriptor of the directory that `path` is in, and its last component, of which no link is followed."""
    above, name = os.path.split(path.rstrip("/"))
    if name in ("", ".", ".."):
        raise RequestInvalid(f"{path} names no file: its last part must be a name, not `.` or `..`")
    parent = open_beneath(root, above, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield parent, name
    finally:
        os.close(parent)


def listing(root: int, path: str) -> list[dict[str, Any]]:
    """List the directory at `path`, sorted by name.

    Each entry has name (decoded as `os.fsdecode`), type, size (bytes), modified (ISO 8601, UTC), modified_at
    (epoch seconds) and symlink. All but the name describe a link's target; a dangling link has the type
    `symlink`. Raises NotFound, and RequestInvalid when it is no directory or has more than MOST_ENTRIES.
    """
    with opened_directory(root, path) as fd:
        entries = list(islice(_entries(root, path, fd), MOST_ENTRIES + 1))
    if len(entries) > MOST_ENTRIES:
        raise RequestInvalid(f"{path} has more than {MOST_ENTRIES} entries: list it with exec")
    return sorted(entries, key=lambda entry: str(entry["name"]))


@contextmanager
def opened_directory(root: int, path: str) -> Iterator[int]:
    """Open the directory at `path`. Raises NotFound, and RequestInvalid when it is no directory."""
    with explained(path):
        fd = open_beneath(root, path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield fd
    finally:
        os.close(fd)


def _entries(root: int, path: str, fd: int) -> Iterator[dict[str, Any]]:
    with os.scandir(fd) as entries:
        for entry in entries:
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue  # it was removed meanwhile
            link = stat.S_ISLNK(status.st_mode)
            if link:
                status = _target(root, f"{path}/{entry.name}") or status
            yield {
                "name": entry.name,
                "type": _kind(status.st_mode),
                "size": status.st_size,
                "modified": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(status.st_mtime)),
                "modified_at": status.st_mtime,
                "symlink": link,
            }


def _target(root: int, path: str) -> os.stat_result | None:
    """Stat a link's target, with the sandbox's root as root; None: it dangles."""
    try:
        fd = open_beneath(root, path, os.O_PATH)
    except OSError:
        return None
    try:
        return os.fstat(fd)
    finally:
        os.close(fd)


def _kind(mode: int) -> str:
    if stat.S_ISREG(mode):
        return "file"
    if stat.S_ISDIR(mode):
        return "directory"
    return "symlink" if stat.S_ISLNK(mode) else "other"


def check_regular(fd: int, path: str) -> None:
    mode = os.fstat(fd).st_mode
    if stat.S_ISDIR(mode):
        raise RequestInvalid(f"{path} is a directory")
    if not stat.S_ISREG(mode):
        raise RequestInvalid(f"{path} is not a regular file")
    if filesystem_type(fd) in KERNEL_INTERFACES:
        raise RequestInvalid(
            f"{path} is not a file but an interface of the kernel: read or write it with exec"
        )


def make_directories(root: int, path: str, owner: UserAccount | None = None) -> None:
    """Make a directory and its parents; new ones belong to `owner`. Raises OSError.

    Each component is resolved inside the root, so a link on the way stays inside too.
    """
    made = "/"
    for part in path.split("/"):
        if part in ("", "."):
            continue
        parent = open_beneath(root, made, os.O_PATH | os.O_DIRECTORY)
        try:
            if part != "..":
                os.mkdir(part, 0o755, dir_fd=parent)
                if owner is not None:
                    os.chown(part, owner.uid, owner.gid, dir_fd=parent, follow_symlinks=False)
        except FileExistsError:
            pass
        finally:
            os.close(parent)
        made = f"{made}{part}/"


class explained:
    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> None:
        if "\0" in self._path or not self._path.startswith("/"):
            raise RequestInvalid(f"`{self._path!r}` is not an absolute path")
        try:
            os.fsencode(self._path)
        except UnicodeEncodeError as error:
            raise RequestInvalid(f"`{self._path!r}` has surrogates that stand for no byte") from error

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if not isinstance(error, OSError):
            return
        if error.errno == errno.ENOENT:
            raise NotFound(f"{self._path} does not exist", reason="file_missing") from error
        if error.errno == errno.ENXIO:  # a pipe without a reader, or a socket
            raise RequestInvalid(f"{self._path} is not a regular file") from error
        raise RequestInvalid(f"{self._path}: {error.strerror}") from error


def remove_tree(path: Path) -> None:
    """Remove a directory recursively, or a file; does nothing when there is none. Blocks.

    Raises AgentError (`remove_failed`).
    """
    if not os.path.lexists(path):
        return
    try:
        parent = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            remove_at(parent, path.name)
        finally:
            os.close(parent)
    except OSError as error:
        raise AgentError(f"{path} could not be removed: {error.strerror}", reason="remove_failed") from error

"""Writes a file into a sandbox atomically: at its path it appears whole, or not at all.

It is written beside its destination and renamed at the end, with the mode and the owner of the file that it
replaces. Where that is impossible (a mounted file, a directory where the agent may write the file but create
no other) the old file is overwritten at the end, which a concurrent reader sees.

All methods block; call them in threads. Discarding waits for a thread that is at work.
"""

import asyncio
import errno
import os
import secrets
import stat
import threading
from contextlib import suppress

from orchard.injector.agent.accounts import UserAccount, account
from orchard.injector.agent.files import check_regular, explained, make_directories
from orchard.injector.agent.kernel import open_beneath

_MODE = 0o644
_MOST_LINKS = 40
"""Largest number of links followed, as in the kernel."""
_CHUNK = 1 << 20
_NOT_BESIDE = (errno.EACCES, errno.EPERM, errno.EROFS)
_NOT_IN_ITS_PLACE = (errno.EBUSY, errno.EXDEV, errno.EACCES, errno.EPERM)


class FileUpload:
    """A file being written: call `open`, `write`, `finish`, and `discard` in any case."""

    def __init__(self, user: str = "", mode: int | None = None) -> None:
        """`user` owns a new file (`accounts.account`); empty: the agent's own user.

        `mode` None keeps the mode of the file that is replaced, or is 0644.
        """
        self._mode = mode
        self._user = user
        self._owner: UserAccount | None = None
        self._lock = threading.Lock()
        self._discarded = False
        self._target = -1
        self._file = -1
        self._directory = -1
        self._name = ""
        self._beside: str | None = None

    def open(self, root: int, path: str) -> None:
        """Begin; makes missing directories. Raises RequestInvalid when `path` cannot be a regular file."""
        with self._lock, explained(path):
            if self._discarded:
                return
            self._owner = account(root, self._user) if self._user else None
            make_directories(root, os.path.dirname(path), self._owner)  # noqa: PTH120
            self._directory, self._name = _place(root, path)
            # Not truncated: opening a pipe or device must not disturb it.
            with suppress(FileNotFoundError):
                self._target = open_beneath(root, path, os.O_WRONLY | os.O_NONBLOCK)
                check_regular(self._target, path)
            self._open_file()

    def write(self, piece: bytes | memoryview) -> None:
        with self._lock:
            _write_all(self._file, piece)

    def finish(self) -> None:
        """Move the file into place. Raises OSError; the old file is then unchanged, unless it was being
        overwritten."""
        with self._lock:
            if self._beside is None or not self._replace():
                self._write_over()

    def discard(self) -> None:
        """Release everything; an unfinished file is removed."""
        with self._lock:
            self._discarded = True
            if self._beside is not None:
                with suppress(FileNotFoundError):
                    os.unlink(self._beside, dir_fd=self._directory)
                self._beside = None
            for descriptor in {self._file, self._target, self._directory} - {-1}:
                os.close(descriptor)
            self._file = self._target = self._directory = -1

    def _open_file(self) -> None:
        """Create the new file, in memory if none can be created beside the target."""
        name = f".upload-{secrets.token_hex(8)}"
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            self._file = os.open(name, flags, _MODE, dir_fd=self._directory)
            self._beside = name
            if self._owner is not None:
                os.fchown(self._file, self._owner.uid, self._owner.gid)
        except OSError as error:
            if self._target < 0 or error.errno not in _NOT_BESIDE:
                raise
            self._file = os.memfd_create("upload", os.MFD_CLOEXEC)

    def _replace(self) -> bool:
        """Rename the new file into place; returns False if it must be overwritten instead."""
        assert self._beside is not None
        try:
            if self._target >= 0:
                old, new = os.fstat(self._target), os.fstat(self._file)
                if (old.st_uid, old.st_gid) != (new.st_uid, new.st_gid):
                    os.fchown(self._file, old.st_uid, old.st_gid)
                os.fchmod(self._file, stat.S_IMODE(old.st_mode) if self._mode is None else self._mode)
            elif self._mode is not None:
                os.fchmod(self._file, self._mode)
            os.rename(self._beside, self._name, src_dir_fd=self._directory, dst_dir_fd=self._directory)
        except OSError as error:
            if self._target < 0 or error.errno not in _NOT_IN_ITS_PLACE:
                raise
            return False
        self._beside = None
        return True

    def _write_over(self) -> None:
        os.ftruncate(self._target, 0)
        if self._mode is not None:
            os.fchmod(self._target, self._mode)
        os.lseek(self._file, 0, os.SEEK_SET)
        while piece := os.read(self._file, _CHUNK):
            _write_all(self._target, piece)


async def discarded(upload: FileUpload) -> None:
    """Discard it in a thread, even if the caller is cancelled before a thread is free."""
    await asyncio.shield(asyncio.get_running_loop().run_in_executor(None, upload.discard))


def _write_all(descriptor: int, piece: bytes | memoryview) -> None:
    view = memoryview(piece)
    while view:
        view = view[os.write(descriptor, view) :]


def _place(root: int, path: str) -> tuple[int, str]:
    """Descriptor of the directory that a file at `path` is in, and its name there; links are followed.

    Raises OSError (EISDIR) for a path that can only be a directory.
    """
    for _ in range(_MOST_LINKS):
        above, name = os.path.split(path)
        if name in ("", ".", ".."):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        directory = open_beneath(root, above, os.O_PATH | os.O_DIRECTORY)
        try:
            link = os.readlink(name, dir_fd=directory)
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.ENOENT):  # no link, or nothing yet
                return directory, name
            os.close(directory)
            raise
        os.close(directory)
        path = os.path.join(above, link)  # noqa: PTH118
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)

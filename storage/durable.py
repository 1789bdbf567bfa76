"""Makes files and directory entries survive a power failure."""

import ctypes
import os
import secrets
from pathlib import Path

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_libc = ctypes.CDLL(None, use_errno=True)


def sync(path: os.PathLike[str] | str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_file_system(path: os.PathLike[str] | str) -> None:
    """Sync all that was written on the file system of `path`: one wait for many files. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        if _libc.syncfs(descriptor):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), os.fspath(path))
    finally:
        os.close(descriptor)


def write_whole(directory: Path, name: str, data: bytes, *, durable: bool = True) -> None:
    """Write a file atomically, in a directory that is made if missing. One that is not durable is so after
    `sync_file_system`."""
    temporary = directory / f".{name[:64]}.{secrets.token_hex(8)}"
    try:
        descriptor = os.open(temporary, _NEW, 0o666)
    except FileNotFoundError:
        directory.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(temporary, _NEW, 0o666)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            if durable:
                file.flush()
                os.fsync(descriptor)
        temporary.rename(directory / name)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if durable:
        sync(directory)

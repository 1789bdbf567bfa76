"""Makes files and directory entries survive a power failure."""

import os
import secrets
from pathlib import Path


def sync(path: os.PathLike[str] | str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_whole(directory: Path, name: str, data: bytes) -> None:
    """Write a durable file atomically, in a directory that is made if missing."""
    directory.mkdir(parents=True, exist_ok=True)
    temporary = directory / f".{name[:64]}.{secrets.token_hex(8)}"
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(directory / name)
    finally:
        temporary.unlink(missing_ok=True)
    sync(directory)

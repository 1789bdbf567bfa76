"""Packs the files of a program reproducibly: equal files give equal bytes, so the digest names them.

Used where the archive is made and where files from it are checked. Imports only the standard library.
"""

import hashlib
import os
import re
import shutil
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

PLACE = "/opt/orchard/programs"
"""Directory of all layers in a sandbox; each has a directory of its own in it, of the program's name."""
COMMANDS = "commands"
"""Directory of a layer with links to its programs that users start."""
NAME = re.compile(r"orchard-program/([^:]+):(.+)-([0-9a-f]{64})")
"""Name of a layer at the sandbox service: program, version, digest."""
_PIECE = 1 << 20


class LayerDiffers(Exception):
    pass


def pack(files: Path, write: Callable[[bytes], object]) -> str:
    """Write the directory `files`, placed at PLACE, to `write` as a tar archive; returns its SHA-256.

    Owners are root, dates are 1970, and modes are only executable or not, so nothing else of the file system
    matters.
    """
    hashing: Any = _Hashing(write)
    with tarfile.open(fileobj=hashing, mode="w|", format=tarfile.PAX_FORMAT, bufsize=_PIECE) as tar:
        for above in reversed(Path(PLACE.lstrip("/")).parents[:-1]):
            tar.addfile(_member(above.as_posix(), tarfile.DIRTYPE))
        _add(tar, files, PLACE.lstrip("/"))
    return str(hashing.hash.hexdigest())


def copy(files: Path, target: Path, digest: str) -> None:
    """Replace the contents of the directory `target` by a copy of `files` and compare the copy with `digest`.

    Raises LayerDiffers and OSError.
    """
    for old in target.iterdir():
        if old.is_dir() and not old.is_symlink():
            shutil.rmtree(old)
        else:
            old.unlink()
    if files.is_dir():
        shutil.copytree(files, target, symlinks=True, dirs_exist_ok=True, copy_function=_copy)
    found = pack(target, lambda _: None)
    if found != digest:
        raise LayerDiffers(
            f"the image has other files in {PLACE} than the name of the layer says ({found} in place of "
            f"{digest}): push the archive that `orchard harness install --archive` wrote"
        )


class _Hashing:
    def __init__(self, write: Callable[[bytes], object]) -> None:
        self._write = write
        self.hash = hashlib.sha256()

    def write(self, data: bytes) -> int:
        self.hash.update(data)
        self._write(data)
        return len(data)


def _add(tar: tarfile.TarFile, directory: Path, name: str) -> None:
    tar.addfile(_member(name, tarfile.DIRTYPE))
    for path, inside in _below(directory, name):
        if path.is_symlink():
            member = _member(inside, tarfile.SYMTYPE)
            member.linkname = str(path.readlink())
            tar.addfile(member)
        elif path.is_dir():
            tar.addfile(_member(inside, tarfile.DIRTYPE))
        elif path.is_file():
            member = _member(inside, tarfile.REGTYPE)
            member.size, member.mode = path.stat().st_size, _mode(path)
            with path.open("rb") as content:
                tar.addfile(member, content)
        tar.members = []  # type: ignore[attr-defined]  # or it keeps them all


def _below(directory: Path, name: str) -> Iterator[tuple[Path, str]]:
    """Walk a directory in a reproducible order; yields paths and archive names."""
    for path in sorted(directory.iterdir()):
        yield path, f"{name}/{path.name}"
        if path.is_dir() and not path.is_symlink():
            yield from _below(path, f"{name}/{path.name}")


def _member(name: str, kind: bytes) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.mode = kind, 0o755
    return member


def _mode(path: Path) -> int:
    return 0o755 if os.access(path, os.X_OK) else 0o644


def _copy(source: str, target: str) -> None:
    """Copy content and executability; drops set-user-ID bits, which the digest does not cover."""
    shutil.copyfile(source, target)
    Path(target).chmod(_mode(Path(source)))

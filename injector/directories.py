"""Packs a local directory as a tar archive, and unpacks an untrusted archive from a sandbox."""

import errno
import os
import shutil
import stat
import tarfile
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO

from orchard.injector.errors import SandboxRequestInvalid

IN_MEMORY = 8 * 1024 * 1024
"""Bytes of an archive beyond which it is kept on disk."""


def temporary() -> IO[bytes]:
    return tempfile.SpooledTemporaryFile(IN_MEMORY)


def pack(directory: Path, target: IO[bytes]) -> None:
    """Write the contents of `directory` to `target`, with relative names.

    Owners become 0, sockets and devices are left out. Raises SandboxRequestInvalid when it is no directory.
    """
    if not directory.is_dir():
        raise SandboxRequestInvalid(f"{directory} is not a directory of this machine")
    with tarfile.open(fileobj=target, mode="w", format=tarfile.PAX_FORMAT) as archive:
        archive.add(directory, arcname=".", filter=_ownerless)


def _ownerless(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    if entry.isdev() and not entry.isfifo():
        return None
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


def unpack(source: IO[bytes], directory: Path) -> list[str]:
    """Unpack the archive into `directory`, which is made if missing; returns the names left out.

    Nothing is written through a link: links of the archive are made last, and an existing one in the way is
    replaced by a file and refused as a directory. Left out are links that could lead out of the directory,
    and special files. Nothing becomes set-user-ID. Raises SandboxRequestInvalid for names that lead out or
    are too long, and for an incomplete archive; earlier entries then stay in place.
    """
    source.seek(0)
    directory.mkdir(parents=True, exist_ok=True)
    try:
        with tarfile.open(fileobj=source, mode="r:") as archive:
            return _unpack(archive, directory)
    except tarfile.TarError as error:
        raise SandboxRequestInvalid(f"the sandbox sent no whole archive: {error}") from error
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        raise SandboxRequestInvalid("the directory has a path that is too long for this machine") from error


def _unpack(archive: tarfile.TarFile, directory: Path) -> list[str]:
    left_out: list[str] = []
    links: list[tuple[Path, str]] = []
    modes: list[tuple[Path, tarfile.TarInfo]] = []
    for entry in archive:
        parts = _parts(entry.name)
        place = directory.joinpath(*parts)
        if entry.isdir():
            _make_directories(directory, parts)
            modes.append((place, entry))
            continue
        if not parts:
            raise SandboxRequestInvalid(f"`{entry.name}` can only be the name of a directory")
        _make_directories(directory, parts[:-1])
        if entry.issym() and _stays_inside(len(parts) - 1, entry.linkname):
            links.append((place, entry.linkname))
        elif entry.islnk():
            first = directory.joinpath(*_parts(entry.linkname))
            _clear(place)
            if not _is(first, stat.S_ISREG):
                raise SandboxRequestInvalid(f"`{entry.name}` is a link to what was not in the archive before")
            os.link(first, place)
        elif entry.isreg():
            _clear(place)
            content = archive.extractfile(entry)
            assert content is not None, "a regular file has content"
            with place.open("xb") as target:
                shutil.copyfileobj(content, target, 1 << 20)
            modes.append((place, entry))
        else:
            left_out.append(entry.name)
    for place, target_name in links:
        _clear(place)
        place.symlink_to(target_name)
    _finish(modes)
    return left_out


def _finish(modes: Iterable[tuple[Path, tarfile.TarInfo]]) -> None:
    """Set modes and times last and innermost first: unpacking into a directory needs and changes its own."""
    for place, entry in sorted(modes, key=lambda pair: len(pair[0].parts), reverse=True):
        if _is(place, stat.S_ISLNK):
            continue  # a later entry took its place
        place.chmod(entry.mode & 0o777)
        os.utime(place, (entry.mtime, entry.mtime))


def _parts(name: str) -> list[str]:
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/") or ".." in parts or "\0" in name:
        raise SandboxRequestInvalid(f"`{name}` leads out of the directory")
    return parts


def _stays_inside(depth: int, target: str) -> bool:
    """Whether a link `depth` directories down can only lead inside, whatever links it passes."""
    parts = [part for part in target.split("/") if part not in ("", ".")]
    climbs = next((index for index, part in enumerate(parts) if part != ".."), len(parts))
    return not target.startswith("/") and climbs <= depth and ".." not in parts[climbs:]


def _make_directories(directory: Path, parts: list[str]) -> None:
    place = directory
    for part in parts:
        place = place / part
        if not _is(place, stat.S_ISDIR):
            try:
                place.mkdir()
            except FileExistsError:
                raise SandboxRequestInvalid(f"{place} is in the way of a directory") from None


def _clear(place: Path) -> None:
    if _is(place, stat.S_ISDIR):
        raise SandboxRequestInvalid(f"{place} is a directory, and in the way of a file")
    place.unlink(missing_ok=True)


def _is(place: Path, kind: Callable[[int], bool]) -> bool:
    try:
        return kind(place.lstat().st_mode)
    except FileNotFoundError:
        return False

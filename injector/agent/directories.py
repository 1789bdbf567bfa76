"""Directories of a sandbox as tar streams, packed and unpacked from outside it: no entry can lead out.

Packing keeps names, contents, modes, owners, whole seconds of modification times, links of both kinds, and
named pipes. Sockets and devices are left out; /proc, /sys and control groups are empty directories. A file
that changes while it is read has the length it had at first. All functions block; call them in a thread.
"""

import errno
import io
import os
import stat
import tarfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from orchard.injector.agent.errors import AgentError, RequestInvalid, TooLarge
from orchard.injector.agent.files import (
    CHUNK,
    KERNEL_INTERFACES,
    MOST_ENTRIES,
    make_directory,
    opened_directory,
)
from orchard.injector.agent.kernel import RESOLVE_BENEATH, RESOLVE_NO_SYMLINKS, filesystem_type, open_at

_HEADER_LIMIT = 1 << 20
"""Bytes of one entry's extended header, which is read into memory."""
_DEEPEST = 200
"""Levels of nested directories; each costs one open descriptor while the innermost is read."""
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_INSIDE = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS


class Writable(Protocol):
    def write(self, data: bytes, /) -> Any: ...


class Readable(Protocol):
    def read(self, size: int, /) -> bytes | None: ...


def pack(directory: int, target: Writable) -> None:
    """Write the open directory to `target` as a tar archive of relative names.

    Raises OSError when something cannot be read; the archive then lacks its end marker.
    """
    stream: Any = target
    with tarfile.open(fileobj=stream, mode="w|", bufsize=CHUNK, format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(_described(".", os.fstat(directory)))
        _pack_below(archive, directory, "", {})


def insist_packable(directory: int, depth: int = 0) -> None:
    """Raise TooLarge for a tree that is too deep or has a directory with too many entries.

    Checked before packing, because an archive that has begun could only be broken off.
    """
    if filesystem_type(directory) in KERNEL_INTERFACES:
        return
    if depth > _DEEPEST:
        raise TooLarge(f"the directory has more than {_DEEPEST} levels: take one below it")
    below = []
    with os.scandir(directory) as entries:
        for number, entry in enumerate(entries):
            if number == MOST_ENTRIES:
                raise TooLarge(f"a directory in it has more than {MOST_ENTRIES} entries: pack it with exec")
            if entry.is_dir(follow_symlinks=False):
                below.append(entry.name)
    for name in below:
        with suppress(OSError):  # it is gone or another thing by now, or cannot be read: packing says so
            inner = os.open(name, _DIRECTORY, dir_fd=directory)
            try:
                insist_packable(inner, depth + 1)
            finally:
                os.close(inner)


def _pack_below(
    archive: tarfile.TarFile, directory: int, prefix: str, linked: dict[tuple[int, int], str]
) -> None:
    if filesystem_type(directory) in KERNEL_INTERFACES:
        return
    if prefix.count("/") > _DEEPEST:
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), prefix)
    with os.scandir(directory) as entries:
        names = sorted(entry.name for entry in islice(entries, MOST_ENTRIES + 1))
    if len(names) > MOST_ENTRIES:
        raise OSError(errno.EFBIG, f"more than {MOST_ENTRIES} entries", prefix)
    for name in names:
        # What was removed since it was listed is left out.
        with suppress(FileNotFoundError):
            _pack_entry(archive, directory, name, f"{prefix}{name}", linked)
        archive.members = []  # type: ignore[attr-defined]  # or it keeps them all


def _pack_entry(
    archive: tarfile.TarFile, directory: int, name: str, full: str, linked: dict[tuple[int, int], str]
) -> None:
    status = os.stat(name, dir_fd=directory, follow_symlinks=False)
    info = _described(full, status)
    if stat.S_ISDIR(status.st_mode):
        below = os.open(name, _DIRECTORY, dir_fd=directory)
        try:
            archive.addfile(info)
            _pack_below(archive, below, f"{full}/", linked)
        finally:
            os.close(below)
    elif stat.S_ISLNK(status.st_mode):
        info.linkname = os.readlink(name, dir_fd=directory)
        archive.addfile(info)
    elif stat.S_ISFIFO(status.st_mode):
        archive.addfile(info)
    elif stat.S_ISREG(status.st_mode):
        first = linked.get((status.st_dev, status.st_ino))
        if first is not None:
            info.type, info.size, info.linkname = tarfile.LNKTYPE, 0, first
            archive.addfile(info)
            return
        # What is there by now may be another thing: a pipe must not hold us, a link not lead us away.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with os.fdopen(os.open(name, flags, dir_fd=directory), "rb", buffering=0) as source:
            opened = os.fstat(source.fileno())
            if not stat.S_ISREG(opened.st_mode):
                return
            info = _described(full, opened)
            archive.addfile(info, _Exactly(source, opened.st_size))  # type: ignore[arg-type]
        if status.st_nlink > 1:
            linked[status.st_dev, status.st_ino] = full


def _described(name: str, status: os.stat_result) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.mode = status.st_mode & 0o7777
    info.uid, info.gid = status.st_uid, status.st_gid
    info.mtime = int(status.st_mtime)
    for is_kind, kind in _KINDS:
        if is_kind(status.st_mode):
            info.type = kind
    if info.isreg():
        info.size = status.st_size
    return info


_KINDS = (
    (stat.S_ISREG, tarfile.REGTYPE),
    (stat.S_ISDIR, tarfile.DIRTYPE),
    (stat.S_ISLNK, tarfile.SYMTYPE),
    (stat.S_ISFIFO, tarfile.FIFOTYPE),
)


class _Exactly:
    """A file cut or filled with zeros to a promised length, should it change while it is read."""

    def __init__(self, source: io.FileIO, size: int) -> None:
        self._source = source
        self._left = size

    def read(self, size: int) -> bytes:
        wanted = min(size, self._left)
        data = self._source.read(wanted) or b""
        self._left -= wanted
        return data + bytes(wanted - len(data))


@dataclass
class Unpacked:
    entries: int = 0
    size: int = 0
    directories: list[tuple[str, tarfile.TarInfo]] = field(default_factory=list)
    """Directories whose modes and times are set last: one may be read-only, and unpacking into it changes its
    time."""


def unpack(root: int, path: str, source: Readable) -> Unpacked:
    """Unpack a tar archive (not compressed) into the directory at `path`, which is made if missing.

    A file or link in the way of a file is replaced; a directory is not. No link is followed. Raises
    RequestInvalid, naming the entry, for absolute names, `..`, entries below a link, hard links that lead
    outside, devices, and data that is no archive. Earlier entries then stay in place.
    """
    make_directory(root, path)
    done = Unpacked()
    with opened_directory(root, path) as directory:
        try:
            stream: Any = source
            with tarfile.open(fileobj=stream, mode="r|", bufsize=CHUNK, tarinfo=_Entry) as archive:
                for entry in archive:
                    _unpack_entry(archive, entry, directory, done)
                    archive.members = []  # type: ignore[attr-defined]  # or it keeps them all
        except tarfile.TarError as error:
            raise RequestInvalid(f"no tar archive, or cut short: {error}") from error
        for name, entry in reversed(done.directories):
            with _explained(entry), _opened(directory, name) as made:
                _own(entry, made)
                os.fchmod(made, entry.mode & 0o7777)
                os.utime(made, (entry.mtime, entry.mtime))
    return done


class _Entry(tarfile.TarInfo):
    """Refuses extended headers over `_HEADER_LIMIT` and sparse files."""

    def _proc_member(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
        extended = (
            tarfile.XHDTYPE,
            tarfile.XGLTYPE,
            tarfile.SOLARIS_XHDTYPE,
            tarfile.GNUTYPE_LONGNAME,
            tarfile.GNUTYPE_LONGLINK,
        )
        if self.type in extended and self.size > _HEADER_LIMIT:
            raise RequestInvalid(f"the archive has an extended header of {self.size} bytes")
        if self.type == tarfile.GNUTYPE_SPARSE:
            raise RequestInvalid(
                f"entry `{self.name}`: sparse files are not supported; pack without --sparse"
            )
        return super()._proc_member(archive)  # type: ignore[misc, no-any-return]


def _unpack_entry(archive: tarfile.TarFile, entry: tarfile.TarInfo, directory: int, done: Unpacked) -> None:
    name = _inside(entry.name, entry)
    above, _, last = name.rpartition("/")
    with _explained(entry):
        if entry.isdir():
            if name:
                _make_directories(directory, name)
            done.directories.append((name or ".", entry))
        elif not last:
            raise RequestInvalid(f"entry `{entry.name}`: only a directory can have this name")
        else:
            if above:
                _make_directories(directory, above)
            with _opened(directory, above or ".") as parent:
                done.size += _place(archive, entry, directory, parent, last)
        done.entries += 1


def _place(archive: tarfile.TarFile, entry: tarfile.TarInfo, directory: int, parent: int, name: str) -> int:
    if entry.isdev() and not entry.isfifo():
        raise RequestInvalid(f"entry `{entry.name}`: devices cannot be unpacked")
    if entry.isreg() and entry.sparse is not None:
        raise RequestInvalid(f"entry `{entry.name}`: sparse files are not supported; pack without --sparse")
    if entry.islnk():
        above, _, last = _inside(entry.linkname, entry).rpartition("/")
        with _opened(directory, above or ".") as source:
            os.stat(last, dir_fd=source, follow_symlinks=False)  # before what is in the way is removed
            _clear(parent, name)
            os.link(last, name, src_dir_fd=source, dst_dir_fd=parent, follow_symlinks=False)
        return 0
    _clear(parent, name)
    if entry.issym():
        os.symlink(entry.linkname, name, dir_fd=parent)
    elif entry.isfifo():
        os.mkfifo(name, 0o600, dir_fd=parent)
        _set_mode(parent, name, entry.mode & 0o7777)
    elif entry.isreg():
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(name, flags, 0o600, dir_fd=parent), "wb", buffering=CHUNK) as target:
            for piece in _content(archive, entry):
                target.write(piece)  # raw, one that the disk has no room for could end early in silence
            target.flush()
            _own(entry, target.fileno())
            os.fchmod(target.fileno(), entry.mode & 0o7777)
            os.utime(target.fileno(), (entry.mtime, entry.mtime))
        return entry.size
    else:
        raise RequestInvalid(f"entry `{entry.name}` is of a kind that cannot be unpacked")
    _own(entry, name, parent)
    os.utime(name, (entry.mtime, entry.mtime), dir_fd=parent, follow_symlinks=False)
    return 0


def _content(archive: tarfile.TarFile, entry: tarfile.TarInfo) -> Iterator[memoryview]:
    source = archive.extractfile(entry)
    assert source is not None
    while piece := source.read(CHUNK):
        yield memoryview(piece)


def _own(entry: tarfile.TarInfo, place: int | str, directory: int | None = None) -> None:
    """Set the owner; does nothing without root, or for an owner that the user namespace lacks."""
    if os.geteuid() != 0:
        return
    try:
        os.chown(place, entry.uid, entry.gid, dir_fd=directory, follow_symlinks=isinstance(place, int))
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise


def _set_mode(parent: int, name: str, mode: int) -> None:
    """Set the mode by descriptor, because the name may be a link by now."""
    fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        if not stat.S_ISLNK(os.fstat(fd).st_mode):
            Path(f"/proc/self/fd/{fd}").chmod(mode)
    finally:
        os.close(fd)


def _clear(parent: int, name: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=parent)


def _make_directories(directory: int, path: str) -> None:
    made = ""
    for part in path.split("/"):
        with _opened(directory, made or ".") as parent, suppress(FileExistsError):
            os.mkdir(part, 0o755, dir_fd=parent)
        made = f"{made}/{part}" if made else part
    with _opened(directory, made):
        pass  # there is a directory, and no link, by this name


class _opened:
    """Opens a directory inside another one without following any link."""

    def __init__(self, directory: int, path: str) -> None:
        self._fd = open_at(directory, path, _DIRECTORY, _INSIDE)

    def __enter__(self) -> int:
        return self._fd

    def __exit__(self, *_: Any) -> None:
        os.close(self._fd)


def _inside(name: str, entry: tarfile.TarInfo) -> str:
    """Normalize a name. Raises RequestInvalid when it leads outside."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/") or ".." in parts or "\0" in name:
        raise RequestInvalid(f"entry `{entry.name}` leads out of the directory (`{name}`)")
    return "/".join(parts)


class _explained:
    """Translates OSErrors into agent errors that name the entry."""

    def __init__(self, entry: tarfile.TarInfo) -> None:
        self._entry = entry

    def __enter__(self) -> None:
        return

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if not isinstance(error, OSError):
            return
        if error.errno in (errno.ELOOP, errno.EXDEV, errno.ENOTDIR):
            raise RequestInvalid(
                f"entry `{self._entry.name}` leads through a link, or through a file"
            ) from error
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS):
            raise AgentError(
                f"entry `{self._entry.name}`: {error.strerror}", reason="write_failed"
            ) from error
        raise RequestInvalid(f"entry `{self._entry.name}`: {error.strerror}") from error

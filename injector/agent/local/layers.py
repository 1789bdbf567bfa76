"""Unpacks a layer of an image, an untrusted tar archive, into a directory that overlayfs can use.

Every path is resolved with the directory as its root, whatever links the archive made before; whiteouts
become those of overlayfs.
"""

import errno
import gzip
import hashlib
import os
import shutil
import stat
import sys
import tarfile
import zlib
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

from orchard.injector.agent.errors import RequestInvalid
from orchard.injector.agent.kernel import open_beneath
from orchard.injector.agent.local import user_namespace
from orchard.injector.agent.local.overlay import make_opaque, make_whiteout

WHITEOUT = ".wh."
OPAQUE_MARK = ".wh..wh..opq"
AUFS_MARK = ".wh..wh."
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY


class SizeBudget:
    """Counts down the bytes that the layers of one image may still take."""

    def __init__(self, limit: int) -> None:
        self._limit = self._left = limit

    def take(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise RequestInvalid(
                f"the image has more than {self._limit} bytes: raise ORCHARD_IMAGE_LIMIT, or "
                "use a smaller one",
                reason="image_too_large",
            )


class _Hashing:
    def __init__(self, source: IO[bytes], room: SizeBudget | None = None) -> None:
        self._source = source
        self._room = room
        self._hash = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        data = self._source.read(size)
        if self._room is not None:
            self._room.take(len(data))
        self._hash.update(data)
        return data

    def rest(self) -> str:
        """Read to the end; returns the digest of everything."""
        while self.read(1 << 20):
            pass
        return f"sha256:{self._hash.hexdigest()}"


def unpack(blob: BinaryIO, target: Path, *, digest: str | None, diff_id: str, room: SizeBudget) -> None:
    """Unpack the layer `blob` (a tar, plain or compressed by gzip or zstd) into the new directory `target`.

    `digest` is the blob's, where its format states one, `diff_id` the tar's. Raises RequestInvalid when they
    do not match, for members that lead out of the image, and for more than there is `room` for.
    """
    raw = _Hashing(blob)
    magic = blob.read(4)
    blob.seek(0)
    plain = _Hashing(_decompressed(raw, magic), room)
    target.mkdir(mode=0o755)
    root = os.open(target, _DIRECTORY | os.O_CLOEXEC)
    try:
        with tarfile.open(fileobj=plain, mode="r|") as archive:  # type: ignore[call-overload]
            for member in archive:
                if member.issparse():  # its holes are no bytes of the archive
                    room.take(member.size)
                _place(archive, member, root)
        found = plain.rest()
        if found != diff_id:
            raise RequestInvalid(
                f"a layer has the digest {found} in place of {diff_id}: fetch the image again"
            )
        if digest is not None and (found := raw.rest()) != digest:
            raise RequestInvalid(
                f"a layer has the digest {found} in place of {digest}: fetch the image again"
            )
    except (tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError, ValueError, OverflowError) as error:
        raise RequestInvalid(
            f"a layer is no tar archive or is cut short ({error}): fetch the image again"
        ) from error
    finally:
        os.close(root)


def _decompressed(source: _Hashing, magic: bytes) -> IO[bytes]:
    stream: Any = source
    if magic[:2] == _GZIP:
        return cast(IO[bytes], gzip.GzipFile(fileobj=stream))
    return _unzstd(stream) if magic == _ZSTD else stream


def _unzstd(stream: Any) -> IO[bytes]:
    # Not of the standard library before Python 3.14, and only here: the agent of a Pod has no images.
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd

    class Reading(zstd.ZstdFile):
        def read(self, size: int | None = -1) -> bytes:
            try:
                return super().read(size)
            except zstd.ZstdError as error:
                raise EOFError(error) from error

    return cast(IO[bytes], Reading(stream))


def _place(archive: tarfile.TarFile, member: tarfile.TarInfo, root: int) -> None:
    path = _checked(member.name)
    if not path:
        os.fchmod(root, member.mode & 0o7777)
        return
    parent_path, _, name = path.rpartition("/")
    parent = _open_parent(root, parent_path, member.name)
    try:
        if name == OPAQUE_MARK:
            make_opaque(parent)
        elif name.startswith(AUFS_MARK):
            return
        elif name.startswith(WHITEOUT):
            _hide(parent, name.removeprefix(WHITEOUT))
        else:
            _make(archive, member, root, parent, name)
    finally:
        os.close(parent)


def _make(archive: tarfile.TarFile, member: tarfile.TarInfo, root: int, parent: int, name: str) -> None:
    hidden = _clear(parent, name, keep_directory=member.isdir())
    if member.islnk():
        _link(member, root, parent, name)
        return
    if member.isdir():
        if not _is_directory(parent, name):
            os.mkdir(name, dir_fd=parent)
        if hidden:
            _open_and(make_opaque, parent, name)
    elif member.isreg():
        _copy(archive, member, parent, name)
    elif member.issym():
        os.symlink(member.linkname, name, dir_fd=parent)
    elif member.isfifo():
        os.mkfifo(name, dir_fd=parent)
    else:
        return  # devices: sandboxes have their own /dev and could not open these
    _describe(member, parent, name)


def _copy(archive: tarfile.TarFile, member: tarfile.TarInfo, parent: int, name: str) -> None:
    source = archive.extractfile(member)
    assert source is not None
    fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=parent)
    with os.fdopen(fd, "wb") as target:
        shutil.copyfileobj(source, target, 1 << 20)


def _describe(member: tarfile.TarInfo, parent: int, name: str) -> None:
    try:
        os.chown(name, member.uid, member.gid, dir_fd=parent, follow_symlinks=False)
    except OSError as error:
        # A user namespace of one id has no other owners.
        if error.errno != errno.EINVAL or not user_namespace.inside():
            raise
    if not member.issym():
        os.chmod(name, member.mode & 0o7777, dir_fd=parent)
    os.utime(name, (member.mtime, member.mtime), dir_fd=parent, follow_symlinks=False)


def _link(member: tarfile.TarInfo, root: int, parent: int, name: str) -> None:
    source_parent, _, source_name = _checked(member.linkname).rpartition("/")
    source = _open_parent(root, source_parent, member.linkname)
    try:
        os.link(source_name, name, src_dir_fd=source, dst_dir_fd=parent, follow_symlinks=False)
    except OSError as error:
        raise RequestInvalid(
            f"the layer's member `{member.name}` links to `{member.linkname}`, which it does not have"
        ) from error
    finally:
        os.close(source)


def _checked(name: str) -> str:
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts or "\0" in name:
        raise RequestInvalid(f"the layer's member `{name}` leads out of the image")
    return "/".join(parts)


def _open_parent(root: int, path: str, member: str) -> int:
    """Open a directory of the layer, made if missing; links stay inside the layer."""
    try:
        return open_beneath(root, path or ".", _DIRECTORY)
    except FileNotFoundError:
        above, _, name = path.rpartition("/")
        parent = _open_parent(root, above, member)
        try:
            _clear(parent, name, keep_directory=True)
            os.mkdir(name, 0o755, dir_fd=parent)
        except FileExistsError as error:
            raise RequestInvalid(f"the layer's member `{member}` leads through a broken link") from error
        finally:
            os.close(parent)
        return open_beneath(root, path, _DIRECTORY)
    except OSError as error:
        if error.errno not in (errno.ENOTDIR, errno.ELOOP):
            raise
        raise RequestInvalid(
            f"the layer's member `{member}` leads through something that is no directory"
        ) from error


def _hide(parent: int, name: str) -> None:
    """Make a whiteout; what this layer itself has at the name stays, without its contents below."""
    mode = _mode(parent, name)
    if mode is None:
        make_whiteout(name, parent)
    elif stat.S_ISDIR(mode):
        _open_and(make_opaque, parent, name)


def _clear(parent: int, name: str, *, keep_directory: bool) -> bool:
    """Remove what is in the way of a member. Returns whether that was a whiteout."""
    mode = _mode(parent, name)
    if mode is None or (keep_directory and (stat.S_ISDIR(mode) or stat.S_ISLNK(mode))):
        return False
    if stat.S_ISDIR(mode):
        shutil.rmtree(name, dir_fd=parent)
    else:
        os.unlink(name, dir_fd=parent)
    return stat.S_ISCHR(mode)


def _mode(parent: int, name: str) -> int | None:
    try:
        return os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return None


def _is_directory(parent: int, name: str) -> bool:
    mode = _mode(parent, name)
    return mode is not None and stat.S_ISDIR(mode)


def _open_and(change: object, parent: int, name: str) -> None:
    fd = os.open(name, _DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        change(fd)  # type: ignore[operator]
    finally:
        os.close(fd)

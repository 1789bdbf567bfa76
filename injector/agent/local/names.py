"""Adds a sandbox's own host name to its /etc/hosts, for programs that look it up.

The file is in the topmost read-only layer: the image's text, and a line for the name. So it can be changed,
replaced and removed like any other, and does not count among a sandbox's changes.
"""

import errno
import os
import stat
from collections.abc import Sequence
from pathlib import Path

from orchard.injector.agent.kernel import RESOLVE_BENEATH, RESOLVE_NO_SYMLINKS, open_at
from orchard.injector.agent.local.overlay import is_opaque

MOST = 16 << 20
"""Bytes of an image's /etc/hosts to which a line is added; a larger one stays as it is."""
_INSIDE = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS
_ETC = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_OTHER = (errno.ENOTDIR, errno.ELOOP, errno.ENXIO, errno.EACCES, errno.EPERM, errno.EFBIG)
"""Errors for what is no directory or no file (a link, a device, a whiteout), or is too large."""


def host_name(sandbox_id: str) -> str:
    return f"sandbox-{sandbox_id}"


def line(sandbox_id: str) -> str:
    return f"127.0.0.1 {host_name(sandbox_id)}\n"


def with_own_name(layers: Sequence[Path], place: Path, sandbox_id: str) -> list[Path]:
    """Return `layers` (topmost first) below a new one made at `place`.

    Returns just `layers` if the image's /etc/hosts is no file, has more than MOST bytes, or was removed.
    """
    found = _etc(layers)
    if found is None:
        return list(layers)
    content, status = found
    etc = f"{place}/etc"
    os.mkdir(place)  # noqa: PTH102
    os.mkdir(etc)  # noqa: PTH102
    hosts = os.open(f"{etc}/hosts", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    with open(hosts, "wb", buffering=0) as file:  # noqa: PTH123
        os.fchmod(hosts, 0o644)
        end = b"" if content.endswith(b"\n") or not content else b"\n"
        left = memoryview(content + end + line(sandbox_id).encode())
        while left:
            left = left[file.write(left) :]
    os.chown(etc, status.st_uid, status.st_gid)
    os.chmod(etc, stat.S_IMODE(status.st_mode))  # noqa: PTH101 - this layer's is the one that is seen
    return [place, *layers]


def _etc(layers: Sequence[Path]) -> tuple[bytes, os.stat_result] | None:
    """Return the content of /etc/hosts across the layers, and the status of /etc."""
    seen: os.stat_result | None = None
    for layer in layers:
        top = os.open(layer, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            etc = open_at(top, "etc", _ETC, _INSIDE)
        except FileNotFoundError:
            continue
        except OSError as error:
            if error.errno in _OTHER:
                return None  # removed, or something of the image's own
            raise
        finally:
            os.close(top)
        try:
            seen = seen or os.fstat(etc)
            content = _content(etc)
            if content is not None or is_opaque(etc):
                return content or b"", seen
        except OSError as error:
            if error.errno in _OTHER:
                return None
            raise
        finally:
            os.close(etc)
    return None if seen is None else (b"", seen)


def _content(etc: int) -> bytes | None:
    """Read the file `hosts`; None if there is none. Raises OSError for what is no file, or too large."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        hosts = os.open("hosts", flags, dir_fd=etc)
    except FileNotFoundError:
        return None
    try:
        status = os.fstat(hosts)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.ENXIO, os.strerror(errno.ENXIO))
        if status.st_size > MOST:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        return os.read(hosts, MOST)
    finally:
        os.close(hosts)

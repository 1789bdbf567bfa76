"""Makes a layer that gives the machine's files new owners, for the image `host` of an ordinary user.

The machine's root has no id in a user namespace: nobody there may write into its directories, and overlayfs
cannot copy its files up. So the layer repeats every directory, and has for each regular file an empty one
with the machine's mode, size and times that names its content (overlayfs: `metacopy` and `redirect` over a
data-only layer). All of them belong to the user, who is root in the sandbox.

What the user may not read is left out: the file is missing, the directory is empty. So are other file systems
mounted below. Where the kernel lacks such files (before Linux 6.16), or memory for them, the layer has
directories only.
"""

import argparse
import errno
import os
import shutil
import signal
import stat
import sys
from pathlib import Path

from orchard.injector.agent import kernel
from orchard.injector.agent.local import overlay

FILES, DIRECTORIES = "files", "directories"
"""What `python -m orchard.injector.agent.local.metadata` prints: which of the two the layer has."""

_METACOPY, _REDIRECT = "user.overlay.metacopy", "user.overlay.redirect"
_PROBE = "content"


class Mirror:
    """Repeats the metadata of everything below `source`."""

    def __init__(self, source: Path, target: Path, *, files: bool) -> None:
        """`target` must not exist. `files`: whether to make files and links besides directories."""
        self._source = os.fspath(source)
        self._target = os.fspath(target)
        self._files = files
        self._mounted = _mount_points()

    def make(self) -> None:
        """Raises OSError (ENOSPC when memory runs out)."""
        self._directory("", os.lstat(self._source))

    def _directory(self, path: str, status: os.stat_result) -> None:
        target = self._target + path
        os.mkdir(target, 0o700)  # noqa: PTH102 - a hundred thousand of them
        names = _names(self._source + path)
        if names is None:
            os.setxattr(target, overlay.opaque(), b"y")  # else nobody finds anything in it
        elif not path or self._source + path not in self._mounted:
            for name in names:
                self._entry(f"{path}/{name}")
        os.chmod(target, stat.S_IMODE(status.st_mode))  # noqa: PTH101
        os.utime(target, ns=(status.st_mtime_ns, status.st_mtime_ns))

    def _entry(self, path: str) -> None:
        source = self._source + path
        try:
            status = os.lstat(source)
            if stat.S_ISDIR(status.st_mode):
                self._directory(path, status)
            elif not self._files:
                return
            elif stat.S_ISLNK(status.st_mode):
                os.symlink(os.readlink(source), self._target + path)  # noqa: PTH115, PTH211
            elif stat.S_ISREG(status.st_mode) and source not in self._mounted and os.access(source, os.R_OK):
                self._file(path, status)
        except FileNotFoundError:
            return  # removed meanwhile

    def _file(self, path: str, status: os.stat_result) -> None:
        fd = os.open(self._target + path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            if status.st_size:
                os.ftruncate(fd, status.st_size)
                os.setxattr(fd, _METACOPY, b"")
                os.setxattr(fd, _REDIRECT, os.fsencode(path))
            os.fchmod(fd, stat.S_IMODE(status.st_mode))
            os.utime(fd, ns=(status.st_mtime_ns, status.st_mtime_ns))
        finally:
            os.close(fd)


def _names(directory: str) -> list[str] | None:
    """List a directory; None when this user may not list or enter it."""
    try:
        return os.listdir(directory) if os.access(directory, os.X_OK) else None  # noqa: PTH208
    except PermissionError:
        return None


def _mount_points() -> set[str]:
    """List the mount points, below which overlayfs does not look."""
    lines = Path("/proc/self/mountinfo").read_bytes().splitlines()
    return {os.fsdecode(line.split()[4].decode("unicode_escape").encode("latin-1")) for line in lines}


def _supported(place: Path) -> bool:
    """Whether a user's overlay finds the content of such files here. Makes the directory `place`."""
    data, empty, layer, point = (place / name for name in ("data", "empty", "layer", "point"))
    for directory in (place, data, empty, point):
        directory.mkdir()
    (data / _PROBE).write_text(_PROBE)
    try:
        Mirror(data, layer, files=True).make()
        overlay.mount(point, [empty, layer], data=[data])  # content is looked for only below the last layer
    except OSError:
        return False
    try:
        return (point / _PROBE).read_text() == _PROBE
    except OSError:
        return False
    finally:
        kernel.unmount(str(point))


def _make(source: Path, target: Path) -> str:
    probe = target.with_name("probe")
    files = _supported(probe)
    shutil.rmtree(probe)
    if files:
        try:
            Mirror(source, target, files=True).make()
            return FILES
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            shutil.rmtree(target)
    Mirror(source, target, files=False).make()
    return DIRECTORIES


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m orchard.injector.agent.local.metadata")
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    options = parser.parse_args()
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    try:
        print(_make(options.source, options.target))  # noqa: T201
    except OSError as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Takes snapshots of the workspace that an agent left, for its bundle."""

import base64
import fnmatch
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from orchard.schemas.claw import SnapshotFile

LARGEST_TREE = 64 * 1024 * 1024
"""Maximum bytes of a workspace; a larger one is not read."""
_LARGEST_FILE = 1024 * 1024
_LARGEST_WHOLE = 8 * 1024 * 1024
_MOST_FILES = 2000


def take_snapshot(root: Path, patterns: Sequence[str]) -> dict[str, SnapshotFile]:
    """Reads the files below `root` that match one of the patterns, in the order of their names. `*` matches
    slashes, too, and a pattern that begins with `**/` also matches at the top."""
    left = _LARGEST_WHOLE
    found: dict[str, SnapshotFile] = {}
    for path in _files(root):
        name = path.relative_to(root).as_posix()
        if not any(_matches(name, pattern) for pattern in patterns):
            continue
        if len(found) == _MOST_FILES:
            break
        found[_named(name)] = seen = _seen(path, left)
        left -= seen.size if not seen.omitted else 0
    return found


def _files(root: Path) -> Iterator[Path]:
    for directory, below, files in os.walk(root):
        below.sort()
        links = [name for name in below if (Path(directory) / name).is_symlink()]
        for name in {*below} - {*links}:
            (Path(directory) / name).chmod(0o700)  # the agent may have closed it, and this is a copy
        yield from (Path(directory) / name for name in sorted([*files, *links]))


def _matches(name: str, pattern: str) -> bool:
    return fnmatch.fnmatchcase(name, pattern) or (
        pattern.startswith("**/") and fnmatch.fnmatchcase(name, pattern[3:])
    )


def _named(name: str) -> str:
    """Replaces bytes in a name that JSON cannot represent."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _seen(path: Path, left: int) -> SnapshotFile:
    facts = path.lstat()
    if stat.S_ISLNK(facts.st_mode):
        return SnapshotFile(size=facts.st_size, omitted="link")
    if not stat.S_ISREG(facts.st_mode):
        return SnapshotFile(size=facts.st_size, omitted="special")
    executable = bool(facts.st_mode & 0o100)
    if facts.st_size > min(_LARGEST_FILE, left):
        return SnapshotFile(size=facts.st_size, omitted="too large", executable=executable)
    path.chmod(0o600)
    content = path.read_bytes()
    try:
        return SnapshotFile(size=len(content), text=content.decode(), executable=executable)
    except UnicodeDecodeError:
        encoded = base64.b64encode(content).decode()
        return SnapshotFile(size=len(content), base64=encoded, executable=executable)

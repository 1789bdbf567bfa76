"""Finds files of /etc that are as the distribution ships them, so that they reveal nothing of this machine.

Debian's package manager knows the digest of every configuration file that it installed; one that was changed
may hold a password or an address, and is left out.
"""

import hashlib
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

STATUS = Path("/var/lib/dpkg/status")
NEVER = frozenset({"apt", "cron.d", "pam.d", "security", "ssh", "sudoers", "sudoers.d", "systemd"})
"""Top-level names below /etc that say how this machine is run, and that no program of a sandbox needs."""
_LARGEST = 1 << 20
"""Bytes; larger files are no configuration."""
_LINE = re.compile(rb"^ (/etc/[^\n]+) ([0-9a-f]{32})$", re.MULTILINE)


def unchanged(status: Path = STATUS, root: Path = Path("/")) -> Iterator[Path]:
    """Yield paths relative to `root`/etc; none on a machine without dpkg."""
    try:
        listed = _LINE.findall(status.read_bytes())
    except OSError:
        return
    for name, digest in listed:
        path = Path(os.fsdecode(name)).relative_to("/etc")
        if (
            path.parts[0] not in NEVER
            and ".." not in path.parts
            and _has(root / "etc" / path, digest.decode())
        ):
            yield path


def _has(path: Path, digest: str) -> bool:
    """Whether it is a world-readable regular file with this content, reached through no symbolic link."""
    try:
        about = path.lstat()
        if not stat.S_ISREG(about.st_mode) or not about.st_mode & stat.S_IROTH or about.st_size > _LARGEST:
            return False
        if path.parent.resolve() != path.parent:
            return False
        return hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest() == digest
    except OSError:
        return False

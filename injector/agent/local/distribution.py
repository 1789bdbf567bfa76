"""Files of /etc that are as the distribution ships them: they tell nothing of this machine.

Debian's package manager knows the digest of every configuration file that it installed. One that somebody
changed may hold a password or an address, and is not among these.
"""

import hashlib
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

STATUS = Path("/var/lib/dpkg/status")
NEVER = frozenset({"apt", "cron.d", "pam.d", "security", "ssh", "sudoers", "sudoers.d", "systemd"})
"""First names below /etc of what says how this machine is run and no program of a sandbox needs."""
_LARGEST = 1 << 20
"""Bytes; larger ones are no configuration."""
_LINE = re.compile(rb"^ (/etc/[^\n]+) ([0-9a-f]{32})$", re.MULTILINE)


def unchanged(status: Path = STATUS, root: Path = Path("/")) -> Iterator[Path]:
    """Paths below `root`/etc, relative to it; none where there is no such package manager."""
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
    """Whether it is a regular file that everybody may read, with this content, on no detour."""
    try:
        about = path.lstat()
        if not stat.S_ISREG(about.st_mode) or not about.st_mode & stat.S_IROTH or about.st_size > _LARGEST:
            return False
        if path.parent.resolve() != path.parent:
            return False
        return hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest() == digest
    except OSError:
        return False

"""User namespaces: the agent of an ordinary user becomes root of one.

There it may mount overlays and make all other namespaces; outside it stays the user it was. With a range of
subordinate ids (`/etc/subuid`, `newuidmap`) a sandbox has all users that an image may name; without, only
root.
"""

import errno
import os
import pwd
import shutil
import subprocess
from functools import cache
from pathlib import Path

from orchard.injector.agent import kernel
from orchard.injector.agent.errors import MachineUnfit

_REFUSED = (
    "this user may not make user namespaces ({why}): run as root, or allow them with `sysctl -w "
    "user.max_user_namespaces=10000 kernel.unprivileged_userns_clone=1 "
    "kernel.apparmor_restrict_unprivileged_userns=0` (those of the three that the machine has), or use a "
    "sandbox service elsewhere (`--sandbox http://HOST:PORT`)"
)


@cache
def inside() -> bool:
    """Whether root here is not the machine's root; read once, and after `enter` again."""
    return Path("/proc/self/uid_map").read_text().split() != ["0", "0", "4294967295"]


def enter() -> None:
    """Become root of a new user namespace; call it before there are threads. Raises MachineUnfit."""
    user, group = os.geteuid(), os.getegid()
    ranges = _ranges(user)
    mapper = None if ranges is None else _Mapper(user, group, *ranges)
    try:
        kernel.unshare(kernel.CLONE_NEWUSER)
        inside.cache_clear()
        if mapper is not None and mapper.map():
            return
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1")
        Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EACCES, errno.ENOSPC, errno.EUSERS, errno.EINVAL):
            raise
        raise MachineUnfit(_REFUSED.format(why=error.strerror)) from error


def _ranges(user: int) -> tuple[str, str] | None:
    """First id and number of the subordinate users and groups, as arguments of `newuidmap`."""
    if shutil.which("newuidmap") is None or shutil.which("newgidmap") is None:
        return None
    try:
        names = {pwd.getpwuid(user).pw_name, str(user)}
    except KeyError:
        names = {str(user)}
    found = [_range(Path(path), names) for path in ("/etc/subuid", "/etc/subgid")]
    return None if found[0] is None or found[1] is None else (found[0], found[1])


def _range(path: Path, names: set[str]) -> str | None:
    if not path.exists():
        return None
    for line in path.read_text().splitlines():
        name, _, numbers = line.partition(":")
        first, _, count = numbers.partition(":")
        if name in names and first.isdigit() and count.isdigit():
            return f"{first} {count}"
    return None


class _Mapper:
    """A child that stays outside the new namespace, where alone `newuidmap` works."""

    def __init__(self, user: int, group: int, users: str, groups: str) -> None:
        agent = str(os.getpid())
        self._begin, begin = os.pipe2(os.O_CLOEXEC)
        self._pid = os.fork()
        if self._pid:
            os.close(self._begin)
            self._begin = begin
            return
        status = 1
        try:
            os.close(begin)
            if os.read(self._begin, 1):
                for program, own, others in (("newuidmap", user, users), ("newgidmap", group, groups)):
                    line = [program, agent, "0", str(own), "1", "1", *others.split()]
                    subprocess.run(line, check=True, capture_output=True)
                status = 0
        finally:
            os._exit(status)

    def map(self) -> bool:
        """Map the ids; returns False if that failed, and then nothing is mapped."""
        os.write(self._begin, b"1")
        os.close(self._begin)
        _, status = os.waitpid(self._pid, 0)
        return status == 0

"""Counts the processes that the kernel killed for memory in this container's control group."""

from pathlib import Path

from orchard.injector.agent.local.cgroups import oom_kills

FILES = (Path("/sys/fs/cgroup/memory.events"), Path("/sys/fs/cgroup/memory/memory.oom_control"))
"""Paths of a container's own group: version 2, then 1."""


class MemoryKills:
    def __init__(self) -> None:
        self._file = next((file for file in FILES if _readable(file)), None)

    @property
    def told(self) -> bool:
        return self._file is not None

    def count(self) -> int:
        return 0 if self._file is None else oom_kills(self._file.read_text())


def _readable(file: Path) -> bool:
    try:
        file.read_text()
    except OSError:  # another version, not mounted, or not for us
        return False
    return True

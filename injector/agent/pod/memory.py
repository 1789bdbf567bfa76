"""How often the kernel killed for memory in the control group that this container is in."""

from pathlib import Path

from orchard.injector.agent.local.cgroups import oom_kills

FILES = (Path("/sys/fs/cgroup/memory.events"), Path("/sys/fs/cgroup/memory/memory.oom_control"))
"""As containers see their own group: version 2, then 1."""


class MemoryKills:
    """The count, from whichever file can be read."""

    def __init__(self) -> None:
        self._file = next((file for file in FILES if _readable(file)), None)

    @property
    def told(self) -> bool:
        """Whether this container can know."""
        return self._file is not None

    def count(self) -> int:
        """Processes killed since the container started; 0 where it cannot know."""
        return 0 if self._file is None else oom_kills(self._file.read_text())


def _readable(file: Path) -> bool:
    try:
        file.read_text()
    except OSError:  # another version, not mounted, or not for us
        return False
    return True

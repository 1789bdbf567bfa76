"""How often the kernel killed for memory in the control group that this container is in."""

from pathlib import Path

EVENTS = (
    (Path("/sys/fs/cgroup/memory.events"), "oom_kill"),
    (Path("/sys/fs/cgroup/memory/memory.oom_control"), "oom_kill"),
)
"""As containers see their own group: cgroup v2, then v1. A file, and the word that begins the line."""


class MemoryKills:
    """The count, read from whichever file there is."""

    def __init__(self) -> None:
        self._source = next(((path, word) for path, word in EVENTS if _count(path, word) is not None), None)

    @property
    def told(self) -> bool:
        """Whether this container can know."""
        return self._source is not None

    def count(self) -> int:
        """Processes killed since the container started; 0 where it cannot know."""
        if self._source is None:
            return 0
        return _count(*self._source) or 0


def _count(path: Path, word: str) -> int | None:
    try:
        lines = path.read_text().splitlines()
    except OSError:  # not this version of control groups, not mounted, or not for us
        return None
    for line in lines:
        name, _, value = line.partition(" ")
        if name == word:
            return int(value)
    return None

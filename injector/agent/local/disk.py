"""Keeps sandboxes from filling the disk: stops those over the limit and removes their files.

An overlay's upper layer has no quota of its own, and project quotas need a file system made for them, so this
works by watching. Reading the file system's free space costs microseconds and is done twice a second while
there are sandboxes; only when it has shrunk by a tenth of the limit are their files counted. A sandbox may
thus exceed its limit by a tenth for a minute, and by what it writes between two looks. Deleted files that are
still open count too. The number of files is limited in the same way.
"""

import asyncio
import logging
import os
import stat
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from orchard.injector.agent.errors import AgentError

INTERVAL = 0.5
CENSUS = 60.0
"""Seconds after which files are counted even if free space did not shrink, as others may have freed some."""
RESERVE = 2**30
"""Free bytes below which the largest sandbox is stopped, whatever the limit is."""
SMALL = 8 * 2**30
"""A file system of fewer bytes is assumed to be for sandboxes alone, and may be filled."""
LEAST = 4096
"""Bytes that each file counts for at least, because inodes can run out before bytes do."""


log = logging.getLogger(__name__)


class DiskLimits(NamedTuple):
    size: int
    files: int


class DiskUsage(NamedTuple):
    size: int = 0
    files: int = 0

    @property
    def weight(self) -> int:
        return max(self.size, self.files * LEAST)


@dataclass(frozen=True, kw_only=True)
class Space:
    """Free space of a file system, in bytes."""

    total: int
    free: int
    files: int
    """Free inodes, expressed in bytes."""
    inodes: int | None = None
    """Free inodes; None: the file system has no fixed number of them."""

    @classmethod
    def of(cls, place: Path) -> "Space":
        """Measure the free space of the file system at `place`."""
        found = os.statvfs(place)
        return cls(
            total=found.f_blocks * found.f_frsize,
            free=found.f_bavail * found.f_frsize,
            # A file system without a table of files (f_files is 0) makes as many as there is room for.
            files=found.f_favail * LEAST if found.f_files else found.f_bavail * found.f_frsize,
            inodes=found.f_favail if found.f_files else None,
        )

    def less_than(self, before: "Space") -> int:
        return max(before.free - self.free, before.files - self.files)

    def with_more_of(self, other: "Space") -> "Space":
        """Return the more of each: what was free at one of two times."""
        inodes = None if self.inodes is None or other.inodes is None else max(self.inodes, other.inodes)
        free, files = max(self.free, other.free), max(self.files, other.files)
        return Space(total=self.total, free=free, files=files, inodes=inodes)

    def worth_counting(self, before: "Space", limits: DiskLimits) -> bool:
        fewer = 0 if self.inodes is None or before.inodes is None else before.inodes - self.inodes
        return self.less_than(before) > limits.size // 10 or fewer > limits.files // 10


class Watched(Protocol):
    """A sandbox whose files can be counted."""

    changes: Path
    """The directory with what it wrote."""
    root: int

    async def stop(self, reason: str, message: str) -> None: ...


class DiskWatch:
    """Watches the file system at `place` as long as there are sandboxes."""

    def __init__(self, place: Path, limits: DiskLimits, sandboxes: Callable[[], Collection[Watched]]) -> None:
        self._place = place
        self._limits = limits
        self._sandboxes = sandboxes
        self._task: asyncio.Task[None] | None = None

    def wake(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._watch())

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        begun = counted = Space.of(self._place)
        counted_at = loop.time()
        while self._sandboxes():
            await asyncio.sleep(INTERVAL)
            space = Space.of(self._place)
            due = loop.time() - counted_at > CENSUS and space != begun
            if due or space.worth_counting(counted, self._limits) or scarce(space):
                try:
                    await self._count(space)
                except (AgentError, OSError):
                    log.exception("the disk that sandboxes take could not be counted")
                # What was written while files were counted may be in no count: it is growth since, too.
                begun, counted = space, space.with_more_of(Space.of(self._place))
                counted_at = loop.time()

    async def _count(self, space: Space) -> None:
        sandboxes = {os.fspath(sandbox.changes): sandbox for sandbox in self._sandboxes()}
        sizes = await self._du("--block-size=1", sandboxes)
        files = await self._du("--inodes", sandboxes)
        for place in sizes:
            if sandboxes[place].root >= 0:  # else it went meanwhile
                with _root(sandboxes[place]) as root:
                    sizes[place] += await asyncio.shield(asyncio.to_thread(nameless, root))
        usage = {place: DiskUsage(size, files.get(place, 0)) for place, size in sizes.items()}
        for place, (reason, message) in excess(usage, self._limits, space).items():
            await sandboxes[place].stop(reason, message)

    async def _du(self, measure: str, places: Collection[str]) -> dict[str, int]:
        """Measure each place with du(1), in a process of its own because there may be millions of files."""
        process = await asyncio.create_subprocess_exec(
            *("du", "--summarize", measure, "--", *places), stdout=PIPE, stderr=DEVNULL
        )
        out, _ = await process.communicate()  # it complains of what was removed meanwhile
        lines = (line.split("\t", 1) for line in out.decode(errors="surrogateescape").splitlines())
        return {place: int(number) for number, place in lines}


def scarce(space: Space) -> bool:
    return space.total >= SMALL and min(space.free, space.files) < RESERVE


class Stopped(NamedTuple):
    reason: str
    message: str


def excess(usage: Mapping[str, DiskUsage], limits: DiskLimits, space: Space) -> dict[str, Stopped]:
    """Return the sandboxes to stop. One within its limits is evicted: who filled the disk is not known."""
    over = {
        place: f"it took {used.weight} bytes of disk, and {limits.size} is the limit"
        for place, used in usage.items()
        if used.weight > limits.size
    } | {
        place: f"it made {used.files} files and directories, and {limits.files} is the limit"
        for place, used in usage.items()
        if used.files > limits.files
    }
    if not over and usage and scarce(space):
        largest = max(usage, key=lambda place: usage[place].weight)
        taken = usage[largest].weight
        said = f"the host's disk was nearly full, and of its sandboxes this one took the most: {taken} bytes"
        return {largest: Stopped("evicted", said)}
    return {place: Stopped("disk_limit", message) for place, message in over.items()}


@contextmanager
def _root(sandbox: Watched) -> Iterator[int]:
    """A duplicate of its root's descriptor, which may be closed meanwhile."""
    root = os.dup(sandbox.root)
    try:
        yield root
    finally:
        os.close(root)


def nameless(root: int) -> int:
    """Bytes of deleted files that are still open, found through the sandbox's own /proc. Blocks."""
    seen: set[tuple[int, int]] = set()
    total = 0
    proc = os.open("proc", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=root)
    try:
        for pid in filter(str.isdigit, os.listdir(proc)):  # noqa: PTH208 - of a descriptor
            try:
                opened = os.open(f"{pid}/fd", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=proc)
            except (FileNotFoundError, ProcessLookupError):
                continue
            try:
                for name in os.listdir(opened):  # noqa: PTH208
                    total += _open_file(opened, name, seen)
            except (FileNotFoundError, ProcessLookupError):
                continue
            finally:
                os.close(opened)
    finally:
        os.close(proc)
    return total


def _open_file(directory: int, name: str, seen: set[tuple[int, int]]) -> int:
    try:
        status = os.stat(name, dir_fd=directory)
    except FileNotFoundError:
        return 0
    identity = (status.st_dev, status.st_ino)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink or identity in seen:
        return 0
    seen.add(identity)
    return status.st_blocks * 512

"""Limits memory, processes and processor time by control groups: version 1, hybrid or version 2.

A machine may have any of the three, and a container may have none that is writable; what cannot be enforced
is reported, never assumed.
"""

import contextlib
import errno
import hashlib
import os
import resource
import select
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from orchard.injector.agent.local import user_namespace

CONTROLLERS = ("memory", "pids", "cpu")
FREEZER = "freezer"
"""A hierarchy of its own in version 1, part of every group in version 2. It limits nothing."""
CPU_PERIOD = 100_000
BUSY_SECONDS = 10.0
"""Seconds that the kernel may take to reap or freeze processes."""
ALL_PROCESSES = 4096
_INSTEAD = {
    "memory": "instead each process may have as much memory as the sandbox",
    "pids": f"instead all sandboxes together may have {ALL_PROCESSES} processes",
}
SOCKETS = "sockets"
"""TCP and UDP buffers. Version 2 counts them as memory; version 1 limits them apart, and without that limit a
sandbox can fill the machine's memory with what it sends to itself."""
SOCKETS_LIMIT = "memory.kmem.tcp.limit_in_bytes"
SOCKETS_SHARE = 4
"""Divisor for version 1: a sandbox may have this fraction of its memory in such buffers, in addition."""
LIMIT_NAMES = {
    "memory": "memory",
    "pids": "process count",
    "cpu": "processor time",
    SOCKETS: "socket buffers",
}


@dataclass(frozen=True, kw_only=True)
class CgroupLayout:
    """Where control groups can be made on this machine.

    `parents` maps a controller to the directory below which groups are made; `version` is `v1`, `hybrid`,
    `v2` or `none`.
    """

    version: str
    parents: Mapping[str, Path] = field(default_factory=dict)

    def unified(self, controller: str) -> bool:
        return self.version == "v2" and controller in self.parents


def layout(mountinfo: str, membership: str) -> CgroupLayout:
    """Parse the texts of /proc/self/mountinfo and /proc/self/cgroup.

    Version 1 groups are made below the agent's own, so that an outer limit still holds. Version 2 allows no
    processes beside sub-groups, so there they are made below the root of the visible tree.
    """
    own: dict[str, str] = {}
    for line in membership.splitlines():
        _, names, path = line.split(":", 2)
        for name in names.split(","):
            own[name] = path
    parents: dict[str, Path] = {}
    unified: Path | None = None
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        fields, (kind, _, options) = before.split(), after.split(" ", 2)
        root, point = fields[3], Path(fields[4])
        if kind == "cgroup2":
            unified = point
        elif kind == "cgroup":
            for controller in set(options.split(",")) & {*CONTROLLERS, FREEZER}:
                relative = os.path.relpath(own.get(controller, "/"), root)
                parents[controller] = point if relative.startswith("..") else point / relative
    if parents.keys() - {FREEZER}:
        return CgroupLayout(version="hybrid" if unified else "v1", parents=parents)
    if unified:
        return CgroupLayout(version="v2", parents=dict.fromkeys((*CONTROLLERS, FREEZER), unified))
    return CgroupLayout(version="none")


def cgroup_name(state: Path) -> str:
    return "orchard-" + hashlib.sha256(os.fsencode(state)).hexdigest()[:12]


class Cgroups:
    """The control groups of one state directory: its own, and one below it for each sandbox."""

    def __init__(self, state: Path) -> None:
        text = Path("/proc/self/mountinfo").read_text(), Path("/proc/self/cgroup").read_text()
        self.layout = layout(*text)
        self._name = cgroup_name(state)
        self._root = not user_namespace.inside()
        self.enforced: dict[str, bool] = {controller: self._usable(controller) for controller in CONTROLLERS}
        self.enforced[SOCKETS] = self.enforced["memory"] and (
            self.layout.unified("memory")
            or (self.layout.parents["memory"] / self._name / SOCKETS_LIMIT).exists()
        )
        self.freezes = self._usable(FREEZER)

    @property
    def note(self) -> str:
        """A sentence that names what is not enforced, or empty."""
        missing = [LIMIT_NAMES[controller] for controller, works in self.enforced.items() if not works]
        if not missing:
            return ""
        instead = [text for name, text in _INSTEAD.items() if not self.enforced[name] and not self._root]
        return "; ".join([f"not limited on this machine: {', '.join(missing)}", *instead])

    def rlimits(self, *, memory: int) -> dict[int, int]:
        """Resource limits of each process in place of groups that are not enforced.

        Empty for root, whose processes the kernel does not count.
        """
        limits = {}
        if not self._root and not self.enforced["memory"]:
            limits[resource.RLIMIT_DATA] = memory
        if not self._root and not self.enforced["pids"]:
            limits[resource.RLIMIT_NPROC] = ALL_PROCESSES
        return limits

    def make(self, sandbox_id: str, *, memory: int, pids: int, cores: float) -> "ControlGroup":
        directories = {}
        for controller in (*CONTROLLERS, FREEZER):
            if not (self.freezes if controller == FREEZER else self.enforced[controller]):
                continue
            directory = self.layout.parents[controller] / self._name / sandbox_id
            directory.mkdir(exist_ok=True)
            directories[controller] = directory
        group = ControlGroup(directories, {name: self.layout.unified(name) for name in directories})
        group.limit(memory=memory, pids=pids, cores=cores)
        return group

    def clean(self) -> None:
        """Remove the groups of a dead agent, whose processes die with it; waits for those that still do."""
        parents = self.layout.parents
        # What is frozen does not end before it goes on.
        for parent in dict.fromkeys([parents.get(FREEZER), *parents.values()]):
            for directory in () if parent is None else (parent / self._name).glob("*/"):
                _kill(directory)
                _remove(directory)

    def close(self) -> None:
        """Remove the groups of this state directory, which must be empty."""
        self.clean()
        for parent in set(self.layout.parents.values()):
            if (group := parent / self._name).exists():  # not on a read-only file system, as in a container
                _remove(group)

    def _usable(self, controller: str) -> bool:
        parent = self.layout.parents.get(controller)
        if parent is None:
            return False
        try:
            limiting = self.layout.unified(controller) and controller != FREEZER
            if limiting:
                _enable(parent, controller)
            (parent / self._name).mkdir(exist_ok=True)
            if limiting:
                _enable(parent / self._name, controller)
            if controller == FREEZER:
                return os.access(parent / self._name / _switch(self.layout.unified(FREEZER)), os.W_OK)
            if controller == "pids":
                (parent / self._name / "pids.max").write_text(str(_all_processes()))
        except OSError:
            return False  # told by `enforced`
        return True


class ControlGroup:
    def __init__(self, directories: Mapping[str, Path], unified: Mapping[str, bool]) -> None:
        self._directories = directories
        self._unified = unified
        self._oom_events = -1
        """Descriptor of the counter, kept open because each command reads it twice."""
        if "memory" in directories:
            name = "memory.events" if unified["memory"] else "memory.oom_control"
            self._oom_events = os.open(directories["memory"] / name, os.O_RDONLY | os.O_CLOEXEC)

    @cached_property
    def entrances(self) -> Sequence[str]:
        """Files that move a single-threaded process into the group when it writes `0` to them.

        In version 1 `tasks`, not `cgroup.procs`: to move a whole process the kernel stops all others from
        forking, which takes milliseconds; the calling thread alone moves at once.
        """
        files = {
            str(path / ("cgroup.procs" if self._unified[controller] else "tasks"))
            for controller, path in self._directories.items()
        }
        return sorted(files)

    def limit(self, *, memory: int, pids: int, cores: float) -> None:
        if directory := self._directories.get("memory"):
            if self._unified["memory"]:
                _set(directory, "memory.max", memory)
                _set_if_there(directory, "memory.swap.max", 0)
            else:
                _set(directory, "memory.limit_in_bytes", memory)
                _set_if_there(directory, "memory.memsw.limit_in_bytes", memory)
                _set_if_there(directory, SOCKETS_LIMIT, memory // SOCKETS_SHARE)
        if directory := self._directories.get("pids"):
            _set(directory, "pids.max", pids)
        if directory := self._directories.get("cpu"):
            quota = max(1000, int(cores * CPU_PERIOD))
            if self._unified["cpu"]:
                _set(directory, "cpu.max", f"{quota} {CPU_PERIOD}")
            else:
                _set(directory, "cpu.cfs_period_us", CPU_PERIOD)
                _set(directory, "cpu.cfs_quota_us", quota)

    @property
    def freezes(self) -> bool:
        return FREEZER in self._directories

    def freeze(self, frozen: bool) -> None:
        """Stop or resume all processes of the group, those that join later too."""
        directory, unified = self._directories[FREEZER], self._unified[FREEZER]
        if unified:
            (directory / _switch(True)).write_text(str(int(frozen)))
        else:
            (directory / _switch(False)).write_text("FROZEN" if frozen else "THAWED")

    def frozen(self) -> bool:
        directory = self._directories[FREEZER]
        if self._unified[FREEZER]:
            return "frozen 1" in (directory / "cgroup.events").read_text().splitlines()
        return (directory / _switch(False)).read_text() == "FROZEN\n"

    def oom_kills(self) -> int:
        """Number of processes killed for memory so far; 0 if memory is not limited, and after `close`."""
        return 0 if self._oom_events < 0 else oom_kills(os.pread(self._oom_events, 4096, 0).decode())

    def close(self) -> None:
        """Close the counter's descriptor; nobody may be reading it."""
        if self._oom_events >= 0:
            os.close(self._oom_events)
            self._oom_events = -1

    def remove(self) -> None:
        """Remove the group, whose processes must have ended. Blocks while the kernel still reaps them."""
        self.close()
        for directory in dict.fromkeys(self._directories.values()):
            _remove(directory)


def oom_kills(text: str) -> int:
    """Parse the counter in memory.events (version 2) or memory.oom_control (version 1)."""
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        if name == "oom_kill":
            return int(value)
    return 0


def _all_processes() -> int:
    """Limit for all sandboxes together, which leaves some process ids to the machine."""
    most = (int(Path("/proc/sys/kernel", name).read_text()) for name in ("pid_max", "threads-max"))
    return min(most) * 3 // 4


def _enable(directory: Path, controller: str) -> None:
    control = directory / "cgroup.subtree_control"
    if controller not in control.read_text().split():
        control.write_text(f"+{controller}")


def _set(directory: Path, name: str, value: object) -> None:
    """Write by a single system call: six files are written for every sandbox."""
    descriptor = os.open(f"{directory}/{name}", os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, str(value).encode())
    finally:
        os.close(descriptor)


def _set_if_there(directory: Path, name: str, value: object) -> None:
    with contextlib.suppress(FileNotFoundError):  # a kernel may be built without
        _set(directory, name, value)


def _switch(unified: bool) -> str:
    return "cgroup.freeze" if unified else "freezer.state"


def _kill(directory: Path) -> None:
    if (switch := directory / _switch(False)).exists():
        switch.write_text("THAWED")  # else they would be killed when they go on, which is never
    for pid in map(int, (directory / "cgroup.procs").read_text().split()):
        with contextlib.suppress(ProcessLookupError):
            pidfd = os.pidfd_open(pid)
            try:
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                select.select([pidfd], [], [], BUSY_SECONDS)
            finally:
                os.close(pidfd)


def _remove(directory: Path) -> None:
    """Remove a group with all groups and processes below it, whoever made them.

    A process counts as a member for a moment after it was reaped.
    """
    for below in directory.glob("*/"):
        _kill(below)
        _remove(below)
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            directory.rmdir()
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.002)
        else:
            return

"""Reads what this process may use of the machine: its CPU set, and the control groups that it is in."""

import os
from pathlib import Path

import psutil

from orchard.injector.agent.local.cgroups import layout


def usable_cores() -> float:
    quotas = [float(len(os.sched_getaffinity(0)))]
    for group in _groups("cpu"):
        if (unified := group / "cpu.max").exists():
            quota, period = unified.read_text().split()
        elif (first := group / "cpu.cfs_quota_us").exists():
            quota, period = first.read_text(), (group / "cpu.cfs_period_us").read_text()
        else:
            continue
        if quota != "max" and int(quota) > 0:
            quotas.append(int(quota) / int(period))
    return min(quotas)


def usable_memory() -> int:
    """Bytes of memory."""
    limits = _limits("memory", "memory.max", "memory.limit_in_bytes")
    return min([int(psutil.virtual_memory().total), *(limit for _, limit in limits)])


def processes_left() -> tuple[int, str] | None:
    """Number of processes and threads that can still be started, and the name of the limit; None without a
    limit."""
    found = []
    for group, limit in _limits("pids", "pids.max", "pids.max"):
        found.append((limit - int((group / "pids.current").read_text()), f"pids.max of {group} is {limit}"))
    most = psutil.Process().rlimit(psutil.RLIMIT_NPROC)[0]
    if os.geteuid() != 0 and most >= 0:
        found.append((most - _threads_of(os.getuid()), f"`ulimit -u` is {most}"))
    return min(found, default=None)


def _threads_of(user: int) -> int:
    count = 0
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if process.stat().st_uid == user:
                count += sum(1 for _ in (process / "task").iterdir())
        except OSError:  # it has ended
            continue
    return count


def _limits(controller: str, *names: str) -> list[tuple[Path, int]]:
    """Groups with a limit in the first of these files that they have."""
    found = []
    for group in _groups(controller):
        texts = [(group / name).read_text().strip() for name in names if (group / name).exists()]
        if texts and texts[0] != "max":
            found.append((group, int(texts[0])))
    return found


def _groups(controller: str) -> list[Path]:
    """Groups of this process for a controller, from its own to the outermost that can be seen."""
    membership = Path("/proc/self/cgroup").read_text()
    found = layout(Path("/proc/self/mountinfo").read_text(), membership)
    own = found.parents.get(controller)
    if own is None:
        return []
    if found.unified(controller):
        path = next((line[3:] for line in membership.splitlines() if line.startswith("0::")), "/")
        own = own / path.lstrip("/")
    return [group for group in (own, *own.parents) if (group / "cgroup.procs").exists()]

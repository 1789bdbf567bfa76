"""The arguments of bubblewrap for one sandbox, as a pure function."""

import os
from collections.abc import Sequence
from pathlib import Path

# fmt: off
MASKED_FILES = (
    "/proc/kcore", "/proc/keys", "/proc/timer_list", "/proc/sched_debug", "/proc/latency_stats", "/proc/mtrr",
    "/proc/kpagecgroup", "/proc/kpagecount", "/proc/kpageflags", "/proc/sysrq-trigger",
)
# fmt: on
MASKED_DIRECTORIES = ("/proc/acpi", "/proc/scsi", "/proc/fs")


def arguments(program: str, *, root: Path, sandbox_id: str, resolver: Path | None) -> Sequence[str]:
    """Command line of the spawner's `launch`.

    Attached descriptors: 0 stdout and 1 stderr of the first process, 2 for `--info-fd`, 3 the first process's
    program. `resolver` is the /etc/resolv.conf of a sandbox that will have a network.
    """
    # Not --unshare-all: it makes a user namespace, whose owner, uid 0, has every capability over the other
    # namespaces in it, whatever the bounding set of a command says.
    command = [program, "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
    command.append("--unshare-net")
    command += ["--die-with-parent", "--new-session", "--as-pid-1", "--cap-drop", "ALL"]
    command += ["--hostname", f"sandbox-{sandbox_id}"]
    command += ["--bind", str(root), "/", "--proc", "/proc", "--dev", "/dev"]
    # Root inside is the machine's uid 0, whom file modes alone would let write here.
    command += ["--ro-bind", "/proc/sys", "/proc/sys"]
    for path in MASKED_FILES:
        if os.path.exists(path):  # noqa: PTH110
            command += ["--ro-bind", os.devnull, path]
    for path in MASKED_DIRECTORIES:
        if os.path.isdir(path):  # noqa: PTH112
            command += ["--tmpfs", path, "--remount-ro", path]
    if resolver is not None:
        command += ["--ro-bind", str(resolver), "/etc/resolv.conf"]
    return [*command, "--info-fd", "@fd:2", "--", "/proc/self/fd/@fd:3"]

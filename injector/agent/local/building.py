"""Builds a sandbox around its first process, as a program of system calls.

The process is born as the first of a pid namespace, takes namespaces of its own for everything else, mounts
its root and moves into it, joins the sandbox's control groups, drops the machine's root and all capabilities,
loads the system call filter that commands have, and becomes `first_process`. None of its mounts is ever
visible to the agent, so nothing of it is left when it ends, at whatever moment.
"""

import errno
import os
import resource
import signal
import struct
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import NamedTuple

from orchard.injector.agent import kernel, seccomp
from orchard.injector.agent.local import overlay
from orchard.injector.agent.local.names import host_name
from orchard.injector.agent.syscall_program import ANY_ERROR, NOT_FOUND, SyscallProgram

MASKED = ("keys", "key-users", "kallsyms", "timer_list", "sched_debug", "latency_stats")
"""World-readable files of /proc that nobody inside should read: keys and addresses of the kernel."""
READ_ONLY = ("sys", "irq", "bus", "tty", "pressure", "sysvipc")
"""Directories of /proc that are visible but read-only: root inside is the host's uid 0, whom modes would let
write."""
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
LINKS = (
    ("/proc/self/fd/0", "/dev/stdin"),
    ("/proc/self/fd/1", "/dev/stdout"),
    ("/proc/self/fd/2", "/dev/stderr"),
    ("/proc/self/fd", "/dev/fd"),
    ("/proc/kcore", "/dev/core"),
    ("pts/ptmx", "/dev/ptmx"),
)

DEVICE_FILES = 1 << 16
"""Largest number of files in /dev, /dev/shm included."""
SEMAPHORE, QUEUE = 64, 1 << 20
"""Bytes of a System V semaphore, and of a queue full of messages without content."""
TERMINALS = 256
"""Terminals that a sandbox may open; all sandboxes share one number of the machine."""
PROGRAM = 4
"""Descriptor of the program that the first process becomes.

The file cannot be read, so nobody may look into a process that executes it without a capability to read it.
"""
NAME = "sandbox-first-process"
"""argv[0] of the first process; argv[1] is the sandbox's host name."""
STEPS = (
    "it could not get namespaces of its own",
    "its file system could not be mounted",
    "/proc and /dev could not be mounted",
    "its network could not be set up",
    "it could not be limited",
    "its first process could not be started",
)
_NAMESPACES, _ROOT, _SYSTEM, _NETWORK, _GROUPS, _START = range(len(STEPS))
_FREE = 5
_AT_FDCWD = -100
_AT_EMPTY_PATH, _AT_RECURSIVE = 0x1000, 0x8000
_ALL_ELSE = kernel.CLONE_NEWNS | kernel.CLONE_NEWNET | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_BIND = 1, 2, 4, 8, 4096
_ATTRIBUTES = struct.Struct("<QQQQ")
"""struct mount_attr: flags to set, flags to clear, propagation, user namespace."""
_ATTR_RDONLY, _ATTR_NOSUID, _ATTR_NODEV = 1, 2, 4
_READ_ONLY = _ATTR_RDONLY | _ATTR_NOSUID | _ATTR_NODEV
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 0x1
_AF_INET, _SOCK_DGRAM = 2, 2
_CAPABILITY_VERSION_3 = 0x20080522


class Overlay(NamedTuple):
    point: Path
    layers: Sequence[Path]
    """Visible layers, topmost first."""
    upper: Path
    work: Path
    data: Sequence[Path] = ()
    """Layers below all others that only give files their content."""


def building(
    overlays: Sequence[Overlay],
    *,
    sandbox_id: str,
    shown: Mapping[str, Path],
    groups: Sequence[str],
    memory: int,
) -> SyscallProgram:
    """Compile the calls. The first of `overlays` is the root, the others are mounted in it.

    The process has descriptors 0 to 2, the calls, and PROGRAM. `shown` maps paths in the sandbox to files of
    the machine; `groups` are the files that admit it to its control groups. Of `memory` (bytes) half may be
    in files in /dev, and less in System V objects (`system_v`). Raises OSError when a path contains a zero
    byte.
    """
    head = _namespaces()
    tail = _after_the_move(len(groups), tuple(shown), memory)
    name = host_name(sandbox_id)
    calls = SyscallProgram(os.uname().machine, tail)
    calls.append(head)
    for one in overlays:
        _mount(calls, one)
    calls.call("sethostname", calls.text(name), len(name), step=_NAMESPACES)
    calls.open_files(groups, _FREE, step=_GROUPS)
    _opened(calls, list(shown.values()), _FREE + len(groups))
    calls.call("chdir", calls.text(os.fspath(overlays[0].point)), step=_ROOT)
    calls.append(tail)
    nothing, words = calls.texts([]), calls.texts([NAME, name])
    calls.call("execveat", PROGRAM, calls.text(""), words, nothing, _AT_EMPTY_PATH, step=_START)
    return calls


@cache
def _namespaces() -> SyscallProgram:
    calls = SyscallProgram(os.uname().machine)
    calls.call("close_range", _FREE, 0xFFFFFFFF, 0, step=_NAMESPACES)
    _never_for_memory(calls)
    calls.call("unshare", kernel.CLONE_NEWPID, step=_NAMESPACES)
    calls.bear(step=_NAMESPACES)
    calls.call("prctl", kernel.PR_SET_PDEATHSIG, signal.SIGKILL, step=_NAMESPACES)
    calls.call("setsid", step=_NAMESPACES)
    calls.call("umask", 0)
    # No user namespace: its owner, uid 0, would have every capability over the other namespaces in it,
    # whatever the bounding set of a command says.
    calls.call("unshare", _ALL_ELSE, step=_NAMESPACES)
    calls.call("mount", 0, calls.text("/"), 0, kernel.MS_REC | kernel.MS_SLAVE, 0, step=_NAMESPACES)
    return calls


@lru_cache(maxsize=64)
def _after_the_move(groups: int, shown: tuple[str, ...], memory: int) -> SyscallProgram:
    """Compile what follows once the control groups and the files of `shown` are open and the root is the
    working directory, up to the last call but one.

    It is equal for all sandboxes of the same `memory` (bytes). Its data begins with that of `_namespaces`.
    """
    calls = SyscallProgram(os.uname().machine, _namespaces())
    files = _FREE + groups
    devices = _opened(calls, [f"/dev/{name}" for name in DEVICES], files + len(shown))
    _move(calls)
    _proc(calls)
    _dev(calls, devices, memory // 2)
    _system_v(calls, memory, devices[-1] + 1)
    _mask(calls, f"/proc/self/fd/{devices[0]}")
    for descriptor, path in enumerate(shown, start=files):
        _create(calls, path, devices[-1] + 1)
        _bind(calls, f"/proc/self/fd/{descriptor}", path, _READ_ONLY)
    calls.call("umount2", calls.text("."), kernel.MNT_DETACH, step=_ROOT)
    calls.call("chdir", calls.text("/"), step=_ROOT)
    # Only now: what was made so far is not the task's to pay for.
    for entrance in range(_FREE, files):
        calls.write(entrance, b"0", step=_GROUPS)
    calls.call("unshare", kernel.CLONE_NEWCGROUP, step=_GROUPS)
    calls.call("close_range", _FREE, 0xFFFFFFFF, 0, step=_START)
    _loopback(calls)
    _give_up(calls)
    return calls


def _never_for_memory(calls: SyscallProgram) -> None:
    """Exempt the first process from the OOM killer; only root can."""
    fd = calls.open_files(["/proc/self/oom_score_adj"], _FREE, step=_NAMESPACES)[0]
    calls.call(
        "write", fd, calls.put(b"-1000"), 5, step=_NAMESPACES, passing_over=(errno.EACCES, errno.EPERM)
    )
    calls.call("close", fd, step=_NAMESPACES)


def _opened(calls: SyscallProgram, paths: Sequence[str | Path], free: int) -> list[int]:
    """Open these; returns the descriptors that they will have."""
    for path in paths:
        calls.call("openat", _AT_FDCWD, calls.text(os.fspath(path)), os.O_PATH | os.O_CLOEXEC, step=_ROOT)
    return [free + number for number in range(len(paths))]


def _mount(calls: SyscallProgram, one: Overlay) -> None:
    descriptors = _opened(calls, [*one.layers, *one.data, one.upper, one.work], _FREE)
    *names, upper, work = [f"/proc/self/fd/{descriptor}" for descriptor in descriptors]
    visible = len(one.layers)
    options = calls.text(overlay.options(names[:visible], data=names[visible:], upper=upper, work=work))
    kind = calls.text("overlay")
    calls.call("mount", kind, calls.text(os.fspath(one.point)), kind, 0, options, step=_ROOT)
    calls.call("close_range", _FREE, descriptors[-1], 0, step=_ROOT)


def _move(calls: SyscallProgram) -> None:
    """Make the working directory the root; the old root lies over it, out of every path's way, until
    unmounted.

    From here on no path or link of an image leads out of the image.
    """
    here = calls.text(".")
    _restrict(calls, ".", _ATTR_NOSUID | _ATTR_NODEV, _AT_RECURSIVE, step=_ROOT)
    calls.call("pivot_root", here, here, step=_ROOT)


def _proc(calls: SyscallProgram) -> None:
    proc = calls.text("proc")
    flags = _MS_NOSUID | _MS_NODEV | _MS_NOEXEC
    calls.call("mount", proc, calls.text("/proc"), proc, flags, 0, step=_SYSTEM)
    # Or a task could have this process killed for memory first, and with it what says how the task ended.
    _bind(calls, "/proc/1", "/proc/1", _READ_ONLY)


def _dev(calls: SyscallProgram, devices: Sequence[int], size: int) -> None:
    memory, mode = calls.text("tmpfs"), calls.text(f"mode=0755,size={size},nr_inodes={DEVICE_FILES}")
    calls.call("mount", memory, calls.text("/dev"), memory, _MS_NOSUID | _MS_NODEV, mode, step=_SYSTEM)
    for name, descriptor in zip(DEVICES, devices, strict=True):
        calls.call("mknodat", _AT_FDCWD, calls.text(f"/dev/{name}"), 0o100444, 0, step=_SYSTEM)
        # Read-only is the machine's node, not the device: nobody inside changes its owner or mode.
        _bind(calls, f"/proc/self/fd/{descriptor}", f"/dev/{name}", _ATTR_RDONLY | _ATTR_NOSUID)
    for target, link in LINKS:
        calls.call("symlinkat", calls.text(target), _AT_FDCWD, calls.text(link), step=_SYSTEM)
    for directory, allowed in (("/dev/shm", 0o1777), ("/dev/pts", 0o755)):
        calls.call("mkdirat", _AT_FDCWD, calls.text(directory), allowed, step=_SYSTEM)
    terminals, options = (
        calls.text("devpts"),
        calls.text(f"newinstance,ptmxmode=0666,mode=620,max={TERMINALS}"),
    )
    flags = _MS_NOSUID | _MS_NOEXEC
    calls.call("mount", terminals, calls.text("/dev/pts"), terminals, flags, options, step=_SYSTEM)


def system_v(memory: int) -> dict[str, str]:
    """Kernel settings of a sandbox with `memory` bytes: System V objects outlive the processes that made
    them.

    Segments may take a quarter, semaphores and queues about a sixteenth.
    """
    semaphores = memory // 32 // SEMAPHORE
    return {
        "shmall": str(max(1, memory // 4 // resource.getpagesize())),
        # of one set, of all sets, operations at once, sets
        "sem": f"{min(32_000, semaphores)} {semaphores} 500 {min(32_000, semaphores // 8)}",
        "msgmni": str(min(32_000, max(8, memory // 32 // QUEUE))),
    }


def _system_v(calls: SyscallProgram, memory: int, free: int) -> None:
    """Write these settings; `free` is the lowest unused descriptor.

    Where the kernel reserves them for the machine's root, there is no limit.
    """
    for name, value in system_v(memory).items():
        path, text = calls.text(f"/proc/sys/kernel/{name}"), calls.put(value.encode())
        flags = os.O_WRONLY | os.O_CLOEXEC
        calls.call("openat", _AT_FDCWD, path, flags, step=_SYSTEM, passing_over=ANY_ERROR)
        calls.call("write", free, text, len(value), step=_SYSTEM, passing_over=ANY_ERROR)
        calls.call("close", free, step=_SYSTEM, passing_over=ANY_ERROR)


@cache
def _of_the_machine() -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Entries of /proc besides processes: files to hide, directories to hide, directories to make read-only.

    Hidden is every file that not everybody may read or that can be written, whatever its name and whenever
    the kernel got it, and every directory that is not known to be harmless.
    """
    files: list[str] = []
    directories: list[str] = []
    shown: list[str] = []
    with os.scandir("/proc") as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            if entry.name.isdigit() or entry.is_symlink():
                continue
            if entry.is_dir():
                (shown if entry.name in READ_ONLY else directories).append(entry.path)
            elif entry.name in MASKED or entry.stat().st_mode & 0o222 or not entry.stat().st_mode & 0o004:
                files.append(entry.path)
    return tuple(files), tuple(directories), tuple(shown)


def _mask(calls: SyscallProgram, nothing: str) -> None:
    files, directories, shown = _of_the_machine()
    for number, path in enumerate(files):
        if number == 0:
            _bind(calls, nothing, path, _READ_ONLY)
        else:  # a bind mount is as its source is: read-only
            calls.call("mount", calls.text(files[0]), calls.text(path), 0, _MS_BIND, 0, step=_SYSTEM)
    memory = calls.text("tmpfs")
    for path in directories:
        flags = _MS_RDONLY | _MS_NOSUID | _MS_NODEV | _MS_NOEXEC
        calls.call("mount", memory, calls.text(path), memory, flags, 0, step=_SYSTEM)
    for path in shown:
        _bind(calls, path, path, _READ_ONLY)


def _bind(calls: SyscallProgram, source: str, target: str, attributes: int) -> None:
    calls.call("mount", calls.text(source), calls.text(target), 0, _MS_BIND, 0, step=_SYSTEM)
    _restrict(calls, target, attributes, 0, step=_SYSTEM)


def _restrict(calls: SyscallProgram, path: str, attributes: int, flags: int, *, step: int) -> None:
    what = calls.put(_ATTRIBUTES.pack(attributes, 0, 0, 0))
    calls.call("mount_setattr", _AT_FDCWD, calls.text(path), flags, what, _ATTRIBUTES.size, step=step)


def _create(calls: SyscallProgram, path: str, free: int) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
    calls.call("openat", _AT_FDCWD, calls.text(path), flags, 0o444, step=_ROOT, passing_over=NOT_FOUND)
    calls.call("close", free, step=_ROOT, passing_over=(errno.EBADF,))


def _loopback(calls: SyscallProgram) -> None:
    """Bring `lo` up; the kernel then gives it its addresses."""
    request = struct.pack("<16sH22x", b"lo", _IFF_UP)
    calls.call("socket", _AF_INET, _SOCK_DGRAM, 0, step=_NETWORK)
    calls.call("ioctl", _FREE, _SIOCSIFFLAGS, calls.put(request), step=_NETWORK)
    calls.call("close", _FREE, step=_NETWORK)


def _give_up(calls: SyscallProgram) -> None:
    for capability in range(kernel.last_capability() + 1):
        calls.call("prctl", kernel.PR_CAPBSET_DROP, capability, step=_START)
    seccomp.load(calls, seccomp.program(os.uname().machine), step=_START)
    nobody = calls.put(struct.pack("<Ii", _CAPABILITY_VERSION_3, 0)), calls.put(bytes(24))
    calls.call("capset", *nobody, step=_START)

"""Linux system calls that the standard library of Python 3.11 lacks, as functions that raise OSError."""

import ctypes
import errno
import fcntl
import os
from contextlib import suppress
from pathlib import Path

_libc = ctypes.CDLL(None, use_errno=True)
# Looked up once: a forked child that looks a name up for itself pays for it every time.
_setns, _prctl, _syscall = _libc.setns, _libc.prctl, _libc.syscall
_prctl.argtypes = (ctypes.c_int, ctypes.c_ulong, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_ulong)

CLONE_VM = 0x00000100
CLONE_VFORK = 0x00004000
CLONE_PARENT = 0x00008000
CLONE_PARENT_SETTID = 0x00100000
CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_REC = 0x4000
MS_SLAVE = 1 << 19
MNT_DETACH = 2

PROC, SYSFS, CGROUP, CGROUP2 = 0x9FA0, 0x62656572, 0x27E0EB, 0x63677270

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_SECCOMP = 22
PR_CAPBSET_DROP = 24
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_CLEAR_ALL = 4
SECCOMP_MODE_FILTER = 2

RESOLVE_NO_MAGICLINKS = 0x02
RESOLVE_NO_SYMLINKS = 0x04
RESOLVE_BENEATH = 0x08
RESOLVE_IN_ROOT = 0x10
_SYS_OPENAT2 = 437
"""The number on every architecture, as of all calls added since 2019."""

_MFD_EXEC = 0x10
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_LARGE = 1 << 19
"""Bytes from which on the allocator maps a block of its own; pieces read from pipes are smaller."""
_KEPT = 8 << 20
"""Free bytes at the end of the heap that are kept until the next trim."""
_CAP_SYS_ADMIN = 21
_CAPABILITY_VERSION_3 = 0x20080522


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


class _CapabilityHeader(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _CapabilityData(ctypes.Structure):
    _fields_ = (
        ("effective", ctypes.c_uint32),
        ("permitted", ctypes.c_uint32),
        ("inheritable", ctypes.c_uint32),
    )


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)
    return result


def unshare(flags: int) -> None:
    _check(_libc.unshare(flags), "unshare")


def setns(fd: int, flags: int) -> None:
    """Call setns(2); with a pidfd, `flags` names the namespaces of that process to join."""
    _check(_setns(fd, flags), "setns")


def mount(source: str, target: str, kind: str | None, flags: int = 0, options: str | None = None) -> None:
    _check(
        _libc.mount(
            os.fsencode(source),
            os.fsencode(target),
            None if kind is None else kind.encode(),
            ctypes.c_ulong(flags),
            None if options is None else os.fsencode(options),
        ),
        target,
    )


def unmount(target: str) -> None:
    """Call umount2(2) with MNT_DETACH: the mount is gone from this namespace at once, alive where it is in
    use."""
    _check(_libc.umount2(os.fsencode(target), MNT_DETACH), target)


def prctl(option: int, value: int = 0, address: object = None) -> None:
    _check(_prctl(option, value, address, 0, 0), "prctl")


def hold_little_memory() -> None:
    """Make glibc's allocator keep few and small free pieces; does nothing with another allocator.

    By default glibc takes blocks of up to 32 MiB from its heaps once it has seen one freed, and every thread
    has a heap of its own: outputs of all sizes then leave holes that no trim closes. It also returns the free
    end of the heap with every piece of a file, and the kernel clears it before the next.
    """
    option = getattr(_libc, "mallopt", None)
    if option is not None:
        option(_M_MMAP_THRESHOLD, _LARGE)
        option(_M_TRIM_THRESHOLD, _KEPT)
        option(_M_ARENA_MAX, 1)


def trim_memory() -> None:
    """Return freed memory to the machine, where the allocator is glibc's. Takes about a millisecond."""
    trim = getattr(_libc, "malloc_trim", None)
    if trim is not None:
        trim(0)


def last_capability() -> int:
    return int(Path("/proc/sys/kernel/cap_last_cap").read_text())


def clear_inheritable_capabilities() -> None:
    """Empty the inheritable capability set of this process; keep the effective and permitted ones."""
    header = _CapabilityHeader(_CAPABILITY_VERSION_3, 0)
    data = (_CapabilityData * 2)()
    _check(_libc.capget(ctypes.byref(header), data), "capget")
    for word in data:
        word.inheritable = 0
    _check(_libc.capset(ctypes.byref(header), data), "capset")


def may_mount() -> bool:
    if os.geteuid() != 0:
        return False
    status = Path("/proc/self/status").read_text()
    effective = next(line for line in status.splitlines() if line.startswith("CapEff:"))
    return bool(int(effective.split()[1], 16) >> _CAP_SYS_ADMIN & 1)


_OPENINGS = 100
"""Attempts of openat2(2) while it fails with EAGAIN, which a hostile lease can provoke forever."""


def open_beneath(root: int, path: str, flags: int, mode: int = 0) -> int:
    """Call openat2(2) with `root` as the root directory: `..`, absolute paths and links cannot leave it.

    Magic links (`/proc/*/fd`, `/proc/*/root`) are refused with ELOOP.
    """
    for _ in range(_OPENINGS):
        with suppress(BlockingIOError):  # the machine renamed or mounted something while a `..` was followed
            return open_at(root, path, flags, RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS, mode)
    return open_at(root, path, flags, RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS, mode)


def open_at(directory: int, path: str, flags: int, resolve: int, mode: int = 0) -> int:
    """Call openat2(2); `resolve` restricts how the path is resolved."""
    how = _OpenHow(flags | os.O_CLOEXEC, mode, resolve)
    return _check(
        _syscall(
            ctypes.c_long(_SYS_OPENAT2),
            ctypes.c_int(directory),
            os.fsencode(path),
            ctypes.byref(how),
            ctypes.c_size_t(ctypes.sizeof(how)),
        ),
        path,
    )


def filesystem_type(fd: int) -> int:
    buffer = ctypes.create_string_buffer(256)
    _check(_libc.fstatfs(fd, buffer), "fstatfs")
    return ctypes.c_long.from_buffer(buffer).value


def _memory_file(name: str, *, executable: bool) -> int:
    """Create a memfd; marked executable where the administrator lets only such be executed."""
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    if executable:
        try:
            return os.memfd_create(name, flags | _MFD_EXEC)
        except OSError as error:
            if error.errno != errno.EINVAL:  # before Linux 6.3 nobody needs to ask
                raise
    return os.memfd_create(name, flags)


def sealed_file(name: str, content: bytes, *, executable: bool = False) -> int:
    """Return a descriptor of an in-memory file whose content can no longer change, at its start."""
    fd = _memory_file(name, executable=executable)
    view = memoryview(content)
    while view:
        view = view[os.write(fd, view) :]
    if executable:
        # Not to be read: whoever executes it without CAP_DAC_OVERRIDE is a process nobody may look into.
        os.fchmod(fd, 0o111)
    seals = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd

"""Runs a command as systemd confines it, as far as that can be done without systemd.

`python -m tests.infra.hosts.confined SETTINGS READ_ONLY WRITABLE... -- COMMAND...`. SETTINGS is a file with a
[Service] section, such as infra/hosts/orchard-.service.d/confined.conf. The command has no capabilities and
the system calls of the file's filter alone, and sees no other processes. It may write to nothing but WRITABLE
and the directory of temporary files, of which READ_ONLY is a part that it may not write to either.
"""

import ctypes
import os
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

from orchard.injector.agent import kernel

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mount.argtypes = (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p)
_MOUNT_SETATTR, _HERE, _RECURSIVE, _READ_ONLY = 442, -100, 0x8000, 1
_BIND, _PRIVATE = 0x1000, 1 << 18
_ALLOW, _EPERM = 0x7FFF0000, 0x00050001
_CAPABILITIES = 41


def settings(path: Path) -> list[tuple[str, str]]:
    """(name, value) of each line."""
    lines = [line.partition("=") for line in path.read_text().splitlines() if not line.startswith(("#", "["))]
    return [(name, value) for name, _, value in lines]


def system_calls(names: list[str]) -> set[str]:
    """Those of groups such as `@system-service`, by systemd's own list."""
    found = set()
    for name in names:
        if name.startswith("@"):
            said = subprocess.run(
                ["systemd-analyze", "syscall-filter", name], capture_output=True, check=True
            )
            found |= system_calls(
                [line.strip() for line in said.stdout.decode().splitlines()[1:] if "#" not in line]
            )
        elif name:
            found.add(name)
    return found


def filtered(values: list[str]) -> None:
    """Lets this process make the system calls alone that SystemCallFilter= allows."""
    allowed: set[str] = set()
    for value in values:
        allowed = (
            allowed - system_calls(value[1:].split())
            if value[0] == "~"
            else allowed | system_calls(value.split())
        )
    seccomp = ctypes.CDLL("libseccomp.so.2")
    seccomp.seccomp_init.restype = ctypes.c_void_p
    context = ctypes.c_void_p(seccomp.seccomp_init(_EPERM))
    for name in allowed:
        if (number := seccomp.seccomp_syscall_resolve_name(name.encode())) >= 0:
            _done(seccomp.seccomp_rule_add(context, _ALLOW, number, 0), name)
    _done(seccomp.seccomp_load(context), "seccomp_load")


def read_only(below: str, writable: list[str]) -> None:
    """All files, but temporary ones that are not below `below`, and those of `writable`."""
    temporary = tempfile.gettempdir()
    kernel.unshare(kernel.CLONE_NEWNS)
    _mount("none", "/", flags=kernel.MS_REC | _PRIVATE)
    for path in (temporary, below, *writable):
        _mount(path, path, flags=_BIND)
    _set_attributes("/", _RECURSIVE, on=_READ_ONLY)
    for path in (temporary, *writable):
        _set_attributes(path, 0, off=_READ_ONLY)
    _mount("proc", "/proc", "proc", data="hidepid=invisible")


def _mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
    words = (source.encode(), target.encode(), kind.encode() or None, flags, data.encode() or None)
    _done(_libc.mount(*words), f"mount {target}")


def _set_attributes(path: str, flags: int, *, on: int = 0, off: int = 0) -> None:
    what = struct.pack("4Q", on, off, 0, 0)
    _done(
        _libc.syscall(_MOUNT_SETATTR, _HERE, path.encode(), flags, what, len(what)), f"mount_setattr {path}"
    )


def _done(status: int, what: str) -> None:
    assert status == 0, f"{what}: {status}, errno {ctypes.get_errno()}"


def main(path: Path, below: str, writable: list[str], command: list[str]) -> None:
    """Becomes the command."""
    said = settings(path)
    one = dict(said)
    read_only(below, writable)
    assert one["CapabilityBoundingSet"] == "" and one["ProtectSystem"] == "strict"
    for number in range(_CAPABILITIES):
        _done(_libc.prctl(kernel.PR_CAPBSET_DROP, number, 0, 0, 0), "prctl")
    filtered([value for name, value in said if name == "SystemCallFilter"])
    os.execv(command[0], command)


if __name__ == "__main__":
    split = sys.argv.index("--")
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:split], sys.argv[split + 1 :])

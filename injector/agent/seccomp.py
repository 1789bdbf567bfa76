"""The system call filter of every command in a local sandbox, as classic BPF.

It refuses what a container has no use for and what affects the machine rather than the container: new mounts
and user namespaces, kernel modules, keyrings, the kernel log, bpf, performance counters, unusual socket
families, core files. Capabilities are dropped as well; the filter also covers what needs none.
"""

import struct
from functools import cache

from orchard.injector.agent import kernel
from orchard.injector.agent.syscall_program import SyscallProgram

_LOAD_WORD, _JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_OFFSET_NUMBER, _OFFSET_ARCHITECTURE, _OFFSET_ARGUMENTS = 0, 4, 16
_ALLOW = 0x7FFF0000
_REFUSE = 0x00050000 | 1  # EPERM
_UNKNOWN = 0x00050000 | 38  # ENOSYS: libraries fall back to the older call
_X32_BIT = 0x40000000

AUDIT_ARCHITECTURE = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

# fmt: off
_SINCE_2019 = {  # numbers shared by all architectures
    "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "open_tree": 428,
    "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433, "mount_setattr": 442,
}
REFUSED = {
    "x86_64": _SINCE_2019 | {
        "syslog": 103, "pivot_root": 155, "acct": 163, "mount": 165, "umount2": 166, "swapon": 167,
        "swapoff": 168, "reboot": 169, "iopl": 172, "ioperm": 173, "init_module": 175, "delete_module": 176,
        "quotactl": 179, "kexec_load": 246, "add_key": 248, "request_key": 249, "keyctl": 250,
        "perf_event_open": 298, "open_by_handle_at": 304, "setns": 308, "finit_module": 313,
        "kexec_file_load": 320, "bpf": 321, "userfaultfd": 323,
    },
    "aarch64": _SINCE_2019 | {
        "umount2": 39, "mount": 40, "pivot_root": 41, "quotactl": 60, "acct": 89, "kexec_load": 104,
        "init_module": 105, "delete_module": 106, "syslog": 116, "reboot": 142, "add_key": 217,
        "request_key": 218, "keyctl": 219, "swapon": 224, "swapoff": 225, "perf_event_open": 241,
        "open_by_handle_at": 265, "setns": 268, "finit_module": 273, "bpf": 280, "userfaultfd": 282,
        "kexec_file_load": 294,
    },
}
_UNSHARE = {"x86_64": 272, "aarch64": 97}
_CLONE = {"x86_64": 56, "aarch64": 220}
# fmt: on
_SOCKETS = {"x86_64": (41, 53), "aarch64": (198, 199)}
_FAMILIES = (1, 2, 10, 16)
"""Unix, IPv4, IPv6, netlink.

For any other the kernel may load a module, whoever asks; and AF_VSOCK, a virtual machine's line to its host,
is not separated by network namespaces.
"""
_NETLINK, _USERSOCK = 16, 2
"""Netlink between processes is refused: its queues are charged to nobody's memory. Netlink to the kernel
is allowed."""
_SETRLIMIT = {"x86_64": 160, "aarch64": 164}
_PRLIMIT64 = {"x86_64": 302, "aarch64": 261}
_RLIMIT_CORE = 4
_CLONE3 = 435
_IO_SETUP = {"x86_64": 206, "aarch64": 0}
"""Legacy asynchronous I/O: fs.aio-max-nr counts it for the whole machine, and one process can take it all."""
_DONE_NOTHING = 0x00050000
"""Errno 0: the call seems to have worked."""
_NO_FAMILY = 0x00050000 | 97  # EAFNOSUPPORT
_NO_PROTOCOL = 0x00050000 | 93  # EPROTONOSUPPORT


def load(calls: SyscallProgram, instructions: bytes, *, step: int) -> None:
    """Append the calls that load a filter for good."""
    calls.call("prctl", kernel.PR_SET_NO_NEW_PRIVS, 1, step=step)
    what = struct.pack("<H6xQ", len(instructions) // 8, calls.put(instructions))
    calls.call("prctl", kernel.PR_SET_SECCOMP, kernel.SECCOMP_MODE_FILTER, calls.put(what), step=step)


@cache
def program(machine: str) -> bytes:
    """Return the filter for `machine` (as `os.uname` names it), 8 bytes an instruction.

    Raises KeyError for an architecture without a table.
    """
    instructions: list[tuple[int, int, int, int]] = [
        (_LOAD_WORD, 0, 0, _OFFSET_ARCHITECTURE),
        (_JUMP_EQUAL, 1, 0, AUDIT_ARCHITECTURE[machine]),
        (_RETURN, 0, 0, _UNKNOWN),
        (_LOAD_WORD, 0, 0, _OFFSET_NUMBER),
    ]
    if machine == "x86_64":
        instructions += [(_JUMP_AT_LEAST, 0, 1, _X32_BIT), (_RETURN, 0, 0, _UNKNOWN)]
    for number in sorted(REFUSED[machine].values()):
        instructions += [(_JUMP_EQUAL, 0, 1, number), (_RETURN, 0, 0, _REFUSE)]
    for number in (_CLONE3, _IO_SETUP[machine]):
        instructions += [(_JUMP_EQUAL, 0, 1, number), (_RETURN, 0, 0, _UNKNOWN)]
    socket, socketpair = _SOCKETS[machine]
    families = len(_FAMILIES)
    instructions += [
        (_JUMP_EQUAL, 1, 0, socket),
        (_JUMP_EQUAL, 0, families + 7, socketpair),
        (_LOAD_WORD, 0, 0, _OFFSET_ARGUMENTS),
        *((_JUMP_EQUAL, families - number, 0, family) for number, family in enumerate(_FAMILIES)),
        (_RETURN, 0, 0, _NO_FAMILY),
        (_JUMP_EQUAL, 0, 3, _NETLINK),
        (_LOAD_WORD, 0, 0, _OFFSET_ARGUMENTS + 16),
        (_JUMP_EQUAL, 0, 1, _USERSOCK),
        (_RETURN, 0, 0, _NO_PROTOCOL),
        (_RETURN, 0, 0, _ALLOW),
    ]
    # The limit of core files stays what it is (`entering`); to read it is no change.
    instructions += [
        (_JUMP_EQUAL, 0, 4, _SETRLIMIT[machine]),
        (_LOAD_WORD, 0, 0, _OFFSET_ARGUMENTS),
        (_JUMP_EQUAL, 0, 1, _RLIMIT_CORE),
        (_RETURN, 0, 0, _DONE_NOTHING),
        (_RETURN, 0, 0, _ALLOW),
        (_JUMP_EQUAL, 0, 8, _PRLIMIT64[machine]),
        (_LOAD_WORD, 0, 0, _OFFSET_ARGUMENTS + 8),
        (_JUMP_EQUAL, 0, 5, _RLIMIT_CORE),
        (_LOAD_WORD, 0, 0, _OFFSET_ARGUMENTS + 16),
        (_JUMP_EQUAL, 0, 2, 0),
        (_LOAD_WORD, 0, 0, _OFFSET_ARGUMENTS + 20),
        (_JUMP_EQUAL, 1, 0, 0),
        (_RETURN, 0, 0, _DONE_NOTHING),
        (_RETURN, 0, 0, _ALLOW),
    ]
    instructions += [
        (_JUMP_EQUAL, 1, 0, _UNSHARE[machine]),
        (_JUMP_EQUAL, 0, 3, _CLONE[machine]),
        (_LOAD_WORD, 0, 0, _OFFSET_ARGUMENTS),
        (_JUMP_ANY_BIT, 0, 1, kernel.CLONE_NEWUSER),
        (_RETURN, 0, 0, _REFUSE),
        (_RETURN, 0, 0, _ALLOW),
    ]
    return b"".join(struct.pack("<HBBI", *instruction) for instruction in instructions)

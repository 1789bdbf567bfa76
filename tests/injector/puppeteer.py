"""What a task would do with a process that it may trace. Run inside: `puppeteer.py PID`.

It stops the process where it waits, makes it do system calls in its own name, and prints what they returned,
as a JSON object; `{"refused": errno}` when the process cannot be traced. A process that nobody limits fills
600 MiB, gets an io_uring, a key of the machine's and a user namespace. (On other machines than x86-64 it
only says that it could.)
"""

import ctypes
import json
import os
import sys

libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
ATTACH, GETREGS, SETREGS, SINGLESTEP, DETACH = 16, 12, 13, 9, 17
MMAP, UNSHARE, KEYCTL, IO_URING_SETUP = 9, 272, 250, 425
NAMES = (
    *("r15", "r14", "r13", "r12", "rbp", "rbx", "r11", "r10", "r9", "r8", "rax", "rcx", "rdx", "rsi", "rdi"),
    *("orig_rax", "rip", "cs", "eflags", "rsp", "ss", "fs", "gs", "ds", "es", "fs_base", "gs_base"),
)
SIZE = 600 << 20


class Registers(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_ulonglong) for name in NAMES)


def trace(request: int, pid: int, data: object = None) -> None:
    address = ctypes.cast(ctypes.byref(data), ctypes.c_void_p) if isinstance(data, Registers) else None
    if libc.ptrace(request, pid, None, address) < 0:
        raise OSError(ctypes.get_errno(), "ptrace")


def call(pid: int, saved: Registers, number: int, *arguments: int) -> int:
    """The process does this at the instruction it waits in."""
    changed = Registers.from_buffer_copy(saved)
    changed.rip -= 2
    changed.rax, changed.orig_rax = number, 2**64 - 1
    for name, value in zip(("rdi", "rsi", "rdx", "r10", "r8", "r9"), arguments, strict=False):
        setattr(changed, name, value % 2**64)
    trace(SETREGS, pid, changed)
    trace(SINGLESTEP, pid)
    os.waitpid(pid, 0)
    trace(GETREGS, pid, changed)
    return ctypes.c_longlong(changed.rax).value


def main(pid: int) -> dict[str, int]:
    try:
        trace(ATTACH, pid)
    except OSError as error:
        return {"refused": error.errno or 0}
    os.waitpid(pid, 0)
    if os.uname().machine != "x86_64":
        return {"traced": pid}
    saved = Registers()
    trace(GETREGS, pid, saved)
    done = {
        "memory": call(pid, saved, MMAP, 0, SIZE, 3, 0x8022, -1, 0),  # populated
        "io_uring": call(pid, saved, IO_URING_SETUP, 1, 0),
        "key": call(pid, saved, KEYCTL, 0, -3, 0),
        "user namespace": call(pid, saved, UNSHARE, 0x10000000),
    }
    trace(SETREGS, pid, saved)
    trace(DETACH, pid)
    return done


print(json.dumps(main(int(sys.argv[1]))))  # noqa: T201

"""What a task would try to look into another process. Run inside, by any Python 3.11: `intruder.py PID...`.

Prints, for every process, what worked, as a JSON object. `self-test` in place of a PID: a child that anybody
of the same user may look into, to show that the attempts are real.
"""

import ctypes
import json
import os
import signal
import sys
from collections.abc import Callable

libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
PTRACE_ATTACH, PTRACE_DETACH, PTRACE_SEIZE = 16, 17, 0x4206
SYS_PIDFD_GETFD = 438


class Vector(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def worked(result: int) -> None:
    if result < 0:
        raise OSError(ctypes.get_errno(), "refused")


def read(name: str) -> Callable[[int], None]:
    def attempt(pid: int) -> None:
        with open(f"/proc/{pid}/{name}", "rb") as file:  # noqa: PTH123
            if not file.read(1):
                raise OSError("nothing to be read")

    return attempt


def memory(pid: int) -> None:
    with open(f"/proc/{pid}/maps") as maps:  # noqa: PTH123
        start = int(maps.readline().split("-")[0], 16)
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as file:  # noqa: PTH123
        file.seek(start)
        file.read(1)


def open_memory(pid: int) -> None:
    os.close(os.open(f"/proc/{pid}/mem", os.O_RDWR))


def descriptors(pid: int) -> None:
    names = os.listdir(f"/proc/{pid}/fd")  # noqa: PTH208
    if not names:
        raise OSError("it has none")
    for name in names:
        os.close(os.open(f"/proc/{pid}/fd/{name}", os.O_RDONLY | os.O_NONBLOCK))


def links(pid: int) -> None:
    os.readlink(f"/proc/{pid}/exe")  # noqa: PTH115


def root_directory(pid: int) -> None:
    os.listdir(f"/proc/{pid}/root/")  # noqa: PTH208


def trace(pid: int) -> None:
    worked(libc.ptrace(PTRACE_ATTACH, pid, None, None))
    os.waitpid(pid, 0)
    worked(libc.ptrace(PTRACE_DETACH, pid, None, None))


def seize(pid: int) -> None:
    worked(libc.ptrace(PTRACE_SEIZE, pid, None, None))


def copy_memory(pid: int) -> None:
    buffer = ctypes.create_string_buffer(1)
    here, there = Vector(ctypes.addressof(buffer), 1), Vector(ctypes.addressof(buffer), 1)
    worked(libc.process_vm_readv(pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0))


def take_descriptor(pid: int) -> None:
    pidfd = os.pidfd_open(pid)
    worked(libc.syscall(SYS_PIDFD_GETFD, pidfd, 0, 0))


ATTEMPTS: dict[str, Callable[[int], None]] = {
    "environ": read("environ"),
    "auxv": read("auxv"),
    "memory": memory,
    "open memory": open_memory,
    "descriptors": descriptors,
    "links": links,
    "root": root_directory,
    "copy memory": copy_memory,
    "take descriptor": take_descriptor,
    "trace": trace,
    "seize": seize,
}


def succeeded(pid: int) -> list[str]:
    found = []
    for name, attempt in ATTEMPTS.items():
        try:
            attempt(pid)
        except OSError:
            continue
        found.append(name)
    return found


def victim() -> int:
    """A child: the same memory, so that addresses of ours exist in it."""
    ready, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(tell, b"1")
        signal.pause()
    os.read(ready, 1)
    return pid


if __name__ == "__main__":
    names = sys.argv[1:]
    found = {name: succeeded(victim() if name == "self-test" else int(name)) for name in names}
    print(json.dumps(found))  # noqa: T201

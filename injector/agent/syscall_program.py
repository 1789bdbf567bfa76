"""Programs of system calls, and the 150-byte executable that makes the calls one after the other.

A process on its way into a sandbox must make some seventy system calls before it may become the command. Done
in Python that takes a fork of the interpreter, whose pages are copied as they are touched: two milliseconds
of processor time. This executable is started without a copy of anything and needs a tenth of that. It also
has nothing in its memory but the command it will be.

The list is an in-memory file at descriptor 3. It begins with a header in which the program records a failure,
then come the calls, 64 bytes each: number, five arguments, the errors to ignore (a bit for each errno; the
lowest bit: a result other than zero is the end), the step that the call belongs to. The last call must be one
that does not return.

A process enters a pid namespace by `bear`: what was prepared outside, unseen by anybody inside, passes to a
child that appears there complete. The child is a child of the starter, and its id is stored in the list.
"""

import errno
import os
import signal
import struct
from collections.abc import Collection, Iterable, Sequence

from orchard.injector.agent import kernel
from orchard.injector.agent.kernel import sealed_file

DESCRIPTOR = 3
"""Descriptor at which the program expects the list."""
NOT_FOUND = (errno.ENOENT, errno.ENOTDIR)
ANY_ERROR = tuple(range(1, 64))

_ADDRESS = 0x1000_0000
_SIZE = 0x100_0000
_DATA = 0x8000
"""Offset of the data, after room for 500 calls."""
_CALLS = 64
_HEADER = struct.Struct("<QQQQ")
"""errno and step of the failure; address of the first call; id of the child."""
_CHILD = 24
_BORN = (
    kernel.CLONE_PARENT | kernel.CLONE_PARENT_SETTID | kernel.CLONE_VM | kernel.CLONE_VFORK | signal.SIGCHLD
)
_OTHER_RESULTS_END = 0
_CALL = struct.Struct("<QQQQQQQQ")
_WORD = struct.Struct("<Q")
_NEGATIVE = 1 << 64
_AT_FDCWD = -100

# fmt: off
_NUMBERS = {
    "x86_64": {
        "setuid": 105, "setgid": 106, "setgroups": 116,
        "write": 1, "close": 3, "ioctl": 16, "socket": 41, "clone": 56, "execve": 59, "chdir": 80,
        "umask": 95, "setsid": 112, "capset": 126, "pivot_root": 155, "prctl": 157, "mount": 165,
        "umount2": 166, "sethostname": 170, "openat": 257, "mkdirat": 258, "mknodat": 259, "symlinkat": 266,
        "unshare": 272, "prlimit64": 302, "setns": 308, "execveat": 322, "close_range": 436,
        "mount_setattr": 442,
    },
    "aarch64": {
        "setgid": 144, "setuid": 146, "setgroups": 159,
        "ioctl": 29, "mknodat": 33, "mkdirat": 34, "symlinkat": 36, "umount2": 39, "mount": 40,
        "pivot_root": 41, "chdir": 49, "openat": 56, "close": 57, "write": 64, "capset": 91, "unshare": 97,
        "setsid": 157, "sethostname": 161, "umask": 166, "prctl": 167, "socket": 198, "clone": 220,
        "execve": 221, "prlimit64": 261, "setns": 268, "execveat": 281, "close_range": 436,
        "mount_setattr": 442,
    },
}
# fmt: on

# base = mmap(_ADDRESS, _SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, DESCRIPTOR, 0)
# for (call = base[2]; ; call += 64) {
#     result = syscall(call[0], call[1], ..., call[5])
#     if (result is an error && !(errno < 64 && call[6] >> errno & 1)) {
#         base[0] = errno; base[1] = call[7]; exit_group(127)
#     }
#     if (result is none && call[6] & 1 && result != 0) exit_group(0)
# }
_CODE = {
    "x86_64": bytes.fromhex(
        "b809000000bf00000010be00000001ba0300000041ba1100000041b8030000004531c90f054889c34c8b6310498b0424"
        "498b7c2408498b742410498b5424184d8b5424204d8b4424280f05483d01f0ffff731341f64424300174054885c0752d"
        "4983c440ebc648f7d84883f83f770b498b4c2430480fa3c172e6488903498b44243848894308bf7f000000eb0231ffb8"
        "e70000000f05"
    ),
    "aarch64": bytes.fromhex(
        "c81b80d20000a2d20120a0d2620080d2230280d2640080d2050080d2010000d4f30300aa740a40f9880240f9808640a9"
        "828e41a9841640f9010000d41ffc3fb1c2000054811a40f941000036c00100b594020191f5ffff17e00300cb1ffc00f1"
        "88000054811a40f92124c09a21ff0737600200f9811e40f9610600f9e00f80d202000014000080d2c80b80d2010000d4"
    ),
}
"""The assembled syscall_program.MACHINE.s."""


def open_program(machine: str) -> int:
    """Return a descriptor of the sealed program. Raises KeyError for an unknown machine (`os.uname`)."""
    return sealed_file("sandbox-entry", elf(machine, _CODE[machine]), executable=True)


class SyscallProgram:
    """Calls and the data they point to, for a machine as `os.uname` names it."""

    def __init__(self, machine: str, prepared: "SyscallProgram | None" = None) -> None:
        """The calls of `prepared` can be appended: its data is included at the same addresses."""
        self._numbers = _NUMBERS[machine]
        self._calls = bytearray()
        self._data: bytearray = bytearray() if prepared is None else prepared._data[:]

    def put(self, content: bytes) -> int:
        """Add data; returns the address that it will have."""
        address = _ADDRESS + _DATA + len(self._data)
        self._data += content
        self._data += bytes(-len(content) % 8)
        return address

    def text(self, text: str | bytes) -> int:
        """Add a string; returns its address. Raises OSError (EINVAL) for surrogates and zero bytes."""
        try:
            content = os.fsencode(text)
        except UnicodeEncodeError as error:
            raise OSError(errno.EINVAL, "it is no text") from error
        if b"\0" in content:
            raise OSError(errno.EINVAL, "it contains a zero byte")
        return self.put(content + b"\0")

    def texts(self, texts: Iterable[str | bytes]) -> int:
        """Add an array of strings, as execve takes it; returns its address."""
        return self.put(b"".join(map(_WORD.pack, [*map(self.text, texts), 0])))

    def call(self, name: str, *arguments: int, step: int = 0, passing_over: Collection[int] = ()) -> None:
        """Append a call. Errors in `passing_over` are ignored."""
        words = [argument % _NEGATIVE for argument in (*arguments, 0, 0, 0, 0, 0)[:5]]
        passed = sum(1 << number for number in passing_over)
        self._calls += _CALL.pack(self._numbers[name], *words, passed, step)

    def append(self, prepared: "SyscallProgram") -> None:
        self._calls += prepared._calls

    def bear(self, *, step: int = 0) -> None:
        """Append a fork: a child in the new pid namespace makes all following calls.

        It is a child of this process's parent. This process ends when the child has become the command, or
        ended.
        """
        self.call("clone", _BORN, 0, _ADDRESS + _CHILD, step=step, passing_over=(_OTHER_RESULTS_END,))

    def open_files(self, paths: Sequence[str], free: int, *, step: int = 0) -> list[int]:
        """Append opening existing files for writing; returns the descriptors that they will have."""
        for path in paths:
            self.call("openat", _AT_FDCWD, self.text(path), os.O_WRONLY | os.O_CLOEXEC, step=step)
        return [free + number for number in range(len(paths))]

    def write(self, descriptor: int, content: bytes, *, step: int = 0) -> None:
        self.call("write", descriptor, self.put(content), len(content), step=step)

    def write_file(self, path: str, content: bytes, free: int, *, step: int = 0) -> None:
        """Append writing to an existing file; `free` is the lowest unused descriptor."""
        self.open_files([path], free, step=step)
        self.write(free, content, step=step)
        self.call("close", free, step=step)

    def search(self, programs: Sequence[tuple[str, int]], environment: int, *, step: int) -> None:
        """Append executing the first program that exists, of (path, address of its argv).

        Like the C library, it skips those that cannot be executed, and reports the first such failure if no
        other can.
        """
        paths = [(self.text(path), argv) for path, argv in programs]
        for path, argv in paths:
            self.call("execve", path, argv, environment, step=step, passing_over=ANY_ERROR)
        for path, argv in paths[:-1]:
            self.call("execve", path, argv, environment, step=step, passing_over=NOT_FOUND)
        self.call("execve", *paths[-1], environment, step=step)

    def open(self) -> int:
        """Return a descriptor of a new file with the calls. Raises OSError (E2BIG) when they do not fit."""
        head = _HEADER.pack(0, 0, _ADDRESS + _CALLS, 0)
        if _CALLS + len(self._calls) > _DATA or _DATA + len(self._data) > _SIZE:
            raise OSError(errno.E2BIG, os.strerror(errno.E2BIG))
        descriptor = os.memfd_create("calls", os.MFD_CLOEXEC)
        view, place = memoryview(self._data), _DATA
        os.pwrite(descriptor, head + bytes(_CALLS - len(head)) + self._calls, 0)
        while view:
            written = os.pwrite(descriptor, view, place)
            view, place = view[written:], place + written
        return descriptor


def failure(calls: int) -> tuple[int, int] | None:
    """Return errno and step of the call that failed, if any."""
    number, step, _, _ = _HEADER.unpack(os.pread(calls, _HEADER.size, 0))
    return (number, step) if number else None


def child(calls: int) -> int:
    """Return the child's process id as its starter sees it; 0 before it exists."""
    return int(_HEADER.unpack(os.pread(calls, _HEADER.size, 0))[3])


_MACHINE = {"x86_64": 62, "aarch64": 183}
_BASE = 0x400000
_HEADERS = 64 + 56


def elf(machine: str, code: bytes) -> bytes:
    """Return an ELF executable for `machine` (as `os.uname` names it) whose entry is the first byte of
    `code`.

    Raises KeyError for an unknown machine.
    """
    header = struct.pack(
        "<16sHHIQQQIHHHHHH",
        b"\x7fELF\x02\x01\x01",
        2,
        _MACHINE[machine],
        1,
        _BASE + _HEADERS,
        64,
        0,
        0,
        64,
        56,
        1,
        64,
        0,
        0,
    )
    size = _HEADERS + len(code)
    segment = struct.pack("<IIQQQQQQ", 1, 5, 0, _BASE, _BASE, size, size, 0x1000)
    return header + segment + code

"""The first process of a local sandbox: a static program of 200 bytes that needs nothing from the image.

It ignores SIGCHLD, so the kernel reaps orphans for it; writes one byte to its standard output, which says
that the sandbox is complete; closes every descriptor; sleeps. When nobody can read the byte any more it
ends: spawner and agent may both have been killed before it asked to die with its parent. It is handed over
as a sealed in-memory file, so the `/proc/1/exe` that a task can find leads to nothing that could be
changed.
"""

import struct

from orchard.injector.agent.executables import elf
from orchard.injector.agent.kernel import sealed_file

# rt_sigaction(SIGCHLD, {SIG_IGN}, NULL, 8);
# if (write(1, "\x01", 1) != 1) exit(1);
# close_range(0, ~0, 0); for (;;) pause();
_X86_64 = bytes.fromhex(
    "b80d000000 bf11000000 488d354f000000 31d2 41ba08000000 0f05"  # rt_sigaction
    "b801000000 bf01000000 488d3534000000 ba01000000 0f05 ffc8 7519"  # write
    "b8b4010000 31ff beffffffff 31d2 0f05"  # close_range
    "b822000000 0f05 ebf7"  # pause, again
    "b83c000000 bf01000000 0f05"  # exit
    "0f1f4000"  # up to a multiple of 8
)
# The same; for want of pause, ppoll(NULL, 0, NULL, NULL, 0).
_AARCH64 = bytes.fromhex(
    "c81080d2 200280d2 81030010 020080d2 030180d2 010000d4"
    "080880d2 200080d2 c1020010 220080d2 010000d4 1f0400f1 c1010054"
    "883680d2 000080d2 01008012 020080d2 010000d4"
    "280980d2 000080d2 010080d2 020080d2 030080d2 040080d2 010000d4 f9ffff17"
    "a80b80d2 200080d2 010000d4 1f2003d5"
)
_ACTION = struct.pack(
    "<QQQQ", 1, 0, 0, 0
)  # SIG_IGN, no flags, no restorer, no mask; its first byte is written
_CODE = {"x86_64": _X86_64, "aarch64": _AARCH64}


def image(machine: str) -> bytes:
    """The ELF executable for `machine` (as `os.uname` names it); KeyError for an unknown one."""
    return elf(machine, _CODE[machine] + _ACTION)


def open_program(machine: str) -> int:
    """Descriptor of the sealed executable."""
    return sealed_file("sandbox-first-process", image(machine), executable=True)

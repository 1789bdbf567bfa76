"""The first process of a local sandbox: a static program of 200 bytes that needs nothing from the image.

It ignores SIGCHLD, so that the kernel reaps orphans for it; writes one byte to its standard output, which
says that the sandbox is complete; closes every descriptor; sleeps. If nobody can read the byte any more it
exits: spawner and agent may both have been killed before it asked to die with its parent. It is passed as a
sealed in-memory file, so the `/proc/1/exe` that a task can find leads to nothing that could be changed.
"""

from orchard.injector.agent.kernel import sealed_file
from orchard.injector.agent.syscall_program import elf

_CODE = {
    "x86_64": bytes.fromhex(
        "b80d000000bf11000000488d354f00000031d241ba080000000f05b801000000bf01000000488d3534000000ba010000"
        "000f05ffc87519b8b401000031ffbeffffffff31d20f05b8220000000f05ebf7b83c000000bf010000000f050f1f4000"
        "0100000000000000000000000000000000000000000000000000000000000000"
    ),
    "aarch64": bytes.fromhex(
        "c81080d2200280d281030010020080d2030180d2010000d4080880d2200080d2c1020010220080d2010000d41f0400f1"
        "c1010054883680d2000080d201008012020080d2010000d4280980d2000080d2010080d2020080d2030080d2040080d2"
        "010000d4f9ffff17a80b80d2200080d2010000d41f2003d5010000000000000000000000000000000000000000000000"
        "0000000000000000"
    ),
}
"""The assembled first_process.MACHINE.s."""


def image(machine: str) -> bytes:
    """Return the ELF executable for `machine` (as `os.uname` names it). Raises KeyError for an unknown
    one."""
    return elf(machine, _CODE[machine])


def open_program(machine: str) -> int:
    return sealed_file("sandbox-first-process", image(machine), executable=True)

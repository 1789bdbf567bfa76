"""Writes static executables of a few hundred bytes from machine code; they need nothing of the image."""

import struct

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

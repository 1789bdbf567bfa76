"""Parses 64-bit little-endian ELF files as far as the loader does."""

import struct
from collections.abc import Iterator

MAGIC = b"\x7fELF"
_CLASS_AND_ORDER = b"\x02\x01"
"""64 bits, little-endian, as on all machines that run containers."""
_SEGMENT = struct.Struct("<IIQQQQQQ")
_DYNAMIC = struct.Struct("<qQ")
_PT_DYNAMIC, _PT_INTERP = 2, 3
_DT_NULL, _DT_RPATH, _DT_RUNPATH = 0, 15, 29


class PayloadError(Exception):
    """An error whose message is one sentence that names the remedy."""


def interpreter(program: bytes) -> str:
    """Return the path of the program's loader. Raises PayloadError when it names none."""
    for kind, offset, size in _segments(program):
        if kind == _PT_INTERP:
            return program[offset : offset + size].rstrip(b"\0").decode()
    raise PayloadError("the interpreter is linked statically and cannot load extensions: use another Python")


def condensed(file: bytes) -> bytes:
    """Return what the loader reads of the file: without debug symbols and search paths.

    Sections, which only linkers and debuggers read, lie behind the last segment and are cut off.
    """
    end = max(offset + size for _, offset, size in _segments(file))
    result = bytearray(file[:end])
    struct.pack_into("<Q", result, 40, 0)  # e_shoff
    struct.pack_into("<HH", result, 60, 0, 0)  # e_shnum, e_shstrndx
    for kind, offset, size in _segments(file):
        if kind == _PT_DYNAMIC:
            entries = list(_DYNAMIC.iter_unpack(file[offset : offset + size]))
            kept = [entry for entry in entries if entry[0] not in (_DT_RPATH, _DT_RUNPATH)]
            kept += [(_DT_NULL, 0)] * (len(entries) - len(kept))
            result[offset : offset + size] = b"".join(_DYNAMIC.pack(*entry) for entry in kept)
    return bytes(result)


def _segments(file: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield type, offset and size in the file (bytes) of each segment."""
    if file[:4] != MAGIC or file[4:6] != _CLASS_AND_ORDER:
        raise PayloadError("only programs of 64-bit little-endian machines can be put into a payload")
    (start,) = struct.unpack_from("<Q", file, 32)  # e_phoff
    (count,) = struct.unpack_from("<H", file, 56)  # e_phnum
    for number in range(count):
        kind, _, offset, _, _, size, _, _ = _SEGMENT.unpack_from(file, start + number * _SEGMENT.size)
        yield kind, offset, size

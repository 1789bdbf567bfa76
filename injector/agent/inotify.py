"""Binding of inotify(7)."""

import ctypes
import os
import struct
from typing import NamedTuple

MODIFY, ATTRIB, MOVED_FROM, MOVED_TO = 0x2, 0x4, 0x40, 0x80
CREATE, DELETE, DELETE_SELF, MOVE_SELF = 0x100, 0x200, 0x400, 0x800
OVERFLOW, IGNORED, IS_DIRECTORY = 0x4000, 0x8000, 0x40000000
_ONLY_DIRECTORIES, _NOT_UNLINKED = 0x01000000, 0x04000000
_CONTENT = MODIFY | ATTRIB | MOVED_FROM | MOVED_TO | CREATE | DELETE
_ALL = _CONTENT | DELETE_SELF | MOVE_SELF | _ONLY_DIRECTORIES | _NOT_UNLINKED
_HEAD = struct.Struct("iIII")
_READ = 64 * 1024

_libc = ctypes.CDLL(None, use_errno=True)


class InotifyEvent(NamedTuple):
    """An event about the directory with the number `watch`, or about the entry `name` in it."""

    watch: int
    mask: int
    name: str


def opened() -> int:
    """Return a non-blocking descriptor. Raises OSError; EMFILE: the account has no more of them."""
    return _checked(_libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC), "inotify_init1")


def add(inotify: int, directory: int) -> int:
    """Watch an open directory; returns its number. Raises OSError; ENOSPC: the account may watch no more."""
    path = f"/proc/self/fd/{directory}".encode()
    return _checked(_libc.inotify_add_watch(inotify, path, ctypes.c_uint32(_ALL)), "inotify_add_watch")


def drop(inotify: int, watch: int) -> None:
    _libc.inotify_rm_watch(inotify, watch)


def read(inotify: int) -> list[InotifyEvent]:
    """Read the pending events in order, up to some thousand."""
    try:
        data = os.read(inotify, _READ)
    except BlockingIOError:
        return []
    found: list[InotifyEvent] = []
    at = 0
    while at < len(data):
        watch, mask, _, size = _HEAD.unpack_from(data, at)
        at += _HEAD.size + size
        found.append(InotifyEvent(watch, mask, os.fsdecode(data[at - size : at].rstrip(b"\0"))))
    return found


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)
    return result

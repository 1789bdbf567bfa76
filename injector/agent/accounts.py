"""Resolves the user that a command runs as from the sandbox's /etc/passwd and /etc/group."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from orchard.injector.agent.errors import RequestInvalid
from orchard.injector.agent.kernel import open_beneath

_MOST = 1 << 18
"""Bytes read of either file, which the task may have made as large as it likes."""
_MOST_GROUPS = 1000


class UserAccount(NamedTuple):
    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str


ROOT = UserAccount(0, 0, (), "/root")


def account(root: int, name: str) -> UserAccount:
    """Resolve `name`, `name:group` or their numbers, as in an image's USER. Raises RequestInvalid.

    `root` is a descriptor of the sandbox's root.
    """
    user, colon, group = name.partition(":")
    entries = [entry for entry in _entries(root, "/etc/passwd", 7) if _number(entry[2]) is not None]
    number = _number(user)
    found = next((entry for entry in entries if entry[0] == user), None)
    if found is None and number is not None:
        found = next((entry for entry in entries if _number(entry[2]) == number), None)
    if found is None and number is None:
        raise RequestInvalid(f"there is no user `{user[:100]}` in the sandbox: name one of its /etc/passwd")
    uid = number or 0 if found is None else int(found[2])
    gid = 0 if found is None else _number(found[3]) or 0
    groups: list[int] = []
    if found is not None:
        for entry in _entries(root, "/etc/group", 4):
            one = _number(entry[2])
            if one is not None and found[0] in entry[3].split(",") and len(groups) < _MOST_GROUPS:
                groups.append(one)
    if colon:
        gid, groups = _group(root, group), []
    return UserAccount(uid, gid, tuple(groups), "/" if found is None else found[5] or "/")


def others() -> bool:
    return sum(int(line.split()[2]) for line in Path("/proc/self/uid_map").read_text().splitlines()) > 1


def _group(root: int, name: str) -> int:
    number = _number(name)
    for entry in _entries(root, "/etc/group", 4):
        if entry[0] == name and (found := _number(entry[2])) is not None:
            return found
    if number is None:
        raise RequestInvalid(f"there is no group `{name[:100]}` in the sandbox: name one of its /etc/group")
    return number


def _number(text: str) -> int | None:
    if text.isascii() and text.isdigit() and len(text) < 11 and int(text) < 2**32 - 1:
        return int(text)
    return None


def _entries(root: int, path: str, fields: int) -> Iterator[list[str]]:
    try:
        fd = open_beneath(root, path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return
    with os.fdopen(fd, "rb") as file:
        try:
            content = file.read(_MOST)
        except OSError:  # a directory, or a device
            return
    for line in (content or b"").decode(errors="replace").splitlines():
        entry = line.split(":")
        if len(entry) >= fields:
            yield entry

"""File permissions of commands: what they write is its owner's alone, but for what is made to be shared."""

import os

_users: list[int] = []
"""The mask that the user set, once `keep_private` has replaced it."""


def keep_private() -> None:
    """Lets nobody else read what this process writes: the store holds gold patches and trajectories."""
    _users[:] = [os.umask(0o077)]


def users_mask() -> int | None:
    """Mask that the user set; None if it is the process's own."""
    return _users[0] if _users else None

"""Fork safety: keeps a forked child from disturbing its parent's clients.

The child has copies of the parent's sockets and event loops, but both share the kernel's list of what a loop
waits for (epoll): a finalizer in the child that removes a socket from it removes it for the parent, which
then waits for ever. So in the child none of this is ever finalized, and its copies of the loops wait by lists
of their own.
"""

import asyncio
import ctypes
import os
import select
import weakref
from typing import Protocol


class Inherited(Protocol):
    """An object with something to give up in a forked child."""

    def forked(self) -> None:
        """Called in the child, before anything else runs there."""


_inherited: "weakref.WeakSet[Inherited]" = weakref.WeakSet()


def watch(one: Inherited) -> None:
    """Notify `one` of forks as long as it lives."""
    _inherited.add(one)


def leave_alone(kept: object) -> None:
    """Never finalize `kept`, not even at the end of this process."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))


def part_with(loop: asyncio.AbstractEventLoop) -> None:
    """Give the child's copy of the loop an epoll list of its own, which is empty."""
    selector = getattr(loop, "_selector", None)  # a loop that is not asyncio's own has none
    if selector is None or loop.is_closed():
        return
    with select.epoll() as own:
        os.dup2(own.fileno(), selector.fileno(), inheritable=False)
    leave_alone(loop)


def _forked() -> None:
    for one in list(_inherited):
        one.forked()


os.register_at_fork(after_in_child=_forked)

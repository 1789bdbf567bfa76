"""What a forked child gets of its parent's clients and must not touch.

The child has copies of the parent's sockets and event loops, but the kernel's list of what a loop waits for
(epoll) is one: a finalizer in the child that takes a socket out of it takes it out for the parent,
which then waits for ever. So in the child nothing of this is ever finalized, and its copies of the loops wait
by lists of their own.
"""

import asyncio
import ctypes
import os
import select
import weakref
from typing import Protocol


class Inherited(Protocol):
    """What has something to give up in a forked child."""

    def forked(self) -> None:
        """Called in the child, before anything else runs there."""


_inherited: "weakref.WeakSet[Inherited]" = weakref.WeakSet()


def watch(one: Inherited) -> None:
    """Tell it of forks, as long as it lives."""
    _inherited.add(one)


def leave_alone(kept: object) -> None:
    """Never finalize it, not even at the end of this process."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))


def part_with(loop: asyncio.AbstractEventLoop) -> None:
    """In the child: from now on its copy of the loop waits by a list of its own, which is empty."""
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

"""Ending a task for certain."""

import asyncio
from typing import Any

AGAIN_SECONDS = 10.0
"""Time that a task has to clean up before it is cancelled again."""


async def end(task: "asyncio.Task[Any]") -> None:
    """Cancel a task and return when it has ended, however; what it raised is still its own to tell.

    One `cancel` is not enough before Python 3.12: where it meets the result of what `asyncio.wait_for` waits
    for, it is swallowed, and a task that works in a loop goes on for ever.
    """
    while not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=AGAIN_SECONDS)

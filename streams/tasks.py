"""Ending a task for certain, and waiting so that it can be."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

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


async def waited(awaited: Coroutine[Any, Any, T], seconds: float | None) -> T:
    """What it gives within so many seconds; raises TimeoutError. Use it in every loop that is cancelled to
    end it: unlike `asyncio.wait_for` before Python 3.12 it swallows no cancellation."""
    async with asyncio.timeout(seconds):
        return await awaited

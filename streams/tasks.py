"""Ends tasks for certain, and waits so that a waiter can be cancelled."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

AGAIN_SECONDS = 10.0
"""Seconds that a task has to clean up before it is cancelled again."""


async def end(task: "asyncio.Task[Any]") -> None:
    """Cancels a task and returns when it has ended; its exception stays in the task.

    One `cancel` is not enough before Python 3.12: where it meets the result of what `asyncio.wait_for` waits
    for, it is swallowed, and a task that works in a loop runs for ever.
    """
    while not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=AGAIN_SECONDS)


async def waited(awaited: Coroutine[Any, Any, T], seconds: float | None) -> T:
    """Awaits a coroutine for at most so many seconds; raises TimeoutError. Use it in every loop that is
    cancelled to end it: unlike `asyncio.wait_for` before Python 3.12 it swallows no cancellation."""
    async with asyncio.timeout(seconds):
        return await awaited

"""A task that is told to end does."""

import asyncio
from contextlib import suppress

import pytest

from orchard.streams import tasks


async def test_a_task_ends_though_a_wait_swallows_its_first_cancellation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tasks, "AGAIN_SECONDS", 0.1)
    lost = asyncio.Event()
    swallowed = 0

    async def watch() -> None:
        nonlocal swallowed
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(lost.wait(), 1000)
            lost.clear()
            swallowed += 1

    task = asyncio.create_task(watch())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    lost.set()
    await asyncio.sleep(0)  # what is waited for has ended, who waits for it does not know yet
    async with asyncio.timeout(30):
        await tasks.end(task)
    assert task.cancelled()
    assert swallowed == 1  # in Python 3.12 and later because it is woken before it is cancelled


@pytest.mark.parametrize("turns", range(5))
async def test_a_cancel_that_meets_what_is_waited_for_ends_the_loop(turns: int) -> None:
    news = asyncio.Event()

    async def work() -> None:
        while True:
            await tasks.waited(news.wait(), 60.0)
            news.clear()

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    news.set()
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

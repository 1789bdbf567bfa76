"""A worker of any kind is killed in its middle, and another one finishes what it had begun."""

import asyncio
import signal
from collections.abc import Awaitable, Callable

from tests.attempts_world import SECONDS, World


async def killed_in_the_middle(
    place: World, words: tuple[str, ...], begun: Callable[[], Awaitable[bool]]
) -> None:
    """SIGKILL a process of this command as soon as it has `begun`."""
    process = place.process(*words)
    try:
        async with asyncio.timeout(SECONDS):
            while not await begun():
                assert process.poll() is None, f"{words} has ended by itself"
                await asyncio.sleep(0.02)
        process.send_signal(signal.SIGKILL)
    finally:
        process.kill()
        await asyncio.to_thread(process.wait)

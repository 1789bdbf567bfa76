"""Runs a process until SIGTERM or SIGINT."""

import asyncio
import signal
from collections.abc import Callable, Coroutine
from typing import Any

from orchard.streams.tasks import end


def stop_on_signals(loop: asyncio.AbstractEventLoop) -> asyncio.Event:
    """Returns an event that SIGTERM and SIGINT set."""
    stop = asyncio.Event()
    call_on_signals(loop, stop.set)
    return stop


def call_on_signals(loop: asyncio.AbstractEventLoop, told: Callable[[], None]) -> None:
    """Registers a handler of SIGTERM and SIGINT."""
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told)


async def run_until(stop: asyncio.Event, work: Coroutine[Any, Any, None]) -> None:
    """Runs `work` until `stop` is set and raises what it raises."""
    stopping, working = asyncio.create_task(stop.wait()), asyncio.create_task(work)
    await asyncio.wait({stopping, working}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    await end(working)
    if not working.cancelled():
        working.result()

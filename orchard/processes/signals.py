"""Ends processes: at SIGTERM or SIGINT, or with their parent."""

import asyncio
import ctypes
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


PR_SET_PDEATHSIG = 1
_prctl = ctypes.CDLL(None).prctl
"""Looked up at import: between fork and exec the loader's lock may be held by a thread that does not exist
in the child."""


def die_with_parent() -> None:
    """Makes the kernel kill this child when its parent dies; for `preexec_fn`."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)

"""Workers are killed in the middle of what they do."""

import asyncio
import os
import random
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress

from orchard.schemas.events import Event
from orchard.streams.replay import replay
from tests.attempts_world import World

SECONDS = 100.0
WORKERS = 2
EVERY = 3
"""Rollouts that end between two faults."""

Fault = Callable[[random.Random], Awaitable[bool]]
"""Breaks something of a rollout that runs; False where there is nothing to break."""


async def killed_in_the_middle(
    words: tuple[str, ...], environment: Mapping[str, str], begun: Awaitable[object]
) -> None:
    """SIGKILL a process of this `orchard` command when it has `begun`; another one has to finish."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "orchard", *words),
        env={**os.environ, **environment},
        stdin=asyncio.subprocess.DEVNULL,
    )
    try:
        await asyncio.wait_for(begun, SECONDS)
        assert process.returncode is None, "it ended by itself"
    finally:
        process.kill()
        await process.wait()


async def survived(
    place: World,
    rollouts: Sequence[str],
    order: Sequence[str],
    faults: Mapping[str, Fault],
    *,
    seconds: float,
) -> tuple[dict[str, Event], Counter[str]]:
    """The outcomes of rollouts while faults come in this order, and how many of each came. The fault `worker`
    kills one of two workers and starts another; so does a fault that finds nothing to break."""
    chance = random.Random(11)
    workers = [place.worker_process(f"w{number}") for number in range(WORKERS)]
    came: Counter[str] = Counter()

    async def disturb() -> None:
        ended = 0
        async for _ in replay(place.connection, subjects="orchard.events.done.>", follow=True):
            ended += 1
            if ended % EVERY:
                continue
            kind = order[came.total()]
            if kind not in faults or not await faults[kind](chance):
                kind, number = "worker", chance.randrange(WORKERS)
                workers[number].kill()
                await asyncio.to_thread(workers[number].wait)
                workers[number] = place.worker_process(f"w{number}-{ended}")
            came[kind] += 1
            if came.total() == len(order):
                return

    disturbing = asyncio.create_task(disturb())
    try:
        async with place.kept():
            outcomes = await place.outcomes(*rollouts, seconds=seconds)
        disturbing.cancel()
        with suppress(asyncio.CancelledError):
            await disturbing
    finally:
        disturbing.cancel()
        for worker in workers:
            worker.terminate()
        for worker in workers:
            worker.wait()
    return outcomes, came

"""Runs the whole pipeline during a block."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from orchard.actions.session import Session
from orchard.configuration.config import Config
from orchard.configuration.flags import up_environment
from orchard.processes.up import Supervisor


@asynccontextmanager
async def pipeline(config: Config, announce: Callable[[str], None]) -> AsyncIterator[Session]:
    """Runs everything that `orchard up` runs until the block ends."""
    session = Session(config)
    stop, ready = asyncio.Event(), asyncio.Event()
    environment = up_environment(config)
    supervisor = Supervisor(config, announce=announce, environment=environment)
    running = asyncio.create_task(supervisor.run(stop, ready))
    started = asyncio.create_task(ready.wait())
    try:
        await asyncio.wait({running, started}, return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            running.result()
        yield session
    except BaseException as error:
        if not isinstance(error, asyncio.CancelledError):
            supervisor.hurry()
        raise
    finally:
        started.cancel()
        stop.set()
        await running

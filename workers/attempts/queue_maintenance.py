"""Background work on the queues: buries dead letters, and forwards delayed requests when they are due or when
the endpoint that they wait for answers again."""

import asyncio

from orchard.streams.awaiting import Releases
from orchard.streams.connection import Connection
from orchard.streams.delayed import Delayed
from orchard.streams.undelivered import Undelivered
from orchard.workers.attempts.deadletters import DeadLetters


async def maintain_queues(connection: Connection) -> None:
    """Runs until cancelled. At least one process must run it; any number may.

    It belongs in a process that is always there: with the whole fleet scaled to zero, it turns a due request
    into work that wakes a worker.
    """
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(Undelivered(connection, DeadLetters(connection).bury).run())
        tasks.create_task(Delayed(connection).run())
        tasks.create_task(Releases(connection).run())

"""The housekeeping of the queues: dead letters are buried, and delayed requests forwarded when due or when
the endpoint that they wait for answers again."""

import asyncio

from orchard.streams.awaiting import Releases
from orchard.streams.connection import Connection
from orchard.streams.delayed import Delayed
from orchard.streams.undelivered import Undelivered
from orchard.workers.attempts.deadletters import DeadLetters


async def keep(connection: Connection) -> None:
    """Run it until cancelled. At least one process of the house must; any number may.

    It belongs into a process that is always there: with the whole fleet scaled to zero, this is what turns a
    due request into work that wakes it.
    """
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(Undelivered(connection, DeadLetters(connection).bury).run())
        tasks.create_task(Delayed(connection).run())
        tasks.create_task(Releases(connection).run())

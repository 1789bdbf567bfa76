"""The process of the steward."""

import asyncio
import socket

from orchard.pipelines.reconciling import Reconciler
from orchard.processes.signals import run_until, stop_on_signals
from orchard.session import Session
from orchard.streams.health import reporting
from orchard.streams.tasks import end
from orchard.streams.topology import declare
from orchard.workers.keeper import keep


async def run_steward(session: Session) -> None:
    """The housekeeping of the queues until told to stop."""
    stop = stop_on_signals(asyncio.get_running_loop())
    async with session.reading_connection("steward") as connection:
        await declare(connection, session.config.nats, [])
        async with session.guard(connection, hold=True), asyncio.TaskGroup() as tasks:
            reconciling = tasks.create_task(Reconciler(connection, session.blobs).run())
            async with reporting(connection, "steward", f"steward on {socket.gethostname()}"):
                await run_until(stop, keep(connection))
            await end(reconciling)

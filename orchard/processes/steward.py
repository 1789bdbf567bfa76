"""Runs the maintenance of the queues."""

import asyncio
import logging
import socket

import duckdb
import msgspec

from orchard.actions.session import Session
from orchard.pipelines.campaigns.breaking import Breaker
from orchard.pipelines.campaigns.reconciling import Reconciler
from orchard.pipelines.campaigns.spending import CostWatch
from orchard.pipelines.campaigns.team_quotas import TeamQuotas
from orchard.processes.probe import probing
from orchard.processes.queue_demand import follow_queue
from orchard.processes.signals import run_until, stop_on_signals
from orchard.storage.campaigns import restore_campaigns
from orchard.storage.errors import StorageError
from orchard.storage.reader import position
from orchard.streams.connection import Connection
from orchard.streams.errors import CampaignConflict
from orchard.streams.event_streams import log_end
from orchard.streams.health import reporting
from orchard.streams.tasks import end
from orchard.streams.topology import declare
from orchard.workers.attempts.queue_maintenance import maintain_queues

log = logging.getLogger(__name__)

BEHIND_SECONDS = 1.0
"""Interval of looks at tables that lack events of the stream."""
AGAIN_SECONDS = 15.0
"""Seconds until the book is compared again after that failed."""


async def run_steward(session: Session, probe_port: int | None = None) -> None:
    """Runs the maintenance of the queues until SIGTERM or SIGINT."""
    stop = stop_on_signals(asyncio.get_running_loop())
    async with session.reading_connection("steward") as connection:
        await declare(connection, session.config.nats, [])
        async with (
            probing(probe_port, "steward", connection),
            session.guard(connection, hold=True),
            asyncio.TaskGroup() as tasks,
        ):
            store = session.config.store
            own = [
                Reconciler(connection, session.blobs).run(),
                CostWatch(connection, store).run(),
                Breaker(connection).run(),
                TeamQuotas(connection, store, session.config.teams).run(),
                keep_book(store, connection),
            ]
            if session.config.sandbox.follow_queue:
                own.append(follow_queue(session))
            beside = [tasks.create_task(one) for one in own]
            async with reporting(connection, "steward", f"steward on {socket.gethostname()}"):
                await run_until(stop, maintain_queues(connection))
            for task in beside:
                await end(task)


async def keep_book(store_url: str, connection: Connection) -> None:
    """Put back what the book of campaigns has lost: at the start, and after each loss of the connection.

    A server finds at its start what its disk has damaged. The tables are asked when they have what the
    stream has by then: a change that only the stream has would be taken for one that never was.
    """
    look, told = asyncio.Event(), ""
    look.set()
    connection.on_loss(look.set)
    while True:
        await look.wait()
        look.clear()
        last = await log_end(connection)
        try:
            while not look.is_set():
                if (await asyncio.to_thread(position, store_url)).reaches(last):
                    break
                await asyncio.sleep(BEHIND_SECONDS)
            if look.is_set():
                continue
            for name in await restore_campaigns(store_url, connection):
                log.error("NATS had lost the newest record of campaign %s: it is put back from the log", name)
        except (StorageError, CampaignConflict, duckdb.Error, msgspec.DecodeError) as error:
            if str(error) != told:
                told = str(error)
                log.warning("the campaigns cannot be compared with the log: %s", error)
            await asyncio.sleep(AGAIN_SECONDS)
            look.set()

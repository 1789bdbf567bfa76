"""Runs the writer, and archiving by age."""

import asyncio
from datetime import timedelta

import msgspec

from orchard.actions.session import Session
from orchard.pipelines.campaigns.archiving import Archiving
from orchard.processes.probe import probing
from orchard.processes.signals import stop_on_signals
from orchard.schemas.health import ProcessReport
from orchard.storage.allocation import save_memory
from orchard.storage.writing.writer import Writer
from orchard.streams.connection import Connection
from orchard.streams.health import reporting
from orchard.streams.settings import queues_in
from orchard.streams.stream_check import WRITER_SETTLE_SECONDS
from orchard.streams.tasks import end
from orchard.streams.topology import declare

HELD_SECONDS = 0.5
"""Seconds between the writer's checks of the stream."""


async def run_writer(session: Session, probe_port: int | None = None) -> None:
    """Runs the writer until SIGTERM or SIGINT; it commits the stream's events before it ends.

    While the stream is not whole it lets go of the store, for `store restore-stream`.
    """
    save_memory()
    stop = stop_on_signals(asyncio.get_running_loop())
    async with session.reading_connection("writer") as connection:
        queues = queues_in(session.config.nats.queues)
        await declare(connection, session.config.nats, queues, session.config.teams)
        position: dict[str, float] = {}
        async with (
            probing(probe_port, "writer", connection, lambda: position),
            session.guard(connection, hold=True, settle=WRITER_SETTLE_SECONDS),
        ):
            while not stop.is_set():
                if connection.held:
                    await asyncio.sleep(HELD_SECONDS)
                else:
                    await _write_while_whole(session, connection, stop, position)


async def _write_while_whole(
    session: Session, connection: Connection, stop: asyncio.Event, numbers: dict[str, float]
) -> None:
    """Writes until `stop` is set or the stream check fails; `numbers` are kept for the probe."""
    config, pause = session.config, asyncio.Event()
    writer = Writer(config.store, connection, config.writer, config.archive)

    def look(report: ProcessReport) -> ProcessReport:
        return msgspec.structs.replace(report, numbers={"position": float(writer.position.events)})

    async with reporting(connection, "writer", "writer", look), asyncio.TaskGroup() as tasks:
        archiving = None
        if (days := config.archive.after_days) is not None:
            work = Archiving(connection, config.store, session.blobs, config.archive)
            archiving = tasks.create_task(work.run(timedelta(days=days)))
        writing = tasks.create_task(writer.run(pause))
        while not writing.done():
            await asyncio.wait({writing}, timeout=HELD_SECONDS)
            numbers["orchard_writer_position"] = float(writer.position.events)
            if connection.held or stop.is_set():
                pause.set()
        if archiving is not None:
            await end(archiving)

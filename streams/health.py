"""Sends and reads reports of processes about themselves: one short message each, in the server's memory.

No request and no outcome depends on them. A report that cannot be sent is left out; the next one follows.
"""

import asyncio
import logging
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import msgspec
from nats.errors import Error as NatsError

from orchard.schemas.decoding import Unreadable, decode
from orchard.schemas.health import REPORT_SECONDS, Condition, HeardReport, ProcessReport
from orchard.schemas.identity import digest
from orchard.schemas.positions import MOST_STREAMS
from orchard.streams import names
from orchard.streams.batches import messages_of
from orchard.streams.connection import Connection
from orchard.streams.reading import server_time
from orchard.streams.tasks import end

log = logging.getLogger(__name__)

_REPORTS = msgspec.json.Decoder(ProcessReport)

Look = Callable[[ProcessReport], ProcessReport]
"""Fills in the changing fields of a report: condition, says, numbers."""


@asynccontextmanager
async def reporting(
    connection: Connection, kind: str, name: str, look: Look = lambda report: report, *, serves: str = ""
) -> AsyncIterator[None]:
    """Sends a report every REPORT_SECONDS while the block runs, then one that it stopped."""
    blank = ProcessReport(
        name=name,
        kind=kind,
        host=socket.gethostname(),
        pid=os.getpid(),
        started=datetime.now(UTC),
        serves=serves,
        event_streams=MOST_STREAMS,
    )

    async def run() -> None:
        while True:
            await _send(connection, look(blank))
            await asyncio.sleep(REPORT_SECONDS)

    task = asyncio.create_task(run())
    try:
        yield
    finally:
        await end(task)
        await _send(connection, msgspec.structs.replace(blank, condition=Condition.STOPPED))


async def _send(connection: Connection, report: ProcessReport) -> None:
    try:
        await connection.nats.publish(_subject(report.name), msgspec.json.encode(report))
    except (NatsError, OSError) as error:
        log.debug("a report of %s was not sent: %s", report.name, error)


async def reports(connection: Connection) -> list[HeardReport]:
    """Reads the newest report of each process that was heard of within `names.HEALTH_AGE`."""
    now = await server_time(connection, names.HEALTH)
    heard = []
    async for batch in messages_of(connection, names.HEALTH, names.HEALTH_SUBJECTS):
        for message in batch:
            try:
                report = decode(_REPORTS, message.data)
            except Unreadable:
                log.warning("a report on %s cannot be read", message.subject)
                continue
            heard.append(HeardReport(report, (now - message.time).total_seconds()))
    return heard


def _subject(name: str) -> str:
    """Subject of a process's reports; names of processes may have any form."""
    return f"{names.HEALTH_SUBJECTS.removesuffix('>')}{digest(name)}"

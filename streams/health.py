"""Reports of processes about themselves: one short message for each, kept in the server's memory.

No request and no outcome depends on them. A report that cannot be sent is left out; the next one follows.
"""

import asyncio
import logging
import os
import socket
from collections.abc import Callable
from datetime import UTC, datetime

import msgspec
from nats.errors import Error as NatsError

from orchard.schemas.health import REPORT_SECONDS, Condition, HeardReport, ProcessReport
from orchard.schemas.identity import digest
from orchard.streams import names
from orchard.streams.batches import messages_of
from orchard.streams.connection import Connection
from orchard.streams.reading import server_time

log = logging.getLogger(__name__)

Look = Callable[[], ProcessReport]


class Reporter:
    """Sends what `look` says every REPORT_SECONDS until cancelled, and then that the process stopped.

    `look` changes the fields of `blank` that it knows about: condition, says, numbers.
    """

    def __init__(self, connection: Connection, kind: str, name: str) -> None:
        self._connection = connection
        self.blank = ProcessReport(
            name=name, kind=kind, host=socket.gethostname(), pid=os.getpid(), started=datetime.now(UTC)
        )

    async def run(self, look: Look | None = None) -> None:
        """Until cancelled."""
        report = self.blank
        try:
            while True:
                report = look() if look else self.blank
                await self._send(report)
                await asyncio.sleep(REPORT_SECONDS)
        finally:
            await self._send(msgspec.structs.replace(report, condition=Condition.STOPPED, says=""))

    async def _send(self, report: ProcessReport) -> None:
        try:
            await self._connection.nats.publish(_subject(report.name), msgspec.json.encode(report))
        except (NatsError, OSError) as error:
            log.debug("a report of %s was not sent: %s", report.name, error)


async def reports(connection: Connection) -> list[HeardReport]:
    """The newest report of each process that was heard of within `names.HEALTH_AGE`."""
    now = await server_time(connection, names.HEALTH)
    heard = []
    async for batch in messages_of(connection, names.HEALTH, names.HEALTH_SUBJECTS):
        for message in batch:
            try:
                report = msgspec.json.decode(message.data, type=ProcessReport)
            except (msgspec.DecodeError, UnicodeDecodeError):
                log.warning("a report on %s cannot be read", message.subject)
                continue
            heard.append(HeardReport(report, (now - message.time).total_seconds()))
    return heard


def _subject(name: str) -> str:
    """A subject of the process's own; names of processes may have any form."""
    return f"{names.HEALTH_SUBJECTS.removesuffix('>')}{digest(name)}"

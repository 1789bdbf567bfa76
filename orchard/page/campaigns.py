"""Campaigns as the page shows them: `orchard status` where a pipeline runs, else what the tables have."""

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from orchard.actions.campaign_status import CampaignView, PipelineView, read_status, recorded
from orchard.actions.session import Session
from orchard.page.index import STANDING
from orchard.page.tables import Tables
from orchard.streams.campaigns import CampaignBook
from orchard.streams.connection import Connection
from orchard.streams.errors import StreamsError
from orchard.streams.tasks import end

log = logging.getLogger(__name__)

FRESH_SECONDS = 1.0
"""What queues and processes say is asked again after it; tables by their position."""
AGAIN_SECONDS = 5.0
"""Between two tries to reach the pipeline's server, and two looks whether it is still there."""
PATIENCE_SECONDS = 5.0
"""A page waits so long for queues and processes, and then shows what the tables have."""


@dataclass(frozen=True)
class Overview:
    """All campaigns at one moment."""

    campaigns: Sequence[CampaignView]
    pipeline: PipelineView | None
    """None where no server was reached."""
    position: int
    version: int
    """Counts what has changed."""
    taken: float = field(default=0.0, compare=False)


class CampaignWatch:
    """The newest overview, made for all who look at once: ten open pages cost as much as one."""

    def __init__(self, session: Session, tables: Tables) -> None:
        self._session, self._tables = session, tables
        self._connection: Connection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._queues: dict[str, str] = {}
        self._newest: Overview | None = None
        self._lock = asyncio.Lock()

    @property
    def connection(self) -> Connection | None:
        """Connection to the pipeline's server; None while there is none."""
        return self._connection

    def start(self) -> None:
        """Connect to the pipeline's server, now or as soon as there is one."""
        self._connecting = asyncio.create_task(self._connect())

    async def close(self) -> None:
        """Disconnect."""
        if self._connecting is not None:
            await end(self._connecting)

    async def newest(self) -> Overview:
        """The newest overview, at most a second old. Raises StorageError."""
        async with self._lock:
            at = await self._tables.position()
            known = self._newest
            if known is not None and known.position == at:
                alone = self._connection is None and known.pipeline is None
                if alone or time.monotonic() - known.taken < FRESH_SECONDS:
                    return known
            found = await self._look()
            same = known is not None and (found.campaigns, found.pipeline, found.position) == (
                known.campaigns,
                known.pipeline,
                known.position,
            )
            version = known.version + (not same) if known is not None else 1
            self._newest = Overview(
                found.campaigns, found.pipeline, found.position, version, time.monotonic()
            )
            return self._newest

    async def _look(self) -> Overview:
        if self._connection is not None:
            try:
                async with asyncio.timeout(PATIENCE_SECONDS):
                    book = await CampaignBook(self._connection).list()
                    records = {name: record for name, (record, _) in book.items()}
                    for name, record in records.items():
                        self._queues.setdefault(name, record.queue)
                    now = await read_status(
                        self._session, self._connection, records, self._queues, self._tables.ask, STANDING
                    )
                return Overview(now.campaigns, now.pipeline, self._tables.reached, 0)
            except (StreamsError, TimeoutError) as error:
                log.warning("the queues cannot be read just now: %s", error or "no answer")
        campaigns = await self._tables.ask(recorded, STANDING)
        return Overview(campaigns, None, self._tables.reached, 0)

    async def _connect(self) -> None:
        while True:
            try:
                async with self._session.reading_connection("page") as connection:
                    self._connection = connection
                    while True:  # where it is gone for good, the next one may have another address
                        await asyncio.sleep(AGAIN_SECONDS)
                        await connection.ready(AGAIN_SECONDS, to_read=True)
            except (StreamsError, ValueError) as error:
                log.debug("no pipeline: %s", error)
            finally:
                self._connection = None
            await asyncio.sleep(AGAIN_SECONDS)

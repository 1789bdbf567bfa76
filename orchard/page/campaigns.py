"""Campaigns for the page: as `orchard status` while a pipeline runs, else from the tables alone."""

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from orchard.actions.campaign_rows import FollowedRows
from orchard.actions.campaign_status import CampaignView, PipelineView, read_status, recorded
from orchard.actions.rollout_index import INDEXED
from orchard.actions.session import Session
from orchard.page.tables import Tables
from orchard.streams.campaigns import CampaignBook
from orchard.streams.connection import Connection
from orchard.streams.errors import StreamsError
from orchard.streams.tasks import end

log = logging.getLogger(__name__)

FRESH_SECONDS = 1.0
"""Age at which queues and processes are read again; tables are read again when their position moves."""
AGAIN_SECONDS = 5.0
"""Interval of connection attempts, and of checks that the connection is open."""
PATIENCE_SECONDS = 5.0
"""Maximum wait for queues and processes; then the page shows the tables alone."""


@dataclass(frozen=True)
class Overview:
    campaigns: Sequence[CampaignView]
    pipeline: PipelineView | None
    """None if the pipeline's server is not reachable."""
    position: int
    version: int
    """Number of changes so far."""
    taken: float = field(default=0.0, compare=False)


class CampaignWatch:
    """Keeps the newest overview for all open pages: ten cost as much as one."""

    def __init__(self, session: Session, tables: Tables) -> None:
        self._session, self._tables = session, tables
        self._rows = FollowedRows(lambda: tables.reached)
        self._connection: Connection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._queues: dict[str, str] = {}
        self._newest: Overview | None = None
        self._lock = asyncio.Lock()

    @property
    def connection(self) -> Connection | None:
        """Connection to the pipeline's server; None until it is reachable."""
        return self._connection

    def start(self) -> None:
        """Connects to the pipeline's server as soon as it is reachable."""
        self._connecting = asyncio.create_task(self._connect())

    async def close(self) -> None:
        if self._connecting is not None:
            await end(self._connecting)

    async def newest(self) -> Overview:
        """Returns an overview at most a second old. Raises StorageError."""
        async with self._lock:
            at = await self._tables.position()
            known = self._newest
            if known is not None and known.position == at:
                alone = self._connection is None and known.pipeline is None
                if alone or time.monotonic() - known.taken < FRESH_SECONDS:
                    return known
            found = await self._look(at)
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

    async def _look(self, at: int) -> Overview:
        """Reads an overview of tables that are at `at`, or further by now."""
        if self._connection is not None:
            try:
                async with asyncio.timeout(PATIENCE_SECONDS):
                    book = await CampaignBook(self._connection).list()
                    records = {name: record for name, (record, _) in book.items()}
                    for name, record in records.items():
                        self._queues.setdefault(name, record.queue)
                    now = await read_status(
                        self._session,
                        self._connection,
                        records,
                        self._queues,
                        self._tables.ask,
                        INDEXED,
                        self._rows.read,
                    )
                return Overview(now.campaigns, now.pipeline, at, 0)
            except (StreamsError, TimeoutError) as error:
                log.warning("the queues cannot be read just now: %s", str(error) or type(error).__name__)
        campaigns = await self._tables.ask(recorded, INDEXED, self._rows.read)
        return Overview(campaigns, None, at, 0)

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

"""The writer: follows the event streams and commits them to the tables, each event exactly once.

Three stages run at the same time: receive from the streams, commit to `events`, commit to the derived tables.
A batch is of one stream. Its rows and its last sequence are one commit, so a writer killed anywhere resumes
right after what it committed. Derived tables follow `events` as `events` follows the streams, with positions
of their own: from the batch that was committed last, or from the files of `events` if they are behind. If a
stream is ahead, the log goes first, for a bounded time (decision 0015).
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from orchard.schemas.positions import Position
from orchard.storage.archive.files import ArchiveFiles
from orchard.storage.compaction import CompactionCancelled, Vacuum, compact, vacuum
from orchard.storage.delta import StoreTable
from orchard.storage.derived import Committed, DerivedTables
from orchard.storage.errors import StoreFull, StoreUnreachable
from orchard.storage.location import Location
from orchard.storage.lock import writer_lock
from orchard.storage.log import log_batch
from orchard.storage.reader import last_event_ids
from orchard.storage.rebuilding import opened_for_writing
from orchard.storage.settings import ArchiveSettings, archive_url
from orchard.storage.settings import WriterSettings as WriterSettings
from orchard.storage.table_log import FollowedTable
from orchard.storage.tables import EVENTS, TABLES
from orchard.storage.writing.source import batches, check_position
from orchard.streams.connection import Connection
from orchard.streams.records import StoredEvent
from orchard.streams.tasks import waited

log = logging.getLogger(__name__)

_T = TypeVar("_T")
_LEFTOVER_SECONDS = 3600.0
"""Seconds between searches for files that killed processes left."""


class Writer:
    def __init__(
        self,
        store_url: str,
        connection: Connection,
        settings: WriterSettings | None = None,
        archive: ArchiveSettings | None = None,
    ) -> None:
        self._location = Location.parse(store_url)
        self._archive_files = ArchiveFiles(archive_url(store_url, archive))
        self._connection = connection
        self._settings = settings or WriterSettings()
        self._threads = ThreadPoolExecutor(5, thread_name_prefix="writer")
        self._stopping = threading.Event()
        self.position = Position()
        """Position up to which this run knows all events to be in `events`."""
        self._committing = False
        self._ahead_at = float("-inf")
        """When a full batch last waited for the commit of the one before."""
        self._newest: Committed | None = None
        """A batch that the derived tables may take from memory."""
        self._behind_since: float | None = None
        """When the first event was committed that the derived tables do not have."""
        self._news = asyncio.Event()
        """Set when a batch, or the last one, was committed."""
        self._in_step = asyncio.Event()
        """Set when the derived tables have what `events` has."""
        self._ended = False

    async def run(self, stop: asyncio.Event) -> None:
        """Write until `stop` is set, then commit what the stream holds and return.

        Raises StoreBusy, StoreFull, StoreUnreachable, EventsLost or OtherStream; the tables are then
        consistent, and another run resumes where this one ended.
        """
        with writer_lock(self._location):
            try:
                await self._run(stop)
            finally:
                self._stopping.set()
                try:  # a call to S3 can take a minute, in which the loop has other work
                    await asyncio.to_thread(self._threads.shutdown)
                finally:  # cancelled once more: the lock is held as long as a thread may write
                    self._threads.shutdown()

    async def _run(self, stop: asyncio.Event) -> None:
        events = await self._in_thread(lambda: StoreTable(self._location, EVENTS))
        last_ids = await self._in_thread(
            lambda: last_event_ids(self._location, events.files(), events.watermark)
        )
        await check_position(self._connection, events.watermark, last_ids)
        self.position = events.watermark
        tables = await self._in_thread(partial(opened_for_writing, events, self._stopping.is_set))
        received: asyncio.Queue[list[StoredEvent] | None] = asyncio.Queue(1)
        await _together(
            self._receive(events.watermark, stop, received),
            self._commit(events, received),
            self._derive(tables),
            beside=self._maintain(),
        )

    async def _receive(
        self, watermark: Position, stop: asyncio.Event, received: "asyncio.Queue[list[StoredEvent] | None]"
    ) -> None:
        settings = self._settings
        async for batch in batches(
            self._connection,
            self._archive_files,
            watermark,
            rows=settings.commit_rows,
            size=settings.commit_bytes,
            seconds=settings.commit_seconds,
            stop=stop,
        ):
            ahead = self._committing and batch.full
            self._ahead_at = time.monotonic() if ahead else float("-inf")
            await received.join()
            await received.put(batch.messages)
        await received.put(None)

    async def _commit(self, events: StoreTable, received: "asyncio.Queue[list[StoredEvent] | None]") -> None:
        while (batch := await received.get()) is not None:
            self._committing = True
            if self._late:
                await self._in_step.wait()
            done = await self._in_thread(partial(_commit_batch, events, batch))
            self.position = self.position.with_last(done.last)
            if self._behind_since is None:
                self._behind_since = time.monotonic()
            self._in_step.clear()
            self._newest = self._newest or done
            self._news.set()
            del batch, done  # what waits for the next one should not hold this one in memory
            self._committing = False
            received.task_done()
        self._ended = True
        self._news.set()

    async def _derive(self, tables: tuple[StoreTable, list[StoreTable]]) -> None:
        settings = self._settings
        derived = DerivedTables(
            *tables, settings.commit_rows, settings.commit_bytes, settings.commit_seconds, self._threads
        )
        while not self._ended or not derived.reached.reaches(self.position):
            self._news.clear()
            batch, self._newest = self._newest, None
            if self._log_first:
                await self._news_within(settings.commit_seconds)
            elif batch is not None and derived.reached.covers(batch.first - 1):
                await self._in_thread(partial(derived.take, batch))
            elif not derived.reached.reaches(self.position):
                await self._in_thread(partial(derived.catch_up, self.position, self._stopping.is_set))
            elif not self._ended:
                await self._news_within(derived.due)
                await self._in_thread(derived.flush_in_time)
            if derived.reached.reaches(self.position):
                self._behind_since = None
                self._in_step.set()
        await self._in_thread(derived.flush)

    async def _news_within(self, seconds: float | None) -> None:
        with suppress(TimeoutError):
            await waited(self._news.wait(), seconds)

    @property
    def _log_first(self) -> bool:
        """Whether the derived tables leave the processors to the log, which is behind the stream."""
        return self._behind() and not self._late and not self._ended

    @property
    def _late(self) -> bool:
        """Whether it is the derived tables' turn, although the log is behind the stream."""
        since = self._behind_since
        return since is not None and time.monotonic() - since > self._settings.derive_seconds

    def _behind(self) -> bool:
        """Whether the stream has been ahead of the log just now."""
        return time.monotonic() - self._ahead_at < self._settings.commit_seconds

    async def _maintain(self) -> None:
        """Compact while the writer keeps up with the stream; if it does not, that is more urgent."""
        followed = {name: FollowedTable(self._location, name) for name in TABLES}
        vacuums = {name: Vacuum(table) for name, table in followed.items()}
        kept: dict[str, object] = {}
        """State in which a table was when it last needed nothing, by name."""
        leftovers_at = float("-inf")
        while True:
            await asyncio.sleep(self._settings.compact_seconds)
            above = self._settings.compact_above * (10 if self._behind() else 1)
            look_for_leftovers = time.monotonic() - leftovers_at > _LEFTOVER_SECONDS
            for name, table in followed.items():
                kept[name] = await self._in_thread(
                    partial(self._keep, table, above, vacuums[name], look_for_leftovers, kept.get(name))
                )
            if look_for_leftovers:
                leftovers_at = time.monotonic()

    def _keep(
        self, followed: FollowedTable, above: int, replaced: Vacuum, look_for_leftovers: bool, before: object
    ) -> object:
        """Compact a table and delete its old files, unless its state is as `before`; returns the state, or
        None if the next look must not rely on it."""
        table = followed.table
        state: object = None
        try:
            followed.current()
            state = followed.newest and (followed.newest, above)
            if state and state == before and not replaced.waiting and not look_for_leftovers:
                return state
            merged = compact(
                self._location, table, above=above, cancelled=self._stopping.is_set, followed=followed
            )
        except CompactionCancelled:
            return None
        except StoreFull:
            state, merged = None, 0
            log.warning("no space to compact %s: free some", table)
        except StoreUnreachable as error:  # a damaged file too
            state, merged = None, 0
            log.error("table %s is not compacted: %s", table, error)
        gone = 0
        try:
            gone = replaced.run()
            if look_for_leftovers:
                gone += vacuum(self._location, table)
        except StoreUnreachable as error:
            state = None
            log.error("old files of table %s are not deleted: %s", table, error)
        if merged or gone:
            log.info("compacted %s: %d files merged away, %d old ones deleted", table, merged, gone)
        return state

    async def _in_thread(self, work: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)


def _commit_batch(events: StoreTable, batch: list[StoredEvent]) -> Committed:
    rows, facts = log_batch(batch)
    events.append(rows, events.watermark.with_last(batch[-1].sequence))
    return Committed(batch[0].sequence, batch[-1].sequence, facts)


async def _together(*stages: Coroutine[Any, Any, None], beside: Coroutine[Any, Any, None]) -> None:
    """Run the stages until all end; the first error of any of them, or of `beside`, ends the others."""
    waiting = {asyncio.create_task(stage) for stage in stages}
    watched = asyncio.create_task(beside)
    everything = [*waiting, watched]
    try:
        while waiting:
            done, _ = await asyncio.wait({*waiting, watched}, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            waiting -= done
    finally:
        for task in everything:
            task.cancel()
        await asyncio.gather(*everything, return_exceptions=True)

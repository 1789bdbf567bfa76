"""Reads the store for the page: one connection that follows commits, for one query at a time."""

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import duckdb

from orchard.actions.rollout_index import RolloutIndex
from orchard.schemas.positions import START, Position
from orchard.storage.reader import open_tables, position, refresh

T = TypeVar("T")

MEMORY = "96MB"
"""Memory limit of queries; larger ones use a temporary directory."""
SETTINGS = (
    "set threads = 1",
    "set preserve_insertion_order = false",
    "set allocator_flush_threshold = '8MB'",
)
"""Connection settings that favour little memory over speed."""
LOOK_SECONDS = 0.25
"""Seconds between checks of the tables' position."""


class Tables:
    """Views of a store as of its last commit, for use by one event loop."""

    def __init__(self, store: str) -> None:
        self.store = store
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tables")
        self._connection: duckdb.DuckDBPyConnection | None = None
        self._index: RolloutIndex | None = None
        self._position: Position | None = None
        self._looked = 0.0

    @property
    def reached(self) -> Position:
        """Position of the tables at the last query."""
        return self._position or START

    async def ask(self, work: Callable[..., T], *arguments: Any) -> T:
        """Runs `work(connection, *arguments)` on the tables' thread. Raises StorageError, and what `work`
        raises."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._do, work, arguments)

    async def position(self) -> int:
        """Number of events up to which the tables are complete: another one means that there is news."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._look)

    async def close(self) -> None:
        """Closes the connection and deletes its temporary files."""
        if self._connection is not None:
            self._connection.interrupt()
            await asyncio.get_running_loop().run_in_executor(self._thread, self._connection.close)
        if self._index is not None:
            self._index.close()
        self._thread.shutdown(wait=False)

    def _do(self, work: Callable[..., T], arguments: Sequence[Any]) -> T:
        self._look()
        if self._connection is None:
            connection = open_tables(self.store, as_of=self.reached, memory=MEMORY)
            for setting in SETTINGS:
                connection.execute(setting)
            index = RolloutIndex(connection)
            index.follow(self.reached)
            self._connection, self._index = connection, index
        return work(self._connection, *arguments)

    def _look(self) -> int:
        now = time.monotonic()
        if now - self._looked < LOOK_SECONDS:
            return self.reached.events
        found = position(self.store)
        if found != self._position and self._connection is not None:
            # Up to there alone: what is committed meanwhile would be in the index now and again next time.
            refresh(self._connection, self.store, as_of=found)
            if self._index is not None:
                self._index.follow(found)
        self._position, self._looked = found, time.monotonic()
        return found.events

"""Reads consecutive messages from the stream, in batches bounded by rows, bytes and time."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from typing import NamedTuple

from orchard.storage.archive.files import ArchiveFiles
from orchard.storage.archive.history import whole_log
from orchard.storage.errors import EventsLost, OtherStream
from orchard.streams.connection import Connection
from orchard.streams.names import EVENTS
from orchard.streams.reading import bounds, message_at
from orchard.streams.records import StoredEvent
from orchard.streams.stream_state import REMEDY

IDLE_SECONDS = 0.2
"""Longest time in seconds that a quiet stream keeps a reader from checking the clock and its stop event."""


class Batch(NamedTuple):
    """Consecutive messages, one at least; `full` when rows or bytes ended it, and not time."""

    messages: list[StoredEvent]
    full: bool


async def batches(
    connection: Connection,
    archive_files: ArchiveFiles,
    start: int,
    *,
    rows: int,
    size: int,
    seconds: float,
    stop: asyncio.Event,
) -> AsyncGenerator[Batch, None]:
    """Yield messages from sequence `start` on, in batches that end at `rows` messages, `size` bytes or
    `seconds` of age.

    Those that have left the stream come from the archive. Once `stop` is set it ends after what the stream
    then holds, or where the guard holds, after what was read before the loss. Raises EventsLost when a
    sequence is in neither.
    """
    collecting = _Collecting(rows, size, asyncio.get_running_loop().time)
    until: int | None = None
    position = start
    arriving = whole_log(connection, archive_files, start, until=None, idle=IDLE_SECONDS)
    async with aclosing(arriving):
        async for arrived in arriving:
            for message in arrived:
                position = message.sequence + 1
                for batch in collecting.take(message):
                    yield batch
            if stop.is_set() and connection.held:
                until = position - 1
            elif stop.is_set() and until is None:
                until = (await bounds(connection, EVENTS)).last
            ended = until is not None and position > until
            if collecting.messages and (ended or collecting.age >= seconds):
                yield collecting.given(full=False)
            if ended:
                return


class _Collecting:
    def __init__(self, rows: int, size: int, clock: Callable[[], float]) -> None:
        self.messages: list[StoredEvent] = []
        self._rows, self._limit, self._clock = rows, size, clock
        self._size = 0
        self._since = 0.0

    @property
    def age(self) -> float:
        return self._clock() - self._since

    def take(self, message: StoredEvent) -> Iterator[Batch]:
        """Add a message; yields the batches that are full before it or with it."""
        size = len(message.raw)
        if self.messages and self._size + size > self._limit:
            yield self.given(full=True)
        if not self.messages:
            self._since = self._clock()
        self.messages.append(message)
        self._size += size
        if len(self.messages) >= self._rows or self._size >= self._limit:
            yield self.given(full=True)

    def given(self, *, full: bool) -> Batch:
        messages, self.messages, self._size = self.messages, [], 0
        return Batch(messages, full)


async def check_position(connection: Connection, watermark: int, last_id: str | None) -> None:
    """Check that the stream continues a store: at `watermark` it has the event `last_id`.

    Raises EventsLost when the stream ends before it, OtherStream when it has another event there.
    """
    held = await bounds(connection, EVENTS)
    if held.last < watermark:
        raise EventsLost(
            f"the stream ends at event {held.last}, but the store has {watermark}: the NATS server has lost "
            f"events, or is not this store's; {REMEDY}, or connect to the store's own server"
        )
    if not watermark or held.first > watermark:
        return
    found = await message_at(connection, EVENTS, watermark)
    if found is None:
        return
    event = found.as_event.event
    if event is not None and last_id is not None and event.id != last_id:
        raise OtherStream(
            f"event {watermark} of the stream is {event.id}, but the store has {last_id} there: the NATS "
            f"server has lost events and given their places to others, or is not this store's; {REMEDY}, or "
            "connect to the store's own server"
        )

"""Reads consecutive messages from the stream, in batches bounded by rows, bytes and time."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from typing import NamedTuple

from orchard.schemas.positions import Position, own_sequence, stream_of
from orchard.storage.archive.files import ArchiveFiles
from orchard.storage.archive.history import whole_log
from orchard.storage.errors import EventsLost, OtherStream
from orchard.streams.connection import Connection
from orchard.streams.event_streams import log_end
from orchard.streams.names import stream_name
from orchard.streams.reading import bounds, message_at
from orchard.streams.records import StoredEvent
from orchard.streams.stream_state import REMEDY, called

IDLE_SECONDS = 0.2
"""Longest time in seconds that a quiet stream keeps a reader from checking the clock and its stop event."""


class Batch(NamedTuple):
    """Consecutive messages of one stream, one at least; `full` when rows or bytes ended it, and not time."""

    messages: list[StoredEvent]
    full: bool


async def batches(
    connection: Connection,
    archive_files: ArchiveFiles,
    after: Position,
    *,
    rows: int,
    size: int,
    seconds: float,
    stop: asyncio.Event,
) -> AsyncGenerator[Batch, None]:
    """Yield messages after a position, in batches of one stream that end at `rows` messages, `size` bytes or
    `seconds` of age.

    Those that have left the streams come from the archive. Once `stop` is set it ends after what the streams
    then hold, or where the guard holds, after what was read before the loss. Raises EventsLost when a
    sequence is in neither.
    """
    clock = asyncio.get_running_loop().time
    collecting: dict[int, _Collecting] = {}
    until: Position | None = None
    position = after
    arriving = whole_log(connection, archive_files, after, until=None, idle=IDLE_SECONDS)
    async with aclosing(arriving):
        async for arrived in arriving:
            if arrived:
                stream = stream_of(arrived[-1].sequence)
                one = collecting.setdefault(stream, _Collecting(rows, size, clock))
                for message in arrived:
                    for batch in one.take(message):
                        yield batch
                position = position.with_last(arrived[-1].sequence)
            if stop.is_set() and connection.held:
                until = position
            elif stop.is_set() and until is None:
                until = await log_end(connection)
            ended = until is not None and position.reaches(until)
            for one in collecting.values():
                if one.messages and (ended or one.age >= seconds):
                    yield one.given(full=False)
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


async def check_position(
    connection: Connection, watermark: Position, last_ids: dict[int, str | None]
) -> None:
    """Check that the streams continue a store: at `watermark` they have the events `last_ids`, by stream.

    Raises EventsLost when a stream ends before it, OtherStream when it has another event there.
    """
    for stream, sequence in enumerate(watermark):
        last, name = own_sequence(sequence), called(stream)
        held = await bounds(connection, stream_name(stream))
        if held.last < last:
            raise EventsLost(
                f"{name} ends at event {held.last}, but the store has {last}: the NATS server has lost "
                f"events, or is not this store's; {REMEDY}, or connect to the store's own server"
            )
        if not last or held.first > last:
            continue
        found = await message_at(connection, stream_name(stream), last)
        if found is None:
            continue
        event, last_id = found.as_event.event, last_ids.get(stream)
        if event is not None and last_id is not None and event.id != last_id:
            raise OtherStream(
                f"event {last} of {name} is {event.id}, but the store has {last_id} there: the NATS "
                f"server has lost events and given their places to others, or is not this store's; {REMEDY}, "
                "or connect to the store's own server"
            )

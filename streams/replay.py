"""Reads events from a sequence on: every event once, in the order of sequences, fast."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from orchard.schemas.positions import START, Position, own_sequence, sequence_in, stream_of
from orchard.streams import event_streams, names
from orchard.streams.connection import Connection
from orchard.streams.event_streams import log_end, next_event
from orchard.streams.merging import merged
from orchard.streams.names import stored_subject, stream_name
from orchard.streams.reader import Arrived, Reader, stored_at
from orchard.streams.records import StoredEvent, from_nanoseconds, stored_event

Start = int | Position
"""Where to begin: at a sequence, then its stream alone is read, or after a position, then all streams."""


async def replay(
    connection: Connection,
    start: Start = START,
    *,
    subjects: str | Sequence[str] | None = None,
    follow: bool = False,
) -> AsyncGenerator[StoredEvent, None]:
    """Reads events, stream by stream and in order, or with `follow` of all streams as they come.

    `subjects` filters by subject, with wildcards. Without `follow` ends after what was stored at the call;
    with it never ends. Raises TopologyError when the stream does not exist, NatsUnreachable when `patience`
    ends. Reads resume by themselves after lost connections and restarts of the server.
    """
    batches = replay_batches(connection, start, subjects=subjects, follow=follow)
    async with aclosing(batches):
        async for batch in batches:
            for stored in batch:
                yield stored


async def replay_batches(
    connection: Connection,
    start: Start = START,
    *,
    subjects: str | Sequence[str] | None = None,
    follow: bool = False,
    idle: float | None = None,
) -> AsyncGenerator[list[StoredEvent], None]:
    """Reads as `replay` does, in lists of what has arrived together. With `idle`, yields an empty list
    whenever nothing came for so many seconds, so that a writer can commit in time."""
    until = None if follow else await log_end(connection)
    arriving = arrivals(connection, start, until=until, subjects=subjects, idle=idle)
    async with aclosing(arriving):
        async for batch in arriving:
            yield [
                stored_event(arrived.sequence, arrived.subject, from_nanoseconds(arrived.time), arrived.data)
                for arrived in batch
            ]


async def events_at(connection: Connection, sequences: Sequence[int]) -> list[Arrived]:
    """Reads the messages with these sequences, in their order, without those that are gone."""
    return [
        Arrived(one.sequence, one.subject, stored_at(one.headers, one.nanoseconds), one.data, one.headers)
        for one in await event_streams.events_at(connection, sequences)
    ]


async def arrivals(
    connection: Connection,
    start: Start,
    *,
    until: Position | None,
    subjects: str | Sequence[str] | None = None,
    idle: float | None = None,
) -> AsyncGenerator[list[Arrived], None]:
    """Reads as `replay_batches` does, but yields undecoded messages, up to the position `until`; None:
    without end."""
    filters = [subjects] if isinstance(subjects, str) else list(subjects or [])

    start = start if isinstance(start, Position) else max(start, 1)

    def after(stream: int) -> int:
        return start.last(stream) if isinstance(start, Position) else start - 1

    if until is not None:
        streams = range(len(until)) if isinstance(start, Position) else [stream_of(start)]
        for stream in streams:
            async with aclosing(
                _stream(connection, stream, after(stream), until.last(stream), filters, idle)
            ) as batches:
                async for batch in batches:
                    yield batch
        return
    if isinstance(start, Position):
        following = merged(
            connection,
            lambda stream, idle: _stream(connection, stream, after(stream), None, filters, idle),
            idle,
        )
    else:
        following = _stream(connection, stream_of(start), after(0), None, filters, idle)
    async with aclosing(following):
        async for batch in following:
            yield batch


async def _stream(
    connection: Connection,
    stream: int,
    after: int,
    until: int | None,
    filters: Sequence[str],
    idle: float | None,
) -> AsyncGenerator[list[Arrived], None]:
    """Reads one stream, after a sequence and up to another."""
    if until is not None and after >= until:
        return
    stored = [stored_subject(subject, stream) for subject in filters]
    reader = Reader(connection, stream_name(stream), max(own_sequence(after), 0) + 1, stored)
    try:
        while True:
            batch = [
                arrived for arrived in await reader.next(idle) if until is None or arrived.sequence <= until
            ]
            if batch or idle is not None:
                yield batch
            if until is None:
                continue
            position = sequence_in(stream, reader.position)
            if position > until or (
                reader.caught_up and await _complete(connection, position, until, filters)
            ):
                return
    finally:
        await reader.close()


async def _complete(connection: Connection, position: int, until: int, filters: Sequence[str]) -> bool:
    """Whether nothing that matches is stored from `position` up to `until`. The stream's leader says so: a
    reader's own server, a replica, may not have all that the leader has."""
    for subject in filters or [names.EVENT_SUBJECTS]:
        found = await next_event(connection, position, subject)
        if found is not None and found.sequence <= until:
            return False
    return True

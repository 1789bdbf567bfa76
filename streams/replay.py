"""Reads the event stream from a sequence on: every event once, in order, fast."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from orchard.streams import names
from orchard.streams.connection import Connection
from orchard.streams.reader import Arrived, Reader, stored_at
from orchard.streams.reading import bounds, messages_at, next_message
from orchard.streams.records import StoredEvent, from_nanoseconds, stored_event


async def replay(
    connection: Connection,
    start: int = 1,
    *,
    subjects: str | Sequence[str] | None = None,
    follow: bool = False,
) -> AsyncGenerator[StoredEvent, None]:
    """Reads events from sequence `start` on, in order.

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
    start: int = 1,
    *,
    subjects: str | Sequence[str] | None = None,
    follow: bool = False,
    idle: float | None = None,
) -> AsyncGenerator[list[StoredEvent], None]:
    """Reads as `replay` does, in lists of what has arrived together. With `idle`, yields an empty list
    whenever nothing came for so many seconds, so that a writer can commit in time."""
    until = None if follow else (await bounds(connection, names.EVENTS)).last
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
        for one in await messages_at(connection, names.EVENTS, sequences)
    ]


async def _complete(connection: Connection, position: int, until: int, filters: Sequence[str]) -> bool:
    """Whether nothing that matches is stored from `position` up to `until`. The stream's leader says so: a
    reader's own server, a replica, may not have all that the leader has."""
    for subject in filters or [names.EVENT_SUBJECTS]:
        found = await next_message(connection, names.EVENTS, position, subject)
        if found is not None and found.sequence <= until:
            return False
    return True


async def arrivals(
    connection: Connection,
    start: int,
    *,
    until: int | None,
    subjects: str | Sequence[str] | None = None,
    idle: float | None = None,
) -> AsyncGenerator[list[Arrived], None]:
    """Reads as `replay_batches` does, but yields undecoded messages, up to sequence `until`; None: without
    end."""
    if until is not None and start > until:
        return
    filters = [subjects] if isinstance(subjects, str) else list(subjects or [])
    reader = Reader(connection, names.EVENTS, max(start, 1), filters)
    try:
        while True:
            batch = [
                arrived for arrived in await reader.next(idle) if until is None or arrived.sequence <= until
            ]
            if batch or idle is not None:
                yield batch
            if until is None:
                continue
            if reader.position > until or (
                reader.caught_up and await _complete(connection, reader.position, until, filters)
            ):
                return
    finally:
        await reader.close()

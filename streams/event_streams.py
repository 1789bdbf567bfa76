"""Reads single events of any stream of events.

A sequence names an event over all streams (`orchard.schemas.positions`), and every subject is written as in
stream 0, here and wherever events are read.
"""

from collections import defaultdict
from collections.abc import AsyncIterator, Sequence

import msgspec

from orchard.schemas.health import SILENT_SECONDS, alive
from orchard.schemas.positions import Position, own_sequence, sequence_in, stream_of
from orchard.schemas.subjects import event_stream
from orchard.streams.batches import last_messages, messages_of
from orchard.streams.connection import Connection
from orchard.streams.errors import TopologyError
from orchard.streams.health import reports
from orchard.streams.names import known_subject, stored_subject, stream_name
from orchard.streams.reading import last_message, messages_at, next_message, request
from orchard.streams.records import StoredMessage
from orchard.streams.stream_state import StreamInfo, StreamRules, StreamState


async def stream_infos(
    connection: Connection, most: int | None = None
) -> list[tuple[StreamRules, StreamState]]:
    """Asks for rules and content of all streams of events, or of the first ones; raises TopologyError for one
    that does not exist."""
    found: list[tuple[StreamRules, StreamState]] = []
    while not found or len(found) < (found[0][0].event_streams if most is None else most):
        name = stream_name(len(found))
        info = await request(connection, f"STREAM.INFO.{name}", {}, StreamInfo)
        if info.state is None:
            raise TopologyError(f"there is no stream {name}: declare the topology (`orchard up`)")
        found.append((info.config, info.state))
    return found


async def stream_count(connection: Connection) -> int:
    """Number of streams of events; raises TopologyError without any."""
    return (await stream_infos(connection, 1))[0][0].event_streams


async def usable_streams(connection: Connection) -> int:
    """The number of streams for a new campaign, as configured. Raises TopologyError where there are fewer, or
    a process runs that does not read so many."""
    wanted = connection.settings.event_streams
    if wanted == 1:
        return wanted
    if wanted > (there := await stream_count(connection)):
        raise TopologyError(
            f"nats.event_streams is {wanted}, and NATS at {connection.host} has {there} of them: start "
            "`orchard up` or `orchard writer` with this setting first, which makes them"
        )
    heard = alive(await reports(connection))
    if older := sorted(one.name for one in heard if one.event_streams < wanted):
        raise TopologyError(
            f"nats.event_streams is {wanted}, and {', '.join(older)} of an earlier version would not read "
            f"all of them: update or stop it first (one that was killed counts for {SILENT_SECONDS:.0f} s), "
            "or submit with 1"
        )
    return wanted


async def log_end(connection: Connection) -> Position:
    """The newest sequence of each stream; raises TopologyError without any."""
    infos = await stream_infos(connection)
    return Position(sequence_in(stream, state.last) for stream, (_, state) in enumerate(infos))


async def last_event(connection: Connection, subject: str) -> StoredMessage | None:
    """The newest event on a subject that has no wildcard and tells its stream (a fence), None without one."""
    stream = event_stream(subject, None)
    return _known(
        await last_message(connection, stream_name(stream), stored_subject(subject, stream)), stream
    )


async def last_events(connection: Connection, subjects: Sequence[str]) -> dict[str, StoredMessage]:
    """The newest event on each of such subjects that has one, as `batches.last_messages` reads them."""
    by_stream: dict[int, list[str]] = defaultdict(list)
    for subject in subjects:
        by_stream[event_stream(subject, None)].append(subject)
    found: dict[str, StoredMessage] = {}
    for stream, wanted in by_stream.items():
        stored = [stored_subject(subject, stream) for subject in wanted]
        for message in (await last_messages(connection, stream_name(stream), stored)).values():
            known = known_message(message, stream)
            found[known.subject] = known
    return found


async def next_event(connection: Connection, start: int, subject: str) -> StoredMessage | None:
    """The first event on a subject (wildcards allowed) at or after `start`, in that sequence's stream."""
    stream = stream_of(start)
    found = await next_message(
        connection, stream_name(stream), own_sequence(start), stored_subject(subject, stream)
    )
    return _known(found, stream)


async def events_at(connection: Connection, sequences: Sequence[int]) -> list[StoredMessage]:
    """The events with these sequences, by stream and in their order there, without those that are gone."""
    found: list[StoredMessage] = []
    for stream in sorted({stream_of(sequence) for sequence in sequences}):
        own = [own_sequence(sequence) for sequence in sequences if stream_of(sequence) == stream]
        messages = await messages_at(connection, stream_name(stream), own)
        found += [known_message(message, stream) for message in messages]
    return found


def known_message(message: StoredMessage, stream: int) -> StoredMessage:
    if not stream:
        return message
    return msgspec.structs.replace(
        message,
        sequence=sequence_in(stream, message.sequence),
        subject=known_subject(message.subject, stream),
    )


def _known(message: StoredMessage | None, stream: int) -> StoredMessage | None:
    return None if message is None else known_message(message, stream)


async def events_after(
    connection: Connection, position: Position, pattern: str
) -> AsyncIterator[list[StoredMessage]]:
    """The events after a position on subjects that match, stream by stream, as `batches.messages_of` reads
    them."""
    for stream in range(connection.event_streams if connection.guarded else await stream_count(connection)):
        start, stored = own_sequence(position.last(stream)) + 1, stored_subject(pattern, stream)
        async for batch in messages_of(connection, stream_name(stream), stored, start=start):
            yield [known_message(message, stream) for message in batch]

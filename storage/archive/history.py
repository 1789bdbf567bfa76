"""Reads the whole log: the streams, and the archive for events that left them. Every sequence once, in order
within its stream."""

import asyncio
import heapq
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing

from orchard.schemas.archives import ArchiveManifest
from orchard.schemas.positions import Position, event_called, sequence_in, stream_of
from orchard.storage.archive.files import ArchiveFiles, ArchivePart
from orchard.storage.errors import EventsLost, OtherStream
from orchard.streams import names
from orchard.streams.connection import Connection
from orchard.streams.event_streams import next_event
from orchard.streams.merging import merged
from orchard.streams.reader import Arrived
from orchard.streams.reading import bounds
from orchard.streams.records import StoredEvent, from_nanoseconds, stored_event
from orchard.streams.replay import arrivals

_BATCH = 500


async def whole_log(
    connection: Connection,
    files: ArchiveFiles,
    after: Position,
    *,
    until: Position | None,
    idle: float | None = None,
) -> AsyncGenerator[list[StoredEvent], None]:
    """Yield every event after a position, in lists of one stream each. Up to `until` stream by stream; None:
    without end, of all streams as they come, with `idle` as in `replay_batches`.

    Raises EventsLost for a sequence that neither its stream nor the archive holds, ArchiveCorrupt, and
    OtherStream when both hold one and differ in it.
    """
    if until is None:
        following = merged(
            connection, lambda stream, idle: _stream(connection, files, after.last(stream), None, idle), idle
        )
        async with aclosing(following):
            async for batch in following:
                yield batch
        return
    for stream in range(len(until)):
        reading = _stream(connection, files, after.last(stream), until.last(stream), idle)
        async with aclosing(reading):
            async for batch in reading:
                yield batch


async def _stream(
    connection: Connection, files: ArchiveFiles, after: int, until: int | None, idle: float | None
) -> AsyncGenerator[list[StoredEvent], None]:
    """Yield every event of one stream after a sequence."""
    stream = stream_of(after)
    held = await bounds(connection, names.stream_name(stream))
    first, last = (sequence_in(stream, own) for own in (held.first, held.last))
    whole = _Whole(Sealed(files, after + 1), after + 1)
    arriving = arrivals(
        connection, after + 1, until=None if until is None else Position.up_to([until]), idle=idle
    )
    async with aclosing(arriving):
        async for batch in whole.sealed(first - 1 if until is None else min(first - 1, until)):
            yield batch
        async for arrived in arriving:
            async for batch in whole.arrived(arrived):
                yield batch
            if not arrived and idle is not None:
                yield []
            if not arrived and whole.position <= last and connection.trusted:
                # what the stream ended with may be in the archive
                at = await next_event(connection, whole.position, names.EVENT_SUBJECTS)
                async for batch in whole.sealed(last if at is None else min(at.sequence - 1, last)):
                    yield batch
        async for batch in whole.sealed(until or 0):
            yield batch


class _Whole:
    """Merges one stream and the archive into one log; `position` is the next sequence."""

    def __init__(self, archive: "Sealed", start: int) -> None:
        self._archive, self.position = archive, start

    async def sealed(self, last: int) -> AsyncGenerator[list[StoredEvent], None]:
        """Yield what the archive has from the position up to `last`."""
        archive = self._archive
        while self.position <= last:
            found = await asyncio.to_thread(archive.take, self.position, last)
            if not found:  # archived since the manifests were read
                await asyncio.to_thread(archive.look_again, self.position)
                found = await asyncio.to_thread(archive.take, self.position, last)
            if not found:
                raise EventsLost(
                    f"{event_called(self.position)} is neither in the stream nor in the archive {archive.url}"
                    ": restore the stream (`orchard store restore-stream`), or name the right archive "
                    "(`orchard log verify` reads it)"
                )
            self.position = found[-1].sequence + 1
            yield [_stored(message) for message in found]

    async def arrived(self, messages: list[Arrived]) -> AsyncGenerator[list[StoredEvent], None]:
        """Yield messages of the stream, with the archived ones between them."""
        ready: list[StoredEvent] = []
        for message in messages:
            async for batch in self.sealed(message.sequence - 1):
                ready += batch
                if len(ready) >= _BATCH:
                    yield ready
                    ready = []
            if self._archive.has_copy(message.sequence):
                await asyncio.to_thread(self._archive.compare, message)
            ready.append(_stored(message))
            self.position = message.sequence + 1
        if ready:
            yield ready


class Sealed:
    """Reads all parts of an archive that are of one stream as one ascending sequence of messages.

    A part is opened when the position reaches its first event, and one row group of each open part is in
    memory.
    """

    def __init__(self, files: ArchiveFiles, start: int) -> None:
        self.url = files.location.url
        self._files = files
        self._parts: list[tuple[int, ArchivePart, ArchiveManifest]] | None = None
        self._open: list[tuple[int, int, Arrived, Iterator[Arrived]]] = []
        self._opened = 0
        self._start = start

    def look_again(self, start: int) -> None:
        """Forget what was read and begin again at `start`."""
        self._parts, self._open, self._start = None, [], start

    def take(self, first: int, last: int) -> list[Arrived]:
        """Return messages of consecutive sequences from `first` up to `last`, some hundred at most.

        Returns none when the next archived one is not `first`.
        """
        found: list[Arrived] = []
        wanted = first
        while wanted <= last and len(found) < _BATCH:
            message = self._next(wanted)
            if message is None or message.sequence != wanted:
                break
            found.append(message)
            wanted += 1
        return found

    def has_copy(self, sequence: int) -> bool:
        """Whether `compare` has something to do for this sequence."""
        return bool(self._open) and self._open[0][0] <= sequence

    def compare(self, message: Arrived) -> None:
        """Compare this message of the stream with its archived copy. Raises OtherStream when they differ."""
        while self.has_copy(message.sequence):
            _, _, copy, rest = heapq.heappop(self._open)
            same = (copy.subject, copy.data) == (message.subject, message.data)
            if copy.sequence == message.sequence and not same:
                raise OtherStream(
                    f"{event_called(message.sequence)} of the stream is not the one in the archive {self.url}"
                    ": the archive is of another stream, so name the right one"
                )
            self._push(rest)

    def _next(self, wanted: int) -> Arrived | None:
        """Return the message with the lowest sequence from `wanted` on, without removing it."""
        self._open_parts(wanted)
        while self._open and self._open[0][0] < wanted:
            self._push(heapq.heappop(self._open)[3])
        return self._open[0][2] if self._open else None

    def _open_parts(self, wanted: int) -> None:
        if self._parts is None:
            parts = [part for part in self._files.parts() if part.stream == stream_of(self._start)]
            manifests = [(part, self._files.manifest(part)) for part in parts]
            self._parts = sorted(
                (manifest.first_sequence, part, manifest)
                for part, manifest in manifests
                if manifest.last_sequence >= self._start
            )
            self._parts.reverse()
        while self._parts and self._parts[-1][0] <= wanted:
            _, part, manifest = self._parts.pop()
            self._push(_messages(self._files, part, manifest, wanted - 1))

    def _push(self, messages: Iterator[Arrived]) -> None:
        message = next(messages, None)
        if message is not None:
            self._opened += 1
            heapq.heappush(self._open, (message.sequence, self._opened, message, messages))


def _messages(
    files: ArchiveFiles, part: ArchivePart, manifest: ArchiveManifest, after: int
) -> Iterator[Arrived]:
    for segment in manifest.segments:
        if segment.last_sequence > after:
            for messages in files.messages(part.campaign, segment, after):
                yield from messages


def _stored(message: Arrived) -> StoredEvent:
    return stored_event(message.sequence, message.subject, from_nanoseconds(message.time), message.data)

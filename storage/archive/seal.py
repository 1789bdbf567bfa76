"""Seals a campaign's events from the stream into segments, and writes the manifest that names them."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

from orchard.schemas.archives import ArchiveManifest, ArchiveSegment
from orchard.schemas.subjects import campaign_subjects
from orchard.storage.archive.files import ArchiveFiles, ArchivePart
from orchard.storage.archive.listing import EventListing
from orchard.storage.archive.segments import SegmentWriter, counted_subject, is_fence
from orchard.storage.errors import EventsLost
from orchard.streams.connection import Connection
from orchard.streams.reader import Arrived
from orchard.streams.replay import arrivals, events_at


class PartWriter:
    """One part of one campaign, while it is written to the archive."""

    def __init__(self, files: ArchiveFiles, campaign: str, listing: EventListing) -> None:
        self._files, self._campaign, self._listing = files, campaign, listing
        self._writer = SegmentWriter()
        self._segments: list[ArchiveSegment] = []
        self._subjects: Counter[str] = Counter()
        self._removed = self._bytes = 0

    async def copy(self, connection: Connection) -> AsyncIterator[int]:
        """Copy the listed events; yields how many are in segments.

        Raises EventsLost, and nothing is archived, when the stream does not hold what the tables list.
        """
        listing = self._listing
        copied: list[tuple[int, str]] = []
        async with aclosing(_messages(connection, self._campaign, listing)) as messages:
            async for batch in messages:
                copied += [(message.sequence, message.subject) for message in batch]
                await asyncio.to_thread(self._take, batch)
                yield len(copied)
        if difference := listing.differs(copied):
            raise EventsLost(
                f"the stream and the tables differ in campaign {self._campaign}: {difference}; nothing was "
                "removed, run `orchard store check`"
            )

    def finish(self) -> ArchivePart:
        """Write the manifest. Raises StorageError."""
        if self._writer.events:
            self._close_segment()
        sequences = self._listing.sequences
        return self._files.put_manifest(
            ArchiveManifest(
                campaign=self._campaign,
                after=self._listing.after,
                through=self._listing.through,
                first_sequence=sequences[0],
                last_sequence=sequences[-1],
                events=len(sequences),
                removed=self._removed,
                bytes=self._bytes,
                subjects=dict(sorted(self._subjects.items())),
                segments=tuple(self._segments),
            )
        )

    def _take(self, batch: list[Arrived]) -> None:
        for message in batch:
            self._writer.take(message)
            self._subjects[counted_subject(message.subject)] += 1
            self._removed += not is_fence(message.subject)
            self._bytes += len(message.data)
            if self._writer.full:
                self._close_segment()

    def _close_segment(self) -> None:
        segment, data = self._writer.finish()
        self._files.put_segment(self._campaign, segment, data)
        self._segments.append(segment)
        self._writer = SegmentWriter()


async def _messages(
    connection: Connection, campaign: str, listing: EventListing
) -> AsyncGenerator[list[Arrived], None]:
    """Yield the campaign's own messages and its fences, in the order of the stream."""
    fences = listing.fences
    own = arrivals(connection, listing.after + 1, until=listing.through, subjects=campaign_subjects(campaign))
    taken = 0
    async with aclosing(own):
        async for batch in own:
            if not batch:
                continue
            upto = taken
            while upto < len(fences) and fences[upto] < batch[-1].sequence:
                upto += 1
            among = await events_at(connection, fences[taken:upto])
            taken = upto
            yield sorted([*batch, *among])
    while taken < len(fences):
        yield await events_at(connection, fences[taken : taken + 500])
        taken += 500

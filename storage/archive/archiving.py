"""Archives one campaign in steps. After a kill at any step, the next run resumes from what it finds.

Segments, manifest, verification, event, purge: a part exists once it has a manifest, and nothing leaves the
stream that no verified manifest names.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass

from orchard.schemas.archives import ArchiveManifest, ArchiveSegment, CampaignArchived
from orchard.schemas.events import make_event
from orchard.schemas.positions import Position, own_sequence, sequence_in
from orchard.schemas.subjects import campaign_subjects
from orchard.storage.archive.files import ArchiveFiles, ArchivePart
from orchard.storage.archive.listing import EventListing, listed, recorded
from orchard.storage.archive.segments import SegmentWriter, counted_subject, is_fence
from orchard.storage.archive.verify import check_part
from orchard.storage.errors import EventsLost
from orchard.storage.reader import position
from orchard.streams.connection import Connection
from orchard.streams.errors import QueueFull, StoreRefused
from orchard.streams.event_streams import next_event
from orchard.streams.names import stored_subject, stream_name
from orchard.streams.publisher import Publisher
from orchard.streams.reader import Arrived
from orchard.streams.reading import purge
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
    until = Position.up_to([listing.through])
    own = arrivals(connection, listing.after + 1, until=until, subjects=campaign_subjects(campaign))
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


SOURCE = "orchard/archive"


@dataclass(frozen=True)
class ArchiveProgress:
    """Progress: `sealing`, `verifying`, `purging`, in this order, with the part's events so far."""

    doing: str
    events: int
    total: int


async def archive_events(
    connection: Connection, store_url: str, files: ArchiveFiles, campaign: str
) -> AsyncIterator[ArchiveProgress]:
    """Move every event of a campaign that the tables have into the archive, stream by stream, except its
    fences.

    The caller decides whether the campaign may be archived. Raises StorageError or StreamsError; each event
    is then still in the stream, or in a verified part of the archive, or in both.
    """
    known = await asyncio.to_thread(files.parts, campaign)
    noted = set(await asyncio.to_thread(recorded, store_url)) if known else set()
    for part in known:
        async for step in _leave(connection, store_url, files, part, (campaign, part.sha256) in noted):
            yield step
    await asyncio.to_thread(files.sweep, campaign)
    sealed = Position.up_to(part.through for part in known)
    settled = await asyncio.to_thread(position, store_url)
    for stream, through in enumerate(settled):
        after = sealed.last(stream)
        while listing := await asyncio.to_thread(listed, store_url, campaign, after, through):
            sealing = PartWriter(files, campaign, listing)
            async for events in sealing.copy(connection):
                yield ArchiveProgress("sealing", events, len(listing.sequences))
            part = await asyncio.to_thread(sealing.finish)
            async for step in _leave(connection, store_url, files, part, noted=False):
                yield step
            after = listing.through


async def _leave(
    connection: Connection, store_url: str, files: ArchiveFiles, part: ArchivePart, noted: bool
) -> AsyncIterator[ArchiveProgress]:
    """Verify a part that is still in the stream, record it unless it is already `noted`, and purge it."""
    own = campaign_subjects(part.campaign)
    first = await next_event(connection, sequence_in(part.stream, 1), own)
    gone = first is None or first.sequence > part.through
    if gone and noted:
        return
    manifest = await asyncio.to_thread(files.manifest, part)
    if not gone:
        checked = check_part(files, part, store_url)
        while (events := await asyncio.to_thread(next, checked, None)) is not None:
            yield ArchiveProgress("verifying", events, manifest.events)
    event = make_event(
        CampaignArchived(
            manifest_sha256=part.sha256,
            after=manifest.after,
            through=manifest.through,
            first_sequence=manifest.first_sequence,
            last_sequence=manifest.last_sequence,
            events=manifest.events,
            removed=manifest.removed,
            bytes=manifest.bytes,
        ),
        id=f"{part.campaign}.archived.{part.sha256[:24]}",
        source=SOURCE,
        campaign=part.campaign,
    )
    yield ArchiveProgress("purging", manifest.events, manifest.events)
    try:
        if not noted:
            await Publisher(connection).event(event)
    except (QueueFull, StoreRefused):  # a full stream takes the event when it has room again
        await _purge(connection, part)
        await Publisher(connection).event(event)
    await _purge(connection, part)


async def _purge(connection: Connection, part: ArchivePart) -> None:
    own = stored_subject(campaign_subjects(part.campaign), part.stream)
    await purge(connection, stream_name(part.stream), [own], through=own_sequence(part.through))

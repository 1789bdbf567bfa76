"""Archives one campaign in steps. After a kill at any step, the next run resumes from what it finds.

Segments, manifest, verification, event, purge: a part exists once it has a manifest, and nothing leaves the
stream that no verified manifest names.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

from orchard.schemas.archives import CampaignArchived
from orchard.schemas.events import make_event
from orchard.schemas.subjects import campaign_subjects
from orchard.storage.archive.files import ArchiveFiles, ArchivePart
from orchard.storage.archive.listing import listed, recorded, settled
from orchard.storage.archive.seal import PartWriter
from orchard.storage.archive.verify import check_part
from orchard.streams import names
from orchard.streams.connection import Connection
from orchard.streams.errors import QueueFull, StoreRefused
from orchard.streams.publisher import Publisher
from orchard.streams.reading import next_message, purge

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
    """Move every event of a campaign that the tables have into the archive, except its fences.

    The caller decides whether the campaign may be archived. Raises StorageError or StreamsError; each event
    is then still in the stream, or in a verified part of the archive, or in both.
    """
    known = await asyncio.to_thread(files.parts, campaign)
    noted = set(await asyncio.to_thread(recorded, store_url)) if known else set()
    for part in known:
        async for step in _leave(connection, store_url, files, part, (campaign, part.sha256) in noted):
            yield step
    await asyncio.to_thread(files.sweep, campaign)
    after = max((part.through for part in known), default=0)
    through = await asyncio.to_thread(settled, store_url)
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
    first = await next_message(connection, names.EVENTS, 1, own)
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
        await purge(connection, names.EVENTS, [own], through=part.through)
        await Publisher(connection).event(event)
    await purge(connection, names.EVENTS, [own], through=part.through)

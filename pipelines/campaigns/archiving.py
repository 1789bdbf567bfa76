"""Which campaigns may leave the stream for the archive, and how one comes back.

A campaign is closed when nothing will happen to it by itself: it was cancelled and nothing open of it stands
in a queue, or each of its rollouts has an outcome. `campaign` is the third token of event subjects here: runs
of reinforcement learning, imports and the house's own (`tasks`, `datasets`, ...) count as campaigns.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import duckdb
import msgspec

from orchard.pipelines.campaigns.ending import open_in_queues
from orchard.schemas.blobs import BlobRef
from orchard.schemas.campaigns import CAMPAIGN_MOVES, CampaignRecord, CampaignState
from orchard.schemas.positions import START, STREAM_BITS, Position, sequence_in
from orchard.schemas.subjects import EVENTS_PREFIX, FENCES, campaign_subjects
from orchard.storage.archive.archiving import ArchiveProgress, archive_events
from orchard.storage.archive.files import ArchiveFiles, ArchivePart
from orchard.storage.archive.listing import MEMORY_LIMIT
from orchard.storage.archive.verify import check_part
from orchard.storage.blobs import BlobStore
from orchard.storage.errors import ArchiveRefused, StorageError
from orchard.storage.reader import open_tables
from orchard.storage.settings import ArchiveSettings, archive_url
from orchard.streams.campaigns import CampaignBook, CampaignEntry, state_changed
from orchard.streams.connection import Connection
from orchard.streams.errors import CampaignConflict, NatsUnreachable, StreamsError
from orchard.streams.event_streams import next_event
from orchard.streams.publisher import Publisher

SOURCE = "orchard/archive"
LOOK_SECONDS = 600.0
"""Pause between two looks for campaigns that have been closed for long enough."""

FAULTS = (StorageError, StreamsError, duckdb.Error, msgspec.DecodeError)
"""Errors that archiving may meet: of one campaign, or of all that need the same file, disk or server."""

log = logging.getLogger(__name__)


class _PlannedSteps(msgspec.Struct, frozen=True):
    """The one field that archiving reads of a reinforcement-learning run's plan."""

    steps: int
    """Optimizer steps, each of which makes a policy."""


class CampaignProgress(NamedTuple):
    campaign: str
    newest: datetime
    """When the stream stored its newest event; UTC."""
    last: Position
    """Its newest event in each stream, on a subject of its own, that archiving did not publish."""
    requested: int
    outcomes: int
    plan_sha256: str | None
    """Plan of a reinforcement-learning run; None for other campaigns."""
    version: int
    state: str
    """The state that the newest event about it gives; empty before there is one."""


_STANDINGS = f"""
with streams as (
    select split_part(subject, '.', 3) as campaign, sequence >> {STREAM_BITS} as stream,
           max(stream_time) as newest,
           max(sequence) filter (type not in ('campaign.archived', 'campaign.state_changed')) as last
    from tables.events where starts_with(subject, '{EVENTS_PREFIX}.') and split_part(subject, '.', 4) <> ''
    group by all
), seen as (
    select campaign, max(newest) as newest, list(last) filter (last is not null) as last
    from streams group by 1
), requested as (
    select campaign, count(distinct rollout_id) as rollouts from tables.requests_all group by 1
), outcomes as (
    select campaign, count(distinct rollout_id) as rollouts from rollouts group by 1
), runs as (
    select campaign, min(plan_sha256) as plan, coalesce(max(version), 0) as version from policies group by 1
)
select s.campaign, s.newest, coalesce(s.last, []), coalesce(q.rollouts, 0), coalesce(o.rollouts, 0), r.plan,
       coalesce(r.version, 0), coalesce(c.state, '')
from seen s left join requested q using (campaign) left join outcomes o using (campaign)
left join runs r using (campaign) left join campaigns c using (campaign)
where s.campaign not in ({", ".join(f"'{fence}'" for fence in sorted(FENCES))})
order by s.campaign
"""


def campaigns_progress(store_url: str) -> list[CampaignProgress]:
    with open_tables(store_url, views=_STANDINGS, memory=MEMORY_LIMIT) as tables:
        rows = tables.execute(_STANDINGS).fetchall()
    return [
        CampaignProgress(name, newest.replace(tzinfo=UTC), Position.up_to(last), *more)
        for name, newest, last, *more in rows
    ]


def open_because(progress: CampaignProgress, record: CampaignRecord | None, steps: int | None) -> str:
    """Say why a campaign is still open, as the rest of a sentence; empty when it is closed. `steps` is
    how many policies the plan of a run wants."""
    if record is not None and record.state is CampaignState.CANCELLED:
        return ""
    if record is not None and record.offered < record.size:
        return f"was submitted up to rollout {record.offered} of {record.size}"
    if record is not None and record.resumed is not None:
        return f"is being resumed, up to rollout {record.resumed} of {record.size}"
    if steps is not None and progress.version < steps:
        return f"is a run that has made {progress.version} of {steps} policies"
    size = max(progress.requested, record.size if record else 0)
    if progress.outcomes < size:
        return f"has {progress.outcomes} outcomes for {size} rollouts"
    return ""


class Archiving:
    def __init__(
        self, connection: Connection, store_url: str, blobs: BlobStore, settings: ArchiveSettings
    ) -> None:
        self._connection, self._store_url, self._blobs = connection, store_url, blobs
        self.shelf = ArchiveFiles(archive_url(store_url, settings))
        self._book = CampaignBook(connection)

    async def closed(self, older_than: timedelta = timedelta(0)) -> list[str]:
        """List the campaigns that are closed, had no event for `older_than`, and are not wholly in the
        archive. One whose plan cannot be read is listed too: `archive` raises why."""
        book = await self._book.list()
        latest = datetime.now(UTC) - older_than
        archived = await asyncio.to_thread(self.shelf.reached)
        found = []
        for progress in await asyncio.to_thread(campaigns_progress, self._store_url):
            record, _ = book.get(progress.campaign, (None, 0))
            reached = archived.get(progress.campaign, START)
            if progress.newest > latest:
                continue
            with contextlib.suppress(StorageError, msgspec.DecodeError):
                if await self._open_because(progress, record):
                    continue
            if not reached.reaches(progress.last) or await self._left(progress, record, reached):
                found.append(progress.campaign)
        return found

    async def _left(
        self, progress: CampaignProgress, record: CampaignRecord | None, reached: Position
    ) -> bool:
        """Whether a killed run left something to do for a campaign that is sealed."""
        if record is not None:
            return record.state is not CampaignState.ARCHIVED or progress.state != CampaignState.ARCHIVED
        own = campaign_subjects(progress.campaign)
        for stream in range(len(reached)):
            first = await next_event(self._connection, sequence_in(stream, 1), own)
            if first is not None and reached.covers(first.sequence):
                return True
        return False

    async def archive(self, campaign: str) -> AsyncIterator[ArchiveProgress]:
        """Move a closed campaign's events into the archive; a call after a kill resumes.

        Raises ArchiveRefused for a campaign that is open or unknown, and whatever `archive_events`
        raises.
        """
        known = {one.campaign: one for one in await asyncio.to_thread(campaigns_progress, self._store_url)}
        if campaign not in known:
            raise ArchiveRefused(
                f"the tables have no events of a campaign {campaign!r}: `orchard log status` lists all"
            )
        record, revision = await self._book.get(campaign) or (None, 0)
        if reason := await self._open_because(known[campaign], record):
            raise ArchiveRefused(
                f"campaign {campaign!r} is not closed, it {reason}: wait for it, or cancel it "
                f"(`orchard cancel {campaign}`); `orchard up` ends what dead workers held"
            )
        async for step in archive_events(self._connection, self._store_url, self.shelf, campaign):
            yield step
        if record is not None and record.state is CampaignState.ARCHIVED:
            if known[campaign].state != CampaignState.ARCHIVED:  # killed before it was told
                await self._tell(CampaignEntry(campaign, record, revision), record.state)
        elif record is not None:
            try:
                await self._move(campaign, record, revision, CampaignState.ARCHIVED)
            except CampaignConflict:
                log.warning("campaign %s was resumed while it was archived: it stays open", campaign)

    async def restore(self, campaign: str) -> AsyncIterator[ArchiveProgress]:
        """Verify every byte of a campaign's archive, and let the campaign be resumed: it is paused then.

        Its events stay where they are, since the stream cannot take a sequence twice (decision 0016). Raises
        ArchiveRefused when it is not archived, ArchiveCorrupt.
        """
        parts = await asyncio.to_thread(self.shelf.parts, campaign)
        if not parts:
            raise ArchiveRefused(
                f"the archive {self.shelf.location.url} has no campaign {campaign!r}: `orchard log status` "
                "lists what it has"
            )
        for part in parts:
            async for step in self.check(part):
                yield step
        record, revision = await self._book.get(campaign) or (None, 0)
        if record is not None and record.state is CampaignState.ARCHIVED:
            await self._move(campaign, record, revision, CampaignState.PAUSED)

    async def check(self, part: ArchivePart) -> AsyncIterator[ArchiveProgress]:
        """Read every byte of a part. Raises ArchiveCorrupt."""
        total = (await asyncio.to_thread(self.shelf.manifest, part)).events
        checked = check_part(self.shelf, part, self._store_url)
        while (events := await asyncio.to_thread(next, checked, None)) is not None:
            yield ArchiveProgress("verifying", events, total)

    async def run(self, older_than: timedelta) -> None:
        """Archive campaigns that have been closed for `older_than`, until cancelled."""
        while True:
            await self.look(older_than)
            await asyncio.sleep(LOOK_SECONDS)

    async def look(self, older_than: timedelta) -> None:
        """Archive the campaigns that have been closed for `older_than` by now. Failures are logged; that of
        one campaign does not keep the others back."""
        try:
            for campaign in await self.closed(older_than):
                await self._archive_or_log(campaign)
        except FAULTS as error:
            log.warning("archiving waits %.0f s: %s", LOOK_SECONDS, error)

    async def _archive_or_log(self, campaign: str) -> None:
        try:
            async for _ in self.archive(campaign):
                pass
        except NatsUnreachable:
            raise
        except FAULTS as error:
            log.warning("campaign %s is not archived: %s", campaign, error)
        else:
            log.info("archived the events of campaign %s", campaign)

    async def _open_because(self, progress: CampaignProgress, record: CampaignRecord | None) -> str:
        steps = None
        if progress.plan_sha256 is not None:
            # A blob's name is its hash; its size is not in the tables.
            raw = await asyncio.to_thread(self._blobs.get, BlobRef(sha256=progress.plan_sha256, size=0))
            steps = msgspec.json.decode(raw, type=_PlannedSteps).steps
        reason = open_because(progress, record, steps)
        if reason or record is None or record.state is not CampaignState.CANCELLED:
            return reason
        left = await open_in_queues(self._connection, Publisher(self._connection), progress.campaign)
        return f"was cancelled and has {len(left)} rollouts that no one has ended yet" if left else ""

    async def _move(self, campaign: str, record: CampaignRecord, revision: int, state: CampaignState) -> None:
        """Change the state by compare-and-set, and publish the change. Raises CampaignConflict."""
        if state not in CAMPAIGN_MOVES[record.state]:
            raise ArchiveRefused(f"campaign {campaign!r} is {record.state} and cannot become {state}")
        moved = msgspec.structs.replace(record, state=state)
        revision = await self._book.update(campaign, moved, revision)
        await self._tell(CampaignEntry(campaign, moved, revision), record.state)

    async def _tell(self, entry: CampaignEntry, previous: CampaignState) -> None:
        await Publisher(self._connection).event(state_changed(entry, previous, SOURCE))

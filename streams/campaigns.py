"""The campaign book: one key a campaign in a bucket, every change by compare-and-set on its revision."""

import logging
from uuid import uuid4

import msgspec

from orchard.schemas.campaigns import CampaignRecord, CampaignState
from orchard.schemas.decoding import Unreadable, decode
from orchard.schemas.events import CampaignStateChanged, Event, make_event
from orchard.schemas.identity import check_name
from orchard.streams import names
from orchard.streams.batches import messages_of
from orchard.streams.connection import Connection
from orchard.streams.errors import CampaignConflict, CampaignUnreadable, WrongSequence
from orchard.streams.publish import OutgoingMessage, store
from orchard.streams.reading import last_message, subjects

log = logging.getLogger(__name__)

_RECORDS = msgspec.json.Decoder(CampaignRecord)


class CampaignEntry(msgspec.Struct, frozen=True):
    name: str
    record: CampaignRecord
    revision: int


class CampaignBook:
    """Reads and changes campaign records. Methods raise TopologyError when the bucket does not exist."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def get(self, name: str) -> tuple[CampaignRecord, int] | None:
        """Reads the record and its revision, None for an unknown campaign."""
        found = await last_message(self._connection, names.CAMPAIGNS_STREAM, names.CAMPAIGNS_PREFIX + name)
        if found is None or not found.data:
            return None
        entry = _entry(found.sequence, found.subject, found.data)
        if entry is None:
            raise CampaignUnreadable(
                f"the record of campaign {name} cannot be read, at revision {found.sequence} of "
                f"{names.CAMPAIGNS_STREAM}: put an earlier revision back"
            )
        return entry.record, found.sequence

    async def create(self, name: str, record: CampaignRecord) -> int:
        """Writes a new campaign; returns its revision. Raises CampaignConflict when the name is taken."""
        return await self._put(name, record, 0, f"the campaign {name} exists already")

    async def update(self, name: str, record: CampaignRecord, revision: int) -> int:
        """Replaces the record read at `revision`; returns the new revision. Raises CampaignConflict when it
        was changed since: read it again and decide anew."""
        return await self._put(
            name, record, revision, f"the campaign {name} was changed meanwhile: try again"
        )

    async def list(self) -> dict[str, tuple[CampaignRecord, int]]:
        """Reads every campaign that can be read, by name, with its revision."""
        held = await subjects(self._connection, names.CAMPAIGNS_STREAM, f"{names.CAMPAIGNS_PREFIX}>")
        book = {}
        for name in sorted(subject.removeprefix(names.CAMPAIGNS_PREFIX) for subject in held):
            try:
                found = await self.get(name)
            except CampaignUnreadable as error:
                log.error("%s", error)
                continue
            if found is not None:
                book[name] = found
        return book

    async def changed(self, since: int) -> tuple[dict[str, CampaignEntry], int]:
        """Reads the newest record of each campaign that was changed after revision `since`, and the revision
        to ask with next. Records that cannot be read are left out."""
        entries: dict[str, CampaignEntry] = {}
        pattern = f"{names.CAMPAIGNS_PREFIX}>"
        async for batch in messages_of(self._connection, names.CAMPAIGNS_STREAM, pattern, start=since + 1):
            for message in batch:
                since = message.sequence
                if entry := _entry(message.sequence, message.subject, message.data):
                    entries[entry.name] = entry
        return entries, since

    async def _put(self, name: str, record: CampaignRecord, revision: int, conflict: str) -> int:
        """Stores a record under an id that is new for every call and the same for its repeats, so that a lost
        answer is no conflict."""
        message = OutgoingMessage(
            subject=names.CAMPAIGNS_PREFIX + check_name(name),
            payload=msgspec.json.encode(record),
            id=uuid4().hex,
            expected=revision,
        )
        try:
            return await store(self._connection, message)
        except WrongSequence as refusal:
            raise CampaignConflict(conflict) from refusal


def state_changed(entry: CampaignEntry, previous: CampaignState, source: str) -> Event:
    """Makes the event of a record whose state was changed."""
    record = entry.record
    changed = CampaignStateChanged(
        state=record.state,
        previous=previous,
        reason=record.reason or "",
        revision=entry.revision,
        max_cost_usd=record.max_cost_usd,
    )
    return make_event(changed, id=f"{entry.name}.state.{entry.revision}", source=source, campaign=entry.name)


def _entry(sequence: int, subject: str, data: bytes) -> CampaignEntry | None:
    """Decodes a record; None for a deleted one and for one that cannot be read."""
    name = subject.removeprefix(names.CAMPAIGNS_PREFIX)
    try:
        return CampaignEntry(name, decode(_RECORDS, data), sequence) if data else None
    except Unreadable as error:
        log.error("revision %d of campaign %s cannot be read: %s", sequence, name, error)
        return None

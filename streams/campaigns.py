"""The campaign book: one key a campaign in a bucket, every change by compare-and-set on its revision."""

from collections.abc import AsyncGenerator
from uuid import uuid4

import msgspec

from orchard.schemas.campaigns import CampaignRecord
from orchard.schemas.identity import check_name
from orchard.streams import names
from orchard.streams.confirmed import Message, store
from orchard.streams.connection import Connection
from orchard.streams.errors import CampaignConflict, WrongSequence
from orchard.streams.reader import Reader
from orchard.streams.reading import last_message, subjects


class Entry(msgspec.Struct, frozen=True):
    """A campaign as the book has it."""

    name: str
    record: CampaignRecord
    revision: int


class CampaignBook:
    """Reads and changes campaign records. Methods raise TopologyError when the bucket does not exist."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def get(self, name: str) -> tuple[CampaignRecord, int] | None:
        """The record and its revision, None for an unknown campaign."""
        found = await last_message(self._connection, names.CAMPAIGNS_STREAM, names.CAMPAIGNS_PREFIX + name)
        if found is None or not found.data:
            return None
        return _entry(found.sequence, found.subject, found.data).record, found.sequence

    async def create(self, name: str, record: CampaignRecord) -> int:
        """Write a new campaign; its revision. Raises CampaignConflict when the name is taken."""
        return await self._put(name, record, 0, f"the campaign {name} exists already")

    async def update(self, name: str, record: CampaignRecord, revision: int) -> int:
        """Replace the record read at `revision`; the new one. Raises CampaignConflict when it was changed
        since: read it again and decide anew."""
        return await self._put(
            name, record, revision, f"the campaign {name} was changed meanwhile: try again"
        )

    async def list(self) -> dict[str, tuple[CampaignRecord, int]]:
        """Every campaign by name, with its revision."""
        held = await subjects(self._connection, names.CAMPAIGNS_STREAM, f"{names.CAMPAIGNS_PREFIX}>")
        book = {}
        for name in sorted(subject.removeprefix(names.CAMPAIGNS_PREFIX) for subject in held):
            if (found := await self.get(name)) is not None:
                book[name] = found
        return book

    async def watch(self) -> AsyncGenerator[Entry, None]:
        """Every change from the oldest that the bucket keeps, in order, then as they happen; never ends."""
        reader = Reader(self._connection, names.CAMPAIGNS_STREAM)
        try:
            while True:
                for arrived in await reader.next(None):
                    if arrived.data:
                        yield _entry(arrived.sequence, arrived.subject, arrived.data)
        finally:
            await reader.close()

    async def _put(self, name: str, record: CampaignRecord, revision: int, conflict: str) -> int:
        """The id is new for every call and the same for its repeats, so that a lost answer is no conflict."""
        message = Message(
            subject=names.CAMPAIGNS_PREFIX + check_name(name),
            payload=msgspec.json.encode(record),
            id=uuid4().hex,
            expected=revision,
        )
        try:
            return await store(self._connection, message)
        except WrongSequence as refusal:
            raise CampaignConflict(conflict) from refusal


def _entry(sequence: int, subject: str, data: bytes) -> Entry:
    name = subject.removeprefix(names.CAMPAIGNS_PREFIX)
    return Entry(name, msgspec.json.decode(data, type=CampaignRecord), sequence)

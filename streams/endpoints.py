"""The endpoint book: which model endpoints rest, and which refuse a campaign, by compare-and-set in a bucket.

A record expires when nobody renews it, so an endpoint that no process asks any more does not rest for ever.
"""

from collections.abc import AsyncIterator
from math import ceil
from typing import TypeVar
from uuid import uuid4

import msgspec

from orchard.schemas.decoding import Unreadable, decode
from orchard.schemas.identity import digest
from orchard.schemas.rests import CampaignRefused, Rest
from orchard.streams import names
from orchard.streams.batches import messages_of
from orchard.streams.connection import Connection
from orchard.streams.errors import WrongSequence
from orchard.streams.publish import OutgoingMessage, store
from orchard.streams.reading import last_message, server_time
from orchard.streams.records import StoredMessage

T = TypeVar("T")

KEPT_SECONDS = 3600
"""Seconds that a record is kept after its time."""
OVER_SECONDS = 300
"""Seconds that the record of a finished rest is kept, by which a relapse is recognized."""

_RESTS = f"{names.ENDPOINTS_PREFIX}rest."
_REFUSED = f"{names.ENDPOINTS_PREFIX}refused."


class StoredRest(msgspec.Struct, frozen=True, kw_only=True):
    key: str
    rest: Rest
    revision: int
    left: float
    """Seconds until the endpoint is asked again; negative when that is late."""
    age: float
    """Seconds since the rest began."""


class StoredRefusal(msgspec.Struct, frozen=True):
    """A campaign's refusals in the book."""

    refused: CampaignRefused
    revision: int


class EndpointBook:
    """Reads and changes the records. Methods raise TopologyError where the bucket does not exist."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def rests(self) -> dict[str, StoredRest]:
        """Reads every rest by key, also those that ended a moment ago; in a cluster the newest may be
        missing."""
        found = [(message, rest) async for message, rest in self._read(f"{_RESTS}*", Rest)]
        if not found:
            return {}
        now = await server_time(self._connection, names.ENDPOINTS_STREAM)
        stored = [stored_rest(message, rest, now.timestamp()) for message, rest in found]
        return {one.key: one for one in stored}

    async def rest(self, key: str) -> StoredRest | None:
        found = await last_message(self._connection, names.ENDPOINTS_STREAM, _RESTS + key)
        rest = _decoded(found, Rest)
        if found is None or rest is None:
            return None
        now = await server_time(self._connection, names.ENDPOINTS_STREAM)
        return stored_rest(found, rest, now.timestamp())

    async def put_rest(self, key: str, rest: Rest, revision: int) -> bool:
        """Replaces the record of `revision`, 0 where there was none; False when it was changed meanwhile."""
        seconds = OVER_SECONDS if rest.over else ceil(rest.seconds) + KEPT_SECONDS
        return await self._put(_RESTS + key, rest, revision, seconds)

    async def refusals(self) -> list[StoredRefusal]:
        found = self._read(f"{_REFUSED}*", CampaignRefused)
        return [StoredRefusal(refused, message.sequence) async for message, refused in found]

    async def refusal(self, campaign: str, model: str, endpoint: str) -> StoredRefusal | None:
        """Reads how often a model has refused a campaign since it last served it."""
        subject = _refused_subject(campaign, model, endpoint)
        found = await last_message(self._connection, names.ENDPOINTS_STREAM, subject)
        refused = _decoded(found, CampaignRefused)
        return None if found is None or refused is None else StoredRefusal(refused, found.sequence)

    async def put_refusal(self, refused: CampaignRefused, revision: int) -> bool:
        subject = _refused_subject(refused.campaign, refused.model, refused.endpoint)
        return await self._put(subject, refused, revision, KEPT_SECONDS)

    async def _put(self, subject: str, record: msgspec.Struct, revision: int, seconds: int) -> bool:
        message = OutgoingMessage(
            subject=subject,
            payload=msgspec.json.encode(record),
            id=uuid4().hex,
            expected=revision,
            extra={names.TTL: f"{seconds}s"},
        )
        try:
            await store(self._connection, message)
        except WrongSequence:
            return False
        return True

    async def _read(self, pattern: str, form: type[T]) -> AsyncIterator[tuple[StoredMessage, T]]:
        async for batch in messages_of(self._connection, names.ENDPOINTS_STREAM, pattern):
            for message in batch:
                if (record := _decoded(message, form)) is not None:
                    yield message, record


def _decoded(message: StoredMessage | None, form: type[T]) -> T | None:
    """Decodes a record; None also for a form that only a later version knows: such a record has no effect
    here."""
    try:
        return decode(msgspec.json.Decoder(form), message.data) if message and message.data else None
    except Unreadable:
        return None


def stored_rest(message: StoredMessage, rest: Rest, now: float) -> StoredRest:
    """Makes the rest at `now`, a time of the server's clock."""
    stored = message.time.timestamp()
    since = rest.since.timestamp() if rest.since else stored
    return StoredRest(
        key=message.subject.removeprefix(_RESTS),
        rest=rest if rest.since else msgspec.structs.replace(rest, since=message.time),
        revision=message.sequence,
        left=rest.seconds - max(now - stored, 0.0),  # a server that leads now may have an earlier clock
        age=max(now - since, 0.0),
    )


def _refused_subject(campaign: str, model: str, endpoint: str) -> str:
    return _REFUSED + digest([campaign, model, endpoint])

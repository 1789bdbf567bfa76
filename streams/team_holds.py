"""Teams that have used up their money for the day: one record a team in the bucket of rests, which the server
removes when the day is over."""

from collections.abc import AsyncIterator
from datetime import datetime
from math import ceil
from uuid import uuid4

import msgspec

from orchard.schemas.access import TeamHold
from orchard.schemas.decoding import Unreadable, decode
from orchard.streams import names
from orchard.streams.batches import messages_of
from orchard.streams.connection import Connection
from orchard.streams.errors import AwaitsEndpoint, WrongSequence
from orchard.streams.publish import OutgoingMessage, store
from orchard.streams.reading import last_message, server_time
from orchard.streams.records import StoredMessage

_HOLDS = f"{names.ENDPOINTS_PREFIX}team."
LIFTED_SECONDS = 60
"""Seconds that the record of a lifted hold is kept."""
_DECODER = msgspec.json.Decoder(TeamHold)


class TeamHeld(AwaitsEndpoint):
    """The team has used up its money for the day: its requests wait for the end of the hold."""

    def __init__(self, hold: TeamHold, now: datetime) -> None:
        super().__init__(hold.reason)
        self.key = hold_key(hold.team)
        self.seconds = max((hold.until - now).total_seconds(), 1.0)


def hold_key(team: str) -> str:
    """What requests that wait for the end of a hold are marked with."""
    return f"team-{team}"


class TeamHolds:
    """Reads and changes the holds. Methods raise TopologyError where the bucket does not exist."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def of(self, team: str) -> TeamHeld | None:
        """The hold of a team, None while it may work."""
        hold = _decoded(await last_message(self._connection, names.ENDPOINTS_STREAM, _HOLDS + team))
        if hold is None or hold.lifted:
            return None
        now = await server_time(self._connection, names.ENDPOINTS_STREAM)
        return TeamHeld(hold, now) if hold.until > now else None

    async def all(self) -> dict[str, TeamHold]:
        """The holds by team, lifted ones left out."""
        found = [hold async for hold in self._read() if not hold.lifted]
        if not found:
            return {}
        now = await server_time(self._connection, names.ENDPOINTS_STREAM)
        return {hold.team: hold for hold in found if hold.until > now}

    async def put(self, hold: TeamHold) -> bool:
        """Replaces a team's record; False if it says the same already, or was changed meanwhile."""
        subject = _HOLDS + hold.team
        stored = await last_message(self._connection, names.ENDPOINTS_STREAM, subject)
        known = _decoded(stored)
        held_until = None if known is None or known.lifted else known.until
        if held_until == (None if hold.lifted else hold.until):
            return False
        now = await server_time(self._connection, names.ENDPOINTS_STREAM)
        left = LIFTED_SECONDS if hold.lifted else max(ceil((hold.until - now).total_seconds()), 1)
        message = OutgoingMessage(
            subject=subject,
            payload=msgspec.json.encode(hold),
            id=uuid4().hex,
            expected=0 if stored is None else stored.sequence,
            extra={names.TTL: f"{left}s"},
        )
        try:
            await store(self._connection, message)
        except WrongSequence:
            return False
        return True

    async def _read(self) -> AsyncIterator[TeamHold]:
        async for batch in messages_of(self._connection, names.ENDPOINTS_STREAM, f"{_HOLDS}*"):
            for message in batch:
                if (hold := _decoded(message)) is not None:
                    yield hold


def _decoded(message: StoredMessage | None) -> TeamHold | None:
    try:
        return decode(_DECODER, message.data) if message and message.data else None
    except Unreadable:
        return None

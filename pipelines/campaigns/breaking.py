"""The breaker: a campaign whose model refuses one rollout after the other is paused, soon where the reasons
are equal."""

import asyncio
import logging

import msgspec

from orchard.schemas.campaigns import CampaignState
from orchard.schemas.rests import CampaignRefused
from orchard.streams.campaigns import CampaignBook
from orchard.streams.connection import Connection
from orchard.streams.endpoints import EndpointBook, StoredRefusal
from orchard.streams.errors import CampaignConflict, CampaignUnreadable, TopologyError

log = logging.getLogger("orchard.breaker")

LOOK_SECONDS = 2.0
BREAKS_AT = 5
"""Equal refusals in a row that pause a campaign."""
UNLIKE_BREAKS_AT = 20
"""Refusals in a row, whatever their reasons: several servers behind one address have several words."""


def broken(refused: CampaignRefused) -> str:
    """Say why the campaign must be paused, as a clause; empty where it may run."""
    count, reason = refused.count, refused.reason
    if count < BREAKS_AT:
        count, reason = count + refused.unlike, f"the last: {reason}"
        if not refused.count or count < UNLIKE_BREAKS_AT:
            return ""
    return f"{count} rollouts in a row were refused by model {refused.model!r}: {reason}"


class Breaker:
    """Pauses campaigns whose model refuses every rollout. Any number of these may run: the pause is one
    compare-and-set, and `spending` writes it into the log."""

    def __init__(self, connection: Connection) -> None:
        self._book = EndpointBook(connection)
        self._campaigns = CampaignBook(connection)

    async def run(self, pause: float = LOOK_SECONDS) -> None:
        """Look again and again until cancelled; raises StreamsError."""
        while True:
            await self.look()
            await asyncio.sleep(pause)

    async def look(self) -> None:
        """Pause refused campaigns, and forget the refusals of those that are not running, so that a
        resumed one starts at zero."""
        try:
            stored = await self._book.refusals()
        except TopologyError as error:
            log.debug("%s", error)
            return  # an older process has declared the topology
        for one in stored:
            if one.refused.count and not await self._runs_on(one):
                await self._book.put_refusal(msgspec.structs.replace(one.refused, count=0), one.revision)

    async def _runs_on(self, one: StoredRefusal) -> bool:
        name, reason = one.refused.campaign, broken(one.refused)
        try:
            known = await self._campaigns.get(name)
        except CampaignUnreadable as error:
            log.error("%s", error)
            return True
        if known is None or known[0].state is not CampaignState.RUNNING:
            return False
        if not reason:
            return True
        record = msgspec.structs.replace(known[0], state=CampaignState.PAUSED, resumed=None, reason=reason)
        try:
            await self._campaigns.update(name, record, known[1])
        except CampaignConflict:
            return True  # the next look reads what it is now
        log.warning("campaign %s is paused: %s", name, reason)
        return False

"""Counts a campaign's rollouts that a model refuses in a row, in the endpoint book for the whole fleet.

A wrong key or an unknown model ends a whole campaign in seconds, each rollout for the same reason. The
breaker (`pipelines.campaigns.breaking`) reads the counts and pauses it. An endpoint that rests refuses
nobody.
"""

import re

import msgspec

from orchard.schemas.campaigns import RolloutRequest
from orchard.schemas.rests import CampaignRefused
from orchard.streams.connection import Connection
from orchard.streams.endpoints import EndpointBook, StoredRefusal

_CHANGES = re.compile(r"[\w-]*\d[\w-]*")
"""Numbers and ids, which differ from one refusal to the next."""
_TRIES = 5


def counted(before: CampaignRefused | None, request: RolloutRequest, reason: str) -> CampaignRefused:
    count = before.count if before is not None else 0
    unlike = before.unlike if before is not None and count else 0
    if before is None or _form(before.reason) != _form(reason):
        count, unlike = 0, unlike + count
    return CampaignRefused(
        campaign=request.campaign,
        model=request.model.name,
        endpoint=request.model.endpoint,
        reason=reason,
        count=count + 1,
        unlike=unlike,
    )


def _form(reason: str) -> str:
    return _CHANGES.sub("#", reason)


class RefusalCounts:
    def __init__(self, connection: Connection) -> None:
        self._book = EndpointBook(connection)

    async def refused(self, request: RolloutRequest, reason: str) -> None:
        """Counts a rollout that ended because its model refused it. Raises StreamsError."""
        for _ in range(_TRIES):  # each of which loses to another process that counts
            known = await self._find(request)
            record = counted(known.refused if known else None, request, reason)
            if await self._book.put_refusal(record, known.revision if known else 0):
                return

    async def served(self, request: RolloutRequest) -> None:
        """Resets the count after a rollout that finished. Raises StreamsError."""
        for _ in range(_TRIES):
            known = await self._find(request)
            if known is None or not known.refused.count:
                return
            if await self._book.put_refusal(msgspec.structs.replace(known.refused, count=0), known.revision):
                return

    async def _find(self, request: RolloutRequest) -> StoredRefusal | None:
        return await self._book.refusal(request.campaign, request.model.name, request.model.endpoint)

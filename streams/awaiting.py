"""Releases requests that wait for an endpoint, or for their team's next day, as soon as that is over, not at
their own times.

They are in LATER, each marked with the key of the endpoint or team. Any number of these may run, and be
killed anywhere: a request is put on the work queue under its own id before it leaves LATER.
"""

import asyncio
import logging

from orchard.streams import names
from orchard.streams.batches import messages_of
from orchard.streams.connection import Connection
from orchard.streams.endpoints import EndpointBook
from orchard.streams.enqueue import EnqueueResult, enqueue_all
from orchard.streams.entries import released_subject
from orchard.streams.errors import NameReused, TopologyError
from orchard.streams.publish import OutgoingMessage
from orchard.streams.reading import delete_message
from orchard.streams.records import StoredMessage
from orchard.streams.team_holds import TeamHolds, hold_key

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
"""Interval between two reads of the endpoint book."""
SILENT_SECONDS = 60.0
"""Silence after which an endpoint that nobody asks again keeps nobody waiting: the one server of a worker
that is gone."""
_PASSES = (0.0, 2.0, 5.0, 15.0, 60.0)
"""Seconds after the end of a rest at which its waiting requests are released: a worker that has not heard of
the end puts some off at that moment, and some find the work queue full."""
_AT_ONCE = 64


class Releases:
    """Follows the endpoint book and releases what waits for an endpoint that rests no more."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._book = EndpointBook(connection)
        self._holds = TeamHolds(connection)
        self._clock = asyncio.get_running_loop().time
        self._resting: set[str] = set()
        self._over: set[int] = set()
        """Revisions of the records of finished rests: a rest may begin and end between two looks."""
        self._due = [self._clock() + seconds for seconds in _PASSES]
        """Times of releases; the first are at the start, for what a dead process has left."""

    async def run(self) -> None:
        """Looks at the book until cancelled; raises StreamsError."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_SECONDS)

    async def look(self) -> int:
        """Looks at the book once; returns the number of released requests."""
        try:
            rests = await self._book.rests()
        except TopologyError as error:
            log.debug("%s", error)
            return 0  # an older process has declared the topology
        resting = {key for key, one in rests.items() if not one.rest.over and one.left > -SILENT_SECONDS}
        resting |= {hold_key(team) for team in await self._holds.all()}
        over = {one.revision for one in rests.values() if one.rest.over}
        now = self._clock()
        if self._resting - resting or over - self._over:
            self._due += [now + seconds for seconds in _PASSES]
        self._resting, self._over = resting, over
        if not any(due <= now for due in self._due):
            return 0
        self._due = [due for due in self._due if due > now]
        return await self._release()

    async def _release(self) -> int:
        released = 0
        async for batch in messages_of(self._connection, names.LATER, names.LATER_SUBJECTS):
            waiting = [message for message in batch if self._may_go(message)]
            try:
                placed = await enqueue_all(self._connection, names.WORK, [_due(one) for one in waiting])
            except NameReused as error:
                log.error("requests that wait for an endpoint come back at their own times: %s", error)
                continue
            gone = [
                message
                for message, one in zip(waiting, placed, strict=True)
                if one.result not in (EnqueueResult.FULL, EnqueueResult.OCCUPIED)
            ]
            released += len(gone)
            for start in range(0, len(gone), _AT_ONCE):
                some = gone[start : start + _AT_ONCE]
                deleted = (delete_message(self._connection, names.LATER, one.sequence) for one in some)
                await asyncio.gather(*deleted)
        if released:
            log.info("%d requests waited for an endpoint that answers again, or for their team", released)
        return released

    def _may_go(self, message: StoredMessage) -> bool:
        key = message.headers.get(names.AWAITS)
        return key is not None and key not in self._resting


def _due(message: StoredMessage) -> OutgoingMessage:
    """Makes the work queue's message from a waiting request."""
    return OutgoingMessage(
        subject=released_subject(message.subject),
        payload=message.data,
        id=message.headers.get(names.ORIGINAL_ID, ""),
        expected=0,
    )

"""The queues of one kind, domain and priority, one for each team: pulls from them in fair order.

A team's queue has a consumer of its own, so what a claim costs does not depend on what others have waiting,
and the server keeps the team's quota of slots by itself.
"""

import asyncio
import itertools
from collections.abc import Mapping, Sequence

from orchard.schemas.queues import Queue
from orchard.streams import names
from orchard.streams.client import Frame
from orchard.streams.connection import Connection
from orchard.streams.fair_order import FairOrder
from orchard.streams.pull import Puller
from orchard.streams.settings import TeamSettings

TURN_SECONDS = 1.0
"""Seconds that an idle slot waits at the queue of one team before it waits at the next."""
_NO_TEAM = TeamSettings()


class TeamQueues:
    """Pulls for any number of slots of one process."""

    def __init__(
        self, connection: Connection, queues: Sequence[Queue], teams: Mapping[str, TeamSettings]
    ) -> None:
        settings = {queue: teams.get(queue.team, _NO_TEAM) for queue in queues}
        self._pullers = {
            queue: Puller(connection, names.WORK, queue.consumer, quota=settings[queue].slots is not None)
            for queue in queues
        }
        self._order = FairOrder({queue: settings[queue].share for queue in queues})
        self._turns = itertools.cycle(queues)
        self._clock = asyncio.get_running_loop().time

    async def pull(self, timeout: float) -> tuple[Queue, Frame] | None:
        """Pulls the next message, with its queue; None after `timeout` seconds without one. `release` the
        queue when it is settled. Raises as `Puller.pull` does."""
        deadline = self._clock() + timeout
        if len(self._pullers) > 1 and (found := await self._pull_now()) is not None:
            return found
        while (left := deadline - self._clock()) > 0:
            seconds = left if len(self._pullers) == 1 else min(left, TURN_SECONDS)
            queue = next(self._turns)
            message = await self._pullers[queue].pull(seconds)
            if message is not None:
                self._order.take([queue])
                self._order.claimed(queue)
                return queue, message
        return None

    def release(self, queue: Queue) -> None:
        self._order.release(queue)

    async def close(self) -> None:
        for puller in self._pullers.values():
            await puller.close()

    async def _pull_now(self) -> tuple[Queue, Frame] | None:
        """Pulls what waits, in fair order."""
        left = list(self._pullers)
        while left:
            queue = self._order.take(left)
            try:
                message = await self._pullers[queue].pull_now()
            except BaseException:
                self._order.release(queue)
                raise
            if message is not None:
                self._order.claimed(queue)
                return queue, message
            self._order.release(queue)
            left.remove(queue)
        return None

"""Requests that are answered by one event: offered, watched until each has its answer, and withdrawn.

An answer is on a subject of its own under compare-and-set, like a rollout's outcome. A request names the
answer before it as its fence, so that one of all answers is accepted, and the same question can be asked
again later.
"""

import asyncio
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import NamedTuple

from orchard.schemas.events import Event
from orchard.schemas.subjects import EVENTS_PREFIX, answered_subject
from orchard.streams import names
from orchard.streams.batches import last_messages
from orchard.streams.connection import Connection
from orchard.streams.consumer import Consumer
from orchard.streams.deadletter_codec import read_letter
from orchard.streams.enqueue import EnqueueResult
from orchard.streams.entries import FIRST, QueueEntry
from orchard.streams.errors import QueueFull
from orchard.streams.publisher import Publisher
from orchard.streams.reading import bounds, next_message, purge, subjects
from orchard.streams.replay import replay_batches

LOOK_SECONDS = 2.0
"""Seconds without an answer after which the queues are asked for the requests."""

Make = Callable[[str, int, str], QueueEntry]
"""Makes the request for a key over a fence, for an occasion."""


class RequestAnswer(NamedTuple):
    """The answer to a request, or the reason why there is none."""

    key: str
    event: Event | None
    """The answer; None: the request left the queue without one."""
    reason: str = ""
    """Why there is no answer."""


class OfferedRequests:
    """Requests of one kind that a command waits for."""

    def __init__(self, connection: Connection, kind: str) -> None:
        self._connection = connection
        self._kind = kind
        self._start = 0
        self._open: dict[str, QueueEntry] = {}
        """Requests without an answer, by the subject of the answer."""
        self._offered: list[QueueEntry] = []

    async def offer(self, keys: Sequence[str], make: Make) -> None:
        """Puts a request for each key on its queue, unless one is there already. Raises QueueFull."""
        self._start = self._start or (await bounds(self._connection, names.EVENTS)).last + 1
        wanted = {answered_subject(self._kind, key): key for key in keys}
        before = await last_messages(self._connection, names.EVENTS, list(wanted))
        occasion = f"{FIRST}.{secrets.token_hex(8)}"
        entries = {
            subject: make(key, before[subject].sequence if subject in before else 0, occasion)
            for subject, key in wanted.items()
        }
        placed = await Publisher(self._connection).offer_absent(list(entries.values()))
        stored = zip(entries.values(), placed, strict=True)
        self._offered += [entry for entry, one in stored if one.result is EnqueueResult.STORED]
        self._open |= entries
        if any(one.result is EnqueueResult.FULL for one in placed):
            await self.withdraw()
            raise QueueFull(
                "the work stream is full: wait until requests are done, and run the command again"
            )

    async def answers(self) -> AsyncGenerator[RequestAnswer, None]:
        """Yields the answer to each request, in the order of acceptance, whoever gives them."""
        pattern = f"{EVENTS_PREFIX}.answered.{self._kind}.>"
        batches = replay_batches(
            self._connection, self._start, subjects=pattern, follow=True, idle=LOOK_SECONDS
        )
        absent: set[str] = set()
        async with aclosing(batches):
            while self._open:
                batch = await anext(batches)
                for stored in batch:
                    entry = self._open.get(stored.subject)
                    if entry is not None and stored.sequence > entry.address.fence:
                        del self._open[stored.subject]
                        yield RequestAnswer(entry.address.key, stored.event)
                if not batch:
                    before, absent = absent, await self._absent()
                    for subject in before & absent:
                        entry = self._open.pop(subject)
                        yield RequestAnswer(entry.address.key, None, await self._why(entry))

    async def withdraw(self) -> None:
        """Withdraws this command's requests from the queue. A request that a worker has claimed is still
        answered."""
        await purge(self._connection, names.WORK, [entry.subject for entry in self._offered])
        waiting = [subject for entry in self._offered for subject in (entry.later_subject, entry.due_subject)]
        await purge(self._connection, names.LATER, waiting)

    async def _absent(self) -> set[str]:
        """Finds the requests that are on no queue. One that moves from LATER to WORK meanwhile is seen in one
        of them."""
        seen: set[str] = set()
        for stream in (names.LATER, names.WORK, names.LATER):
            seen |= set(await subjects(self._connection, stream, f"orchard.*.{self._kind}.>"))
        return {
            subject
            for subject, entry in self._open.items()
            if seen.isdisjoint((entry.subject, entry.later_subject, entry.due_subject))
        }

    async def _why(self, entry: QueueEntry) -> str:
        reason = "its request is on the queue no more"
        found = await next_message(self._connection, names.DEAD, 1, names.DEAD_SUBJECTS)
        while found is not None:
            letter = read_letter(found)
            if letter.subject == entry.subject:
                reason = letter.reason.removeprefix("terminated: ")
            found = await next_message(self._connection, names.DEAD, found.sequence + 1, names.DEAD_SUBJECTS)
        return reason


@asynccontextmanager
async def working(requests: OfferedRequests, consumer: Consumer) -> AsyncIterator[None]:
    """Makes this process work on the queue too. After an error or a cancellation the requests are withdrawn,
    because nobody waits for them any more."""
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(consumer.run())
            yield
            consumer.drain()
    except BaseException:
        await requests.withdraw()
        raise

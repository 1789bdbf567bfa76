"""Replay pointers on the wire: left after each answer of a model, found by the attempt that follows a death.

Leaving one is not confirmed and never fails: a pointer that is lost, as on a full disk, costs model calls and
nothing else, so no attempt waits for it.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Sequence

import msgspec
from nats.errors import Error as NatsError

from orchard.schemas.decoding import Unreadable, decode
from orchard.schemas.replay_pointers import (
    SEGMENT_EVENTS,
    ReplayPointer,
    ReplaySegment,
    pointer_subject,
    segment_subject,
)
from orchard.streams import names
from orchard.streams.connection import Connection
from orchard.streams.errors import StreamsError
from orchard.streams.event_streams import events_at
from orchard.streams.reading import last_message
from orchard.streams.records import StoredEvent

log = logging.getLogger(__name__)

FORGET_SECONDS = 1
_TRAILS = msgspec.json.Decoder(ReplayPointer)
_SEGMENTS = msgspec.json.Decoder(ReplaySegment)


class ReplayPointers:
    """Reads and writes replay pointers over one connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._sealed: defaultdict[str, set[tuple[int, int]]] = defaultdict(set)
        """Segments to be deleted, by rollout: attempt and number."""

    async def leave(self, rollout_id: str, trail: ReplayPointer) -> None:
        """Replaces the rollout's pointer, whose first `segments` were sealed before."""
        head = msgspec.structs.replace(trail, events=trail.events[trail.segments * SEGMENT_EVENTS :])
        await self._publish(pointer_subject(rollout_id), msgspec.json.encode(head), {})

    async def seal(self, rollout_id: str, attempt: int, number: int, events: Sequence[int]) -> None:
        """Writes the SEGMENT_EVENTS events of a segment, before the pointer that counts it."""
        self._sealed[rollout_id].add((attempt, number))
        body = msgspec.json.encode(ReplaySegment(events=tuple(events)))
        await self._publish(segment_subject(rollout_id, attempt, number), body, {})

    async def forget(self, rollout_id: str) -> None:
        """Deletes the pointer of a rollout that has its outcome, with the segments that were sealed or found
        here."""
        gone = {names.TTL: f"{FORGET_SECONDS}s"}
        await self._publish(pointer_subject(rollout_id), b"", gone)
        for attempt, number in sorted(self._sealed.pop(rollout_id, ())):
            await self._publish(segment_subject(rollout_id, attempt, number), b"", gone)

    async def find(self, rollout_id: str) -> ReplayPointer | None:
        """Finds the rollout's pointer with all its events; None where there is none, or none that can be
        read."""
        try:
            found = await last_message(self._connection, names.TRAILS, pointer_subject(rollout_id))
            head = decode(_TRAILS, found.data) if found and found.data else None
            return await self._joined(rollout_id, head) if head and head.segments else head
        except (StreamsError, Unreadable) as error:
            log.warning("the trail of %s cannot be read: %s", rollout_id, error)
            return None

    async def _joined(self, rollout_id: str, head: ReplayPointer) -> ReplayPointer | None:
        """Joins a pointer with the events of its segments; None where one is lost."""
        numbers = range(head.segments)
        self._sealed[rollout_id] |= {(head.attempt, number) for number in numbers}
        wanted = [segment_subject(rollout_id, head.attempt, number) for number in numbers]
        found = await asyncio.gather(
            *(last_message(self._connection, names.TRAILS, subject) for subject in wanted)
        )
        events: list[int] = []
        for subject, message in zip(wanted, found, strict=True):
            if message is None or not message.data:
                log.warning("the trail of %s is not whole: %s is lost", rollout_id, subject)
                return None
            events += decode(_SEGMENTS, message.data).events
        return msgspec.structs.replace(head, events=(*events, *head.events))

    async def events(self, sequences: Sequence[int]) -> list[StoredEvent]:
        """Reads the events with these sequences, in their order, without those that are gone.

        Reads nothing else of the stream, however many rollouts it holds. Raises as `events_at` does.
        """
        found = await events_at(self._connection, sequences)
        return [message.as_event for message in found]

    async def _publish(self, subject: str, body: bytes, headers: dict[str, str]) -> None:
        try:
            await self._connection.nats.publish(subject, body, headers=headers or None)
        except (NatsError, OSError) as error:
            log.debug("%s is not left: %s", subject, error)

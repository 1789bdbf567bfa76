"""Puts entries on WORK and LATER: each on its own empty subject, every answer understood.

Three things can stand in the way of an entry, and none of them may pass for "stored": its subject is taken
by another entry, its name was used before, or the stream is full.
"""

import random
from collections.abc import Sequence
from datetime import timedelta
from enum import StrEnum
from typing import NamedTuple

from orchard.streams import names
from orchard.streams.connection import Connection
from orchard.streams.entries import QueueEntry
from orchard.streams.errors import NameReused, QueueFull, WrongSequence
from orchard.streams.publish import OutgoingMessage, PublishResult, results_of
from orchard.streams.reading import last_message, message_at, moment

_AWAIT_SECONDS = 60.0
_AWAIT_EACH = 20.0
"""Seconds after the end of a rest in which one waiting request comes back to look, at least, and for each
delayed request: of five thousand one comes in some 3 s, of a million hardly more."""


class EnqueueResult(StrEnum):
    STORED = "stored"
    KNOWN = "known"
    """An earlier call stored this entry, which is still in the stream."""
    TAKEN = "taken"
    """An earlier call stored this entry, which was claimed and settled since."""
    OCCUPIED = "occupied"
    """Another entry of the same request is queued or running (WORK), or delayed (LATER)."""
    FULL = "full"
    """The stream is at its limit."""


class Enqueued(NamedTuple):
    """The result, and the sequence of the entry if it is in the stream (else 0)."""

    result: EnqueueResult
    sequence: int = 0


def work_message(entry: QueueEntry) -> OutgoingMessage:
    """Makes the message by which the entry can be claimed at once."""
    return OutgoingMessage(subject=entry.subject, payload=entry.body, id=entry.name, expected=0)


async def enqueue(connection: Connection, stream: str, message: OutgoingMessage) -> Enqueued:
    """Stores the message on its subject of `stream` if that is empty; returns the result.

    Raises NameReused for a message id that the stream holds with another body, and as `results_of`.
    """
    [result] = await results_of(connection, [message])
    return await _enqueued(connection, stream, message, result, look=True)


async def enqueue_all(
    connection: Connection, stream: str, messages: Sequence[OutgoingMessage]
) -> list[Enqueued]:
    """Stores messages as `enqueue` does, pipelined. It does not look who has a taken subject: OCCUPIED stands
    for KNOWN too."""
    results = await results_of(connection, list(messages))
    return [
        await _enqueued(connection, stream, message, result, look=False)
        for message, result in zip(messages, results, strict=True)
    ]


async def enqueue_later(
    connection: Connection, entry: QueueEntry, delay: float, *, awaits: str = ""
) -> Enqueued:
    """Stores the entry so that it is due in `delay` seconds: absolute time, so the server's clock counts.

    One that `awaits` the end of an endpoint's rest is released then. Its own time is for the case that nobody
    sees that end, and later the more there are, so that few of a crowd come back to look.
    """
    now, others = await moment(connection, names.LATER)
    extra = {names.SCHEDULE_TARGET: entry.due_subject, names.ORIGINAL_ID: entry.name}
    if awaits:
        delay += random.uniform(0.0, max(_AWAIT_SECONDS, _AWAIT_EACH * others))
        extra[names.AWAITS] = awaits
    due = now + timedelta(seconds=delay)
    extra[names.SCHEDULE] = f"@at {due.isoformat().replace('+00:00', 'Z')}"
    message = OutgoingMessage(entry.later_subject, entry.body, entry.name, expected=0, extra=extra)
    return await enqueue(connection, names.LATER, message)


async def _enqueued(
    connection: Connection, stream: str, message: OutgoingMessage, result: PublishResult, *, look: bool
) -> Enqueued:
    if result.refusal is None and not result.duplicate:
        return Enqueued(EnqueueResult.STORED, result.sequence)
    if isinstance(result.refusal, QueueFull):
        return Enqueued(EnqueueResult.FULL)
    if isinstance(result.refusal, WrongSequence):
        if not (look or result.resent):
            return Enqueued(EnqueueResult.OCCUPIED)
        held = await last_message(connection, stream, message.subject)
        missing = EnqueueResult.OCCUPIED  # whoever stood there has been taken since
    elif result.refusal is not None:
        raise result.refusal
    else:
        held = await message_at(connection, stream, result.sequence)
        missing = EnqueueResult.STORED if result.resent else EnqueueResult.TAKEN
    if held is None or held.headers.get(names.MESSAGE_ID) != message.id:
        return Enqueued(missing)
    if held.data != message.payload:
        raise NameReused(
            f"the message id {message.id} belongs to another request (sequence {held.sequence}): "
            "the request was not stored, name it anew"
        )
    return Enqueued(EnqueueResult.STORED if result.resent else EnqueueResult.KNOWN, held.sequence)

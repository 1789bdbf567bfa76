"""Reads many messages of a stream in one request (direct get, nats-server 2.11), over lost connections.

Any replica answers, so what was stored a moment ago may be missing in a cluster: ask `reading` where that
would matter.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec

from orchard.streams.client import Frame, headers_of
from orchard.streams.connection import Connection
from orchard.streams.errors import TopologyError
from orchard.streams.publish import NobodyListens, PublishRetry
from orchard.streams.records import StoredMessage, nanoseconds
from orchard.streams.replies import status_of
from orchard.streams.tasks import waited

_SUBJECTS = 256
"""Number of subjects in one request: the server takes 1024, but terminal events may have 64 KiB each."""
_MESSAGES = 500
_SEQUENCE = "Nats-Sequence"
"""Header that the server adds, behind all others, to each message of a stream and to no status."""
_PENDING = "Nats-Num-Pending"
"""Header that the server adds to a message of a batch: number of further messages that match."""
_SILENCE = 5.0
"""Seconds without a message until the request is repeated."""


async def last_messages(
    connection: Connection, stream: str, subjects: Sequence[str]
) -> dict[str, StoredMessage]:
    """Reads the newest message of each subject (no wildcards) that has one."""
    found: dict[str, StoredMessage] = {}
    for start in range(0, len(subjects), _SUBJECTS):
        wanted = {"multi_last": list(subjects[start : start + _SUBJECTS])}
        found |= {message.subject: message for message in await _ask(connection, stream, wanted)}
    return found


async def messages_of(
    connection: Connection, stream: str, pattern: str, *, start: int = 1, up_to: int | None = None
) -> AsyncIterator[list[StoredMessage]]:
    """Reads the messages on subjects that match, in order, between two sequences, in lists of some
    hundred."""
    position = start
    while up_to is None or position <= up_to:
        wanted = {"batch": _MESSAGES, "seq": position, "next_by_subj": pattern}
        batch = await _ask(connection, stream, wanted)
        if not batch:
            return
        position = batch[-1].sequence + 1
        yield [message for message in batch if up_to is None or message.sequence <= up_to]


async def count_from(connection: Connection, stream: str, pattern: str, start: int) -> int:
    """Counts the messages on subjects that match, from sequence `start` on, of which it reads one."""
    found = await _ask(connection, stream, {"batch": 1, "seq": start, "next_by_subj": pattern})
    return 1 + int(found[0].headers[_PENDING]) if found else 0


async def _ask(connection: Connection, stream: str, wanted: dict[str, Any]) -> list[StoredMessage]:
    return await PublishRetry(connection).until(stream, lambda: _ask_once(connection, stream, wanted))


async def _ask_once(connection: Connection, stream: str, wanted: dict[str, Any]) -> list[StoredMessage]:
    arrived: asyncio.Queue[Frame] = asyncio.Queue()
    inbox = connection.nats.new_inbox()
    subscription = await connection.nats.listen(inbox, arrived.put_nowait)
    try:
        request = msgspec.json.encode(wanted)
        await connection.nats.publish(f"$JS.API.DIRECT.GET.{stream}", request, reply=inbox)
        found: list[StoredMessage] = []
        while True:
            message = await waited(arrived.get(), _SILENCE)
            headers = headers_of(message.headers)
            if _SEQUENCE in headers:  # whatever else its publisher has put beside it
                found.append(_stored(headers, message.data))
                continue
            match status_of(message):
                case "204" | "404":
                    return found
                case "503":
                    raise NobodyListens("JetStream does not answer")
                case status:
                    raise TopologyError(f"the stream {stream} cannot be read in batches (status {status})")
    finally:
        await subscription.unsubscribe()


def _stored(headers: dict[str, str], data: bytes) -> StoredMessage:
    return StoredMessage(
        sequence=int(headers[_SEQUENCE]),
        subject=headers["Nats-Subject"],
        nanoseconds=nanoseconds(headers["Nats-Time-Stamp"]),
        headers=headers,
        data=data,
    )

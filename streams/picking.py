"""Single messages of the event stream exactly as they are stored, and taking some of them out of it."""

import asyncio
from collections.abc import Sequence
from datetime import datetime

import msgspec

from orchard.streams import names
from orchard.streams.connection import Connection
from orchard.streams.errors import StreamsError
from orchard.streams.reader import Arrived
from orchard.streams.reading import request
from orchard.streams.records import parse_headers

_AT_ONCE = 64
_NO_MESSAGE = 10037


class _Error(msgspec.Struct):
    err_code: int = 0
    description: str = ""


class _Message(msgspec.Struct):
    subject: str
    seq: int
    time: str
    data: bytes = b""
    hdrs: bytes = b""


class _Found(msgspec.Struct):
    message: _Message | None = None
    error: _Error | None = None


class _Purged(msgspec.Struct):
    purged: int = 0
    error: _Error | None = None


async def events_at(connection: Connection, sequences: Sequence[int]) -> list[Arrived]:
    """The messages with these sequences, in their order, without those that are gone."""
    found: list[Arrived] = []
    for start in range(0, len(sequences), _AT_ONCE):
        part = sequences[start : start + _AT_ONCE]
        answers = await asyncio.gather(*(_event_at(connection, sequence) for sequence in part))
        found += [answer for answer in answers if answer is not None]
    return found


async def purge_events(connection: Connection, subject: str, through: int) -> int:
    """Take out of the stream what is on matching subjects at sequences up to `through`; how many it was."""
    body = {"filter": subject, "seq": through + 1}
    reply = await request(connection, f"STREAM.PURGE.{names.EVENTS}", body, _Purged)
    if reply.error is not None:
        raise StreamsError(
            f"{names.EVENTS} did not give up events of {subject} ({reply.error.description}): "
            "allow this user to purge the stream"
        )
    return reply.purged


async def _event_at(connection: Connection, sequence: int) -> Arrived | None:
    reply = await request(connection, f"STREAM.MSG.GET.{names.EVENTS}", {"seq": sequence}, _Found)
    if reply.message is None:
        if reply.error is not None and reply.error.err_code == _NO_MESSAGE:
            return None
        why = reply.error.description if reply.error else "no message in the reply"
        raise StreamsError(f"event {sequence} of {names.EVENTS} cannot be read ({why}): check the server")
    found, headers = reply.message, parse_headers(reply.message.hdrs)
    time = int(headers[names.STORED_AT]) if names.STORED_AT in headers else nanoseconds(found.time)
    return Arrived(found.seq, found.subject, time, found.data, headers)


def nanoseconds(time: str) -> int:
    """Nanoseconds since the epoch of an RFC 3339 time in UTC with up to nine decimals, as NATS writes it."""
    whole, _, fraction = time.removesuffix("Z").partition(".")
    seconds = int(datetime.fromisoformat(f"{whole}+00:00").timestamp())
    return seconds * 1_000_000_000 + int(fraction.ljust(9, "0")[:9])

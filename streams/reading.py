"""Reads single messages of a stream by sequence or subject from the stream's leader, over lost
connections."""

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

import msgspec
from nats.js.api import ConsumerInfo
from nats.js.errors import APIError, NotFoundError

from orchard.streams.connection import Connection
from orchard.streams.errors import StreamsError, TopologyError
from orchard.streams.publish import UNSETTLED, NobodyListens, PublishRetry, Unavailable
from orchard.streams.records import ApiError, StoredMessage, nanoseconds, parse_headers
from orchard.streams.replies import status_of

T = TypeVar("T")

_NO_MESSAGE = 10037
_GONE = (_NO_MESSAGE, 10043, 10057)
"""Error codes of a deletion of nothing: 10043 is the one between messages that exist."""
_AT_ONCE = 500
_READS_AT_ONCE = 64


class _Stored(msgspec.Struct):
    subject: str
    seq: int
    time: str
    data: bytes = b""
    hdrs: bytes = b""


class _Problem(msgspec.Struct):
    error: ApiError | None = None


class MessageReply(msgspec.Struct):
    """A message, or the error, in an answer of the JetStream API."""

    message: _Stored | None = None
    error: ApiError | None = None


class Bounds(msgspec.Struct, frozen=True):
    """The bounds of a stream: sequences `first` to `last`, `messages` of them. Empty: first = last + 1."""

    first: int
    last: int
    messages: int


class _State(msgspec.Struct):
    first_seq: int
    last_seq: int
    messages: int
    num_subjects: int = 0
    subjects: dict[str, int] = {}


class _Info(msgspec.Struct):
    ts: datetime | None = None
    total: int = 0
    """Number of subjects that match the filter; an answer has 100,000 of them at most."""
    state: _State | None = None
    error: ApiError | None = None


async def last_message(connection: Connection, stream: str, subject: str) -> StoredMessage | None:
    """Reads the newest message on a subject, None when there is none."""
    return await _get(connection, stream, {"last_by_subj": subject})


async def message_at(connection: Connection, stream: str, sequence: int) -> StoredMessage | None:
    """Reads the message with this sequence, None when it is gone."""
    return await _get(connection, stream, {"seq": sequence})


async def messages_at(connection: Connection, stream: str, sequences: Sequence[int]) -> list[StoredMessage]:
    """Reads the messages with these sequences, in their order, without those that are gone."""
    found: list[StoredMessage] = []
    for start in range(0, len(sequences), _READS_AT_ONCE):
        part = sequences[start : start + _READS_AT_ONCE]
        answers = await asyncio.gather(*(message_at(connection, stream, sequence) for sequence in part))
        found += [answer for answer in answers if answer is not None]
    return found


async def next_message(connection: Connection, stream: str, start: int, subject: str) -> StoredMessage | None:
    """Reads the first message on a subject (wildcards allowed) at or after `start`."""
    return await _get(connection, stream, {"seq": start, "next_by_subj": subject})


async def delete_message(connection: Connection, stream: str, sequence: int) -> None:
    """Deletes a message; one that is gone already is fine. Its bytes are not overwritten, which would take
    milliseconds for each: acknowledging does not overwrite them either."""
    wanted = {"seq": sequence, "no_erase": True}
    reply = await request(connection, f"STREAM.MSG.DELETE.{stream}", wanted, MessageReply)
    if reply.error is not None and reply.error.err_code not in _GONE and reply.error.code != 404:
        raise StreamsError(f"{stream} did not delete message {sequence} ({reply.error.description})")


async def purge(
    connection: Connection, stream: str, patterns: Sequence[str], *, through: int | None = None
) -> None:
    """Deletes the messages on subjects that match, all or up to sequence `through`, some hundred requests at
    once."""
    upto = {} if through is None else {"seq": through + 1}
    for start in range(0, len(patterns), _AT_ONCE):
        wanted = [{"filter": pattern, **upto} for pattern in patterns[start : start + _AT_ONCE]]
        replies = await asyncio.gather(
            *(request(connection, f"STREAM.PURGE.{stream}", one, MessageReply) for one in wanted)
        )
        if refused := next((reply.error for reply in replies if reply.error is not None), None):
            raise StreamsError(
                f"{stream} did not delete messages ({refused.description}): allow this user to purge it"
            )


async def bounds(connection: Connection, stream: str) -> Bounds:
    state = (await _info(connection, stream, {})).state
    assert state is not None
    return Bounds(state.first_seq, state.last_seq, state.messages)


class Moment(NamedTuple):
    """The server's clock (UTC), and the number of messages in a stream at that time."""

    time: datetime
    messages: int


async def server_time(connection: Connection, stream: str) -> datetime:
    """Asks for the server's clock (UTC), which it compares with, whatever the clock of this machine says."""
    return (await moment(connection, stream)).time


async def moment(connection: Connection, stream: str) -> Moment:
    info = await _info(connection, stream, {})
    if info.ts is None:
        raise TopologyError(f"NATS at {connection.host} does not tell its time: it must be 2.12 or newer")
    assert info.state is not None
    return Moment(info.ts, info.state.messages)


async def subjects(connection: Connection, stream: str, pattern: str) -> dict[str, int]:
    """Lists the subjects that match a pattern, each with the number of its messages.

    The server sorts all that match for every 100,000 of them, so ask for a million in parts of their own.
    """
    found: dict[str, int] = {}
    while True:
        info = await _info(connection, stream, {"subjects_filter": pattern, "offset": len(found)})
        assert info.state is not None
        found |= info.state.subjects
        if not info.state.subjects or len(found) >= info.total:
            return found


async def subject_count(connection: Connection, stream: str) -> int:
    state = (await _info(connection, stream, {})).state
    assert state is not None
    return state.num_subjects


async def consumers(connection: Connection, stream: str) -> list[ConsumerInfo]:
    """Lists the consumers of a stream. Asked until the server answers, within `patience`: a busy server needs
    longer than the client library waits."""
    found: list[ConsumerInfo] = []

    async def page() -> list[ConsumerInfo]:
        try:
            return await connection.jetstream.consumers_info(stream, offset=len(found))
        except NotFoundError as error:
            raise TopologyError(
                f"there is no stream {stream}: declare the topology (`orchard up`)"
            ) from error
        except APIError as error:
            if error.err_code == UNSETTLED:
                raise
            raise TopologyError(
                f"the consumers of {stream} cannot be listed ({error.description}): allow this user to"
            ) from error

    while more := await PublishRetry(connection, to_read=True).until(f"CONSUMER.LIST.{stream}", page):
        found += more
    return found


async def _info(connection: Connection, stream: str, body: dict[str, Any]) -> _Info:
    info = await request(connection, f"STREAM.INFO.{stream}", body, _Info)
    if info.error is not None:
        raise TopologyError(
            f"the stream {stream} cannot be read ({info.error.description}): declare the topology"
        )
    return info


async def _get(connection: Connection, stream: str, body: dict[str, Any]) -> StoredMessage | None:
    reply = await request(connection, f"STREAM.MSG.GET.{stream}", body, MessageReply)
    if reply.message is not None:
        found = reply.message
        return StoredMessage(
            sequence=found.seq,
            subject=found.subject,
            nanoseconds=nanoseconds(found.time),
            headers=parse_headers(found.hdrs),
            data=found.data,
        )
    if reply.error is not None and reply.error.err_code == _NO_MESSAGE:
        return None
    description = reply.error.description if reply.error else "no message in the reply"
    raise TopologyError(
        f"the stream {stream} cannot be read ({description}): declare the topology (`orchard up`)"
    )


async def request(connection: Connection, api: str, body: dict[str, Any], form: type[T]) -> T:
    """Asks the JetStream API `api` (without `$JS.API.`) until it answers, within `patience`."""
    payload = msgspec.json.encode(body) if body else b""

    async def once() -> T:
        answer = await connection.ask(f"$JS.API.{api}", payload)
        if status_of(answer) == "503":
            raise NobodyListens("JetStream does not answer")
        problem = msgspec.json.decode(answer.data, type=_Problem).error
        if problem is not None and problem.err_code == UNSETTLED:
            raise Unavailable(problem.description)
        return msgspec.json.decode(answer.data, type=form)

    return await PublishRetry(connection, to_read=True).until(api, once)

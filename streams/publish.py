"""Publishes until the stream has confirmed: the same message with the same id, over any lost connection."""

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import NamedTuple, TypeVar

import msgspec
from nats.errors import Error as NatsError
from nats.js.errors import APIError

from orchard.schemas.positions import own_sequence, sequence_in
from orchard.streams.client import Frame
from orchard.streams.connection import Connection, ConnectionLost, Pending
from orchard.streams.errors import (
    LogFull,
    NatsUnreachable,
    NoSpace,
    QueueFull,
    StoreRefused,
    StreamsError,
    TopologyError,
    WrongSequence,
)
from orchard.streams.names import EXPECTED, MESSAGE_ID, stream_number, taken_by
from orchard.streams.records import ApiError, header_block
from orchard.streams.replies import status_of, within

T = TypeVar("T")

log = logging.getLogger(__name__)

ACK_TIMEOUT = 5.0
"""Seconds until a publish without an answer is repeated."""
NOBODY_GRACE = 15.0
"""Seconds in which a subject may have no listener, as after a restart; then its stream counts as missing."""
STALL_GRACE = 60.0
"""Seconds in which a connected server may leave a message unanswered, as with a full disk."""
_WARN_EVERY = 10.0
_CHUNK_MESSAGES = 1024
_CHUNK_BYTES = 16 * 1024 * 1024
_WRONG_SEQUENCE = frozenset({10071, 10164})
_STORE_FAILED = 10077
_NO_ROOM = frozenset({10023, 10028, 10047})
_LATELY = 60.0
_NOT_PERMITTED = re.compile(r'permissions violation for publish to "([^"]*)"', re.IGNORECASE)
_FURTHER_STREAM = re.compile(r"orchard(\.events-|_events_)[1-9]")
UNSETTLED = 10008
"""JetStream's error while the servers of a cluster elect a leader: worth another try."""


class OutgoingMessage(NamedTuple):
    """A message to be stored. `expected` is the last sequence the subject must have (compare-and-set), of an
    event over all streams. With an empty `id` repeats are not recognized."""

    subject: str
    payload: bytes
    id: str
    expected: int | None = None
    extra: Mapping[str, str] | None = None

    @property
    def headers(self) -> bytes:
        """The header block."""
        headers = {MESSAGE_ID: self.id} if self.id else {}
        if self.expected is not None:
            headers[EXPECTED] = str(own_sequence(self.expected))
        if self.extra:
            headers.update(self.extra)
        return header_block(headers)


class _Answer(msgspec.Struct):
    stream: str = ""
    seq: int = 0
    duplicate: bool = False
    error: ApiError | None = None


class PublishResult(NamedTuple):
    sequence: int = 0
    """Sequence in the stream, of an event that over all streams; for a duplicate that of the first message of
    this id."""
    duplicate: bool = False
    """Whether a message of this id was stored before."""
    resent: bool = False
    """Whether it was sent more than once here, so that the first message of its id may be this one."""
    refusal: StreamsError | None = None
    """Error for which the stream will never store it."""


class NobodyListens(StreamsError):
    """No stream takes the subject, which passes after a restart and stays when the stream is missing."""


class Unavailable(StreamsError):
    """The server says that it cannot store now: worth another try."""


class Full(Unavailable):
    """The disk or the log is full, and the caller waits for room."""


_DECODER = msgspec.json.Decoder(_Answer)


def result_in(answer: Frame) -> PublishResult:
    """Decodes the answer to a publish.

    Raises WrongSequence, QueueFull and StoreRefused for good, NobodyListens and Unavailable for another try.
    """
    if status_of(answer) == "503":
        raise NobodyListens("no stream takes this subject")
    try:
        decoded = _DECODER.decode(answer.data)
    except msgspec.DecodeError as error:
        raise StoreRefused(f"the answer to a publish is not from a stream: {answer.data[:200]!r}") from error
    if decoded.error is None:
        return PublishResult(decoded.seq, decoded.duplicate)
    raise _refusal(decoded.error, decoded.stream)


def _refusal(problem: ApiError, stream: str) -> StreamsError:
    said = problem.description
    if problem.err_code in _WRONG_SEQUENCE:
        return WrongSequence(said)
    if problem.err_code == _STORE_FAILED and said.startswith("maximum"):
        if stream_number(stream) is not None:
            return LogFull(
                f"the event log is full ({said}) and refuses events rather than drop old ones: raise "
                "nats.event_max_bytes, or make room with `orchard log archive`"
            )
        return QueueFull(f"the stream is full ({said}): wait until requests are done, or raise its limit")
    if problem.err_code in _NO_ROOM:
        return NoSpace(
            f"the server has no storage left ({said}): free disk space, or raise its JetStream limits"
        )
    if problem.code == 503:
        return Unavailable(said)
    return StoreRefused(f"the stream refused the message ({said}, error {problem.err_code})")


async def store(connection: Connection, message: OutgoingMessage) -> int:
    """Publishes one message until the stream confirms it; returns its sequence.

    Besides the refusals of `result_in` raises MessageTooLarge before anything is sent, TopologyError when
    nobody takes the subject for NOBODY_GRACE, StoreRefused when the server is there and silent for
    STALL_GRACE, NatsUnreachable when `patience` ends.
    """
    headers = message.headers
    connection.check_size(message.subject, message.payload, headers)

    async def once() -> int:
        sent = await connection.send(message.subject, message.payload, headers)
        try:
            return _result(connection, message, await within(sent.future, ACK_TIMEOUT)).sequence
        finally:
            connection.forget(sent)

    return await PublishRetry(connection).until(message.subject, once)


async def store_all(connection: Connection, messages: list[OutgoingMessage]) -> list[int]:
    """Publishes messages in order, pipelined, until all are confirmed; returns their sequences.

    Raises as `store` does. After an error some messages may be stored; publishing the same again stores none
    of them twice within the stream's dedupe window.
    """
    results = await _publish(connection, messages, stop_at_refusal=True)
    return [result.sequence for result in results]


async def results_of(connection: Connection, messages: list[OutgoingMessage]) -> list[PublishResult]:
    """Publishes messages, pipelined, until each is stored or refused; raises as `store` for lost servers."""
    return await _publish(connection, messages, stop_at_refusal=False)


async def _publish(
    connection: Connection, messages: list[OutgoingMessage], *, stop_at_refusal: bool
) -> list[PublishResult]:
    headers = [message.headers for message in messages]
    for message, block in zip(messages, headers, strict=True):
        connection.check_size(message.subject, message.payload, block)
    results = [PublishResult()] * len(messages)
    retry = PublishRetry(connection)
    todo = list(range(len(messages)))
    while todo:
        chunk = _chunk(messages, todo)
        unanswered = await _publish_chunk(connection, messages, headers, chunk, results, retry)
        if stop_at_refusal:
            for index in chunk:
                if (refusal := results[index].refusal) is not None:
                    raise refusal
        todo = unanswered + todo[len(chunk) :]
        if unanswered:
            await retry.pause(messages[unanswered[0]].subject)
        else:
            retry = PublishRetry(connection)
    return results


def not_permitted(connection: Connection, name: str, what: str) -> StoreRefused | None:
    """Says that the user may not do `what`, if the server's last error, lately, is that it may not publish on
    this subject, or on one with this name in it."""
    if asyncio.get_running_loop().time() - connection.last_error_at > _LATELY:
        return None  # the rights may have been renewed since, and the server tells it anew if not
    refused = _NOT_PERMITTED.search(str(connection.last_error))
    if refused is None or not re.search(rf"(?<!\w){re.escape(name.lower())}(?!\w)", refused[1]):
        return None
    remedy = "set nats.user to one whose role may"
    if _FURTHER_STREAM.search(refused[1]):
        remedy = (
            "the server's accounts have no rights for this event stream; renew them by `EVENT_STREAMS=K sh "
            "infra/hosts/make-files.sh ...` and a restart of orchard-nats, on Kubernetes by `helm upgrade` "
            "with nats.eventStreams=K"
        )
    return StoreRefused(f"the NATS user {connection.settings.user} may not {what}: {remedy}")


class PublishRetry:
    """Decides when a message, or a question, is tried again and when to give up; `problem` is the last
    obstacle."""

    def __init__(self, connection: Connection, *, to_read: bool = False) -> None:
        self._connection = connection
        self._to_read = to_read
        self._clock = asyncio.get_running_loop().time
        self._started = self._clock()
        self._kind: type[StreamsError] | None = None
        self._since = self._started
        self._warned = self._started
        self._wait = 0.05
        self.problem: StreamsError | None = None

    @property
    def left(self) -> float:
        return self._connection.settings.patience - (self._clock() - self._started)

    async def until(self, subject: str, once: Callable[[], Awaitable[T]]) -> T:
        """Repeats `once` until the server answers; raises as `pause` does."""
        while True:
            try:
                return await once()
            except (ConnectionLost, NobodyListens, Unavailable) as error:
                self.problem = error
            except APIError as error:
                if error.err_code != UNSETTLED:
                    raise
                self.problem = Unavailable(str(error.description))
            except TimeoutError:
                self.problem = Unavailable("no answer")
            except (NatsError, OSError) as error:
                self.problem = ConnectionLost(str(error))
            await self.pause(subject)

    async def pause(self, subject: str) -> None:
        """Waits before the next try, longer each time; raises when another try is pointless."""
        now = self._clock()
        kind = None if self.problem is None else type(self.problem)
        if kind is not self._kind:
            self._kind, self._since = kind, now
        host = self._connection.host
        if self._kind is NobodyListens and now - self._since > NOBODY_GRACE:
            raise TopologyError(
                f"no stream on {host} takes {subject}: declare the topology (`orchard up`), and check that "
                "JetStream is enabled"
            )
        refused = not_permitted(self._connection, subject, f"publish on {subject}")
        if refused is not None and self._kind is Unavailable:
            raise refused
        patient = self._connection.waits_when_full
        if self._kind is Unavailable and not patient and now - self._since > STALL_GRACE:
            raise StoreRefused(
                f"NATS at {host} is connected but has not confirmed {subject} in "
                f"{STALL_GRACE:.0f} s ({self.problem}): look for a full disk, then restart the server"
            )
        if self.left <= 0 and self._kind is Full:
            raise StoreRefused(str(self.problem))
        if self.left <= 0:
            raise NatsUnreachable(
                f"NATS at {host} has not confirmed a message for {subject} in "
                f"{self._connection.settings.patience:.0f} s ({self.problem}): check the server"
            )
        if now - self._warned > _WARN_EVERY:
            self._warned = now
            log.warning("still trying to reach %s on %s: %s", subject, host, self.problem)
        if self._kind is ConnectionLost:
            await self._connection.ready(self.left, to_read=self._to_read)
        await asyncio.sleep(min(self._wait, max(self.left, 0.0)))
        self._wait = min(self._wait * 2, 2.0)


def _chunk(messages: list[OutgoingMessage], todo: list[int]) -> list[int]:
    """Returns the first of `todo` that may be sent at once."""
    size = 0
    for count, index in enumerate(todo[:_CHUNK_MESSAGES]):
        size += len(messages[index].payload)
        if size > _CHUNK_BYTES and count:
            return todo[:count]
    return todo[:_CHUNK_MESSAGES]


async def _publish_chunk(
    connection: Connection,
    messages: list[OutgoingMessage],
    headers: list[bytes],
    chunk: list[int],
    results: list[PublishResult],
    retry: PublishRetry,
) -> list[int]:
    """Publishes once and fills in `results`; returns the indexes without an answer or worth another try."""
    pending: list[Pending] = []
    unanswered: list[int] = []
    try:
        for index in chunk:
            message = messages[index]
            pending.append(await connection.send(message.subject, message.payload, headers[index]))
    except ConnectionLost as error:
        retry.problem = error
        unanswered = chunk[len(pending) :]
    await _answered([one.future for one in pending])
    again: list[int] = []
    for index, one in zip(chunk, pending, strict=False):
        resent = results[index].resent
        try:
            result = _result(connection, messages[index], one.future.result())
            results[index] = result._replace(resent=True) if resent else result
        except (ConnectionLost, NobodyListens, Unavailable, TimeoutError) as error:
            connection.forget(one)
            retry.problem = error if isinstance(error, StreamsError) else Unavailable("no answer")
            again.append(index)
            results[index] = PublishResult(resent=True)
        except StreamsError as refusal:
            results[index] = PublishResult(resent=resent, refusal=refusal)
    return again + unanswered


def _result(connection: Connection, message: OutgoingMessage, answer: Frame) -> PublishResult:
    """Decodes the answer to a message; raises as `result_in`, and Full where the publisher waits for room."""
    try:
        found = result_in(answer)
    except (LogFull, NoSpace) as refusal:
        if connection.waits_when_full:
            raise Full(str(refusal)) from refusal
        raise
    stream = taken_by(message.subject)
    if stream is None:
        return found
    found = found._replace(sequence=sequence_in(stream, found.sequence))
    if not found.duplicate:  # of which the message that came first may have another body
        connection.saw(found.sequence, message.payload)
    return found


async def _answered(futures: list[asyncio.Future[Frame]]) -> None:
    """Waits until all are answered, for ACK_TIMEOUT, after which they raise TimeoutError. Answers come in
    order, so the last one is waited for."""
    clock = asyncio.get_running_loop().time
    deadline = clock() + ACK_TIMEOUT
    for future in reversed(futures):
        if not future.done():
            with suppress(ConnectionLost, TimeoutError):
                await within(future, max(deadline - clock(), 0.0))

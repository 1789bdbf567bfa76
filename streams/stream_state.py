"""Facts about the event stream that the guard compares: what it holds, and what it must hold."""

from typing import NamedTuple

import msgspec

from orchard.schemas.events import MalformedEvent, decode_event
from orchard.streams.names import EVENT_STREAMS, EVENT_SUBJECTS, stored_subject, stream_name
from orchard.streams.records import whole_number

REMEDY = "run `orchard store restore-stream` (docs/runbooks/lost-stream-data.md)"


class ExpectedStream(NamedTuple):
    """What stream 0 of the events must hold, with what the others must."""

    watermark: int = 0
    """Sequence in the stream up to which the tables hold every event."""
    sealed: int = 0
    """Number of events that archiving was allowed to remove from the stream."""
    last_id: str | None = None
    """Id of the event at the watermark, if it is known."""
    others: tuple["ExpectedStream", ...] = ()
    """The same of streams 1, 2, ..., as far as the tables know them."""

    def of(self, stream: int) -> "ExpectedStream":
        return self if not stream else self.others[stream - 1] if stream <= len(self.others) else _NOTHING


_NOTHING = ExpectedStream()


class StreamState(msgspec.Struct, frozen=True, kw_only=True):
    """Content of the stream: sequences up to `last`, `messages` of them still there, in `bytes`."""

    first: int = msgspec.field(name="first_seq")
    last: int = msgspec.field(name="last_seq")
    messages: int
    bytes: int

    @property
    def missing(self) -> int:
        """Number of sequences up to `last` without a message."""
        return self.last - self.messages


class StreamRules(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the stream that decide what happens to an event, and its size limit."""

    subjects: tuple[str, ...] = (EVENT_SUBJECTS,)
    subject_transform: dict[str, str] | None = None
    no_ack: bool = False
    max_msg_size: int = -1

    discard: str = "old"
    max_msgs: int = -1
    max_bytes: int = -1
    max_age: int = 0
    max_msgs_per_subject: int = -1
    metadata: dict[str, str] = {}

    @property
    def event_streams(self) -> int:
        """Number of streams of events, according to stream 0."""
        return whole_number(self.metadata.get(EVENT_STREAMS, "")) or 1

    def altered(self, stream: int) -> bool:
        """Whether the server may drop an event by itself, store it elsewhere or refuse it although there is
        room: no version of Orchard has set these rules."""
        limits = (self.max_age, self.max_msgs, self.max_msgs_per_subject, self.max_msg_size)
        drops = self.max_bytes > 0 and self.discard == "old"
        own = stored_subject(EVENT_SUBJECTS, stream)
        elsewhere = self.subject_transform is not None or own not in self.subjects
        return drops or elsewhere or self.no_ack or any(limit > 0 for limit in limits)


class StreamInfo(msgspec.Struct):
    """The server's answer about the stream; `state` is None where there is no such stream."""

    config: StreamRules = StreamRules()
    state: StreamState | None = None


class _AccountLimits(msgspec.Struct, frozen=True):
    max_storage: int = -1


class AccountUsage(msgspec.Struct):
    """Bytes that the NATS account stores, and may store (-1: no limit)."""

    storage: int = 0
    limits: _AccountLimits = _AccountLimits()


def shorter(last: int, watermark: int, newest: int) -> str:
    """Says how a stream that ends at `last` lacks its end; empty when it reaches what the tables hold and the
    newest event that the process has seen."""
    if last < watermark:
        return f"ends at {last} and the tables hold events up to {watermark}"
    if last < newest:
        return f"ends at {last}, but event {newest} was confirmed"
    return ""


def called(stream: int) -> str:
    return f"the stream {stream_name(stream)}" if stream else "the stream of events"


def sentence(found: str, stream: int = 0) -> str:
    return (
        f"{called(stream)} {found}: the NATS server has lost what it had acknowledged, so nothing is "
        f"claimed or published; {REMEDY}"
    )


def empty(watermark: int, stream: int = 0) -> str:
    """Says why a stream is empty although the tables have events: there are two possible reasons."""
    found = "the stream of events of this NATS server is empty"
    if stream:
        found = found.replace(called(0), called(stream))
    return (
        f"{found} and the tables hold events up to {watermark}: "
        "the server is not this store's (start with the --state or --nats that it was written with), or it "
        f"has lost everything ({REMEDY}); nothing is claimed or published"
    )


def id_of(payload: bytes) -> str | None:
    """Decodes an event's id; None where the bytes are no event."""
    try:
        return decode_event(payload).id
    except MalformedEvent:
        return None

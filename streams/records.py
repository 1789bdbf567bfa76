from collections.abc import Mapping
from datetime import UTC, datetime
from typing import NamedTuple

import msgspec

from orchard.schemas.events import Event, MalformedEvent, decode_event
from orchard.schemas.positions import stream_of
from orchard.schemas.subjects import is_misplaced

_NO_BREAKS = str.maketrans("\r\n", "  ")


DELIVERED = b"$JS.ACK."
"""Prefix of the reply subject of a stream's message: whatever headers its publisher gave it, it is no
status."""


class ApiError(msgspec.Struct):
    code: int = 0
    err_code: int = 0
    description: str = ""


class StoredEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A message of an event stream. `event` is None when its bytes are no envelope."""

    sequence: int
    """Sequence over all streams (`orchard.schemas.positions`)."""
    subject: str
    time: datetime
    """Time when the stream stored it, in UTC."""
    event: Event | None
    raw: bytes

    @property
    def fact(self) -> Event | None:
        """The event, unless it is an outcome beside its rollout's `done` subject or stream."""
        event = self.event
        if event is None or is_misplaced(event, self.subject, stream_of(self.sequence)):
            return None
        return event


def stored_event(sequence: int, subject: str, time: datetime, raw: bytes) -> StoredEvent:
    """Decodes the envelope if it is one; an event of an unknown type is one."""
    try:
        event = decode_event(raw)
    except MalformedEvent:
        event = None
    return StoredEvent(sequence=sequence, subject=subject, time=time, event=event, raw=raw)


class StoredMessage(msgspec.Struct, frozen=True, kw_only=True):
    sequence: int
    subject: str
    nanoseconds: int
    """Time when the stream stored it, in nanoseconds since the epoch."""
    headers: dict[str, str]
    data: bytes

    @property
    def time(self) -> datetime:
        """Time when the stream stored it, in UTC."""
        return from_nanoseconds(self.nanoseconds)

    @property
    def as_event(self) -> StoredEvent:
        return stored_event(self.sequence, self.subject, self.time, self.data)


class Delivery(NamedTuple):
    """The contents of a delivery's acknowledgement subject; `time` in nanoseconds since the epoch."""

    sequence: int
    """Sequence of the message in the stream."""
    consumer_sequence: int
    deliveries: int
    time: int
    waiting: int
    """Number of messages that match and come after this one."""

    @classmethod
    def of(cls, reply: bytes) -> "Delivery":
        """Parses
        `$JS.ACK.[domain.account.]stream.consumer.deliveries.sequence.consumer_sequence.time.waiting[.token]`;
        raises ValueError for another subject."""
        tokens = reply.split(b".")
        if len(tokens) < 9 or not reply.startswith(DELIVERED):
            raise ValueError(f"{reply!r} is not the acknowledgement subject of a delivery")
        first = 4 if len(tokens) == 9 else 6
        deliveries, sequence, consumer_sequence, time, waiting = map(int, tokens[first : first + 5])
        return cls(sequence, consumer_sequence, deliveries, time, waiting)


def parse_headers(block: bytes) -> dict[str, str]:
    headers = {}
    for line in block.split(b"\r\n")[1:]:
        name, colon, value = line.partition(b":")
        if colon:
            headers[name.decode("ascii", "replace").strip()] = value.decode("utf-8", "replace").strip()
    return headers


def header_block(headers: Mapping[str, str]) -> bytes:
    """Makes the header block of a message, empty without headers. Line breaks in a value become blanks."""
    lines = [f"{name}: {value.strip().translate(_NO_BREAKS)}\r\n" for name, value in headers.items()]
    return f"NATS/1.0\r\n{''.join(lines)}\r\n".encode() if lines else b""


def whole_number(text: str) -> int | None:
    """Parses a header or a token of a subject, which anybody may have written; None unless it is a number of
    at most 19 digits: so many nanoseconds since the epoch are still a time."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None


def nanoseconds(time: str) -> int:
    """Parses an RFC 3339 time in UTC with up to nine decimals, as NATS writes it, to nanoseconds since the
    epoch."""
    whole, _, fraction = time.removesuffix("Z").partition(".")
    seconds = int(datetime.fromisoformat(f"{whole}+00:00").timestamp())
    return seconds * 1_000_000_000 + int(fraction.ljust(9, "0")[:9])


def from_nanoseconds(nanoseconds: int) -> datetime:
    """Converts to a time in UTC; the stream's clock has nanoseconds, of which microseconds are kept."""
    return datetime.fromtimestamp(nanoseconds // 1000 / 1e6, UTC)

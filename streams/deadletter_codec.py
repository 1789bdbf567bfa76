"""The form of a dead letter: the request's bytes, with the evidence in headers."""

import hashlib
from datetime import datetime

import msgspec

from orchard.schemas.identity import digest
from orchard.streams import names
from orchard.streams.publish import OutgoingMessage
from orchard.streams.records import StoredMessage, whole_number

_STREAM = "Orchard-Stream"
_SEQUENCE = "Orchard-Sequence"
_SUBJECT = "Orchard-Subject"
_CONSUMER = "Orchard-Consumer"
_REASON = "Orchard-Reason"
_DELIVERIES = "Orchard-Deliveries"
_REASON_LIMIT = 2000
"""Maximum length of a reason, and of a message id, in characters."""
_EVIDENCE_BYTES = 32 * 1024
"""Bytes that are kept free for the headers: a subject has 4 KiB at most."""


class DeadRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request that leaves the queue without an outcome, and the reason."""

    stream: str = names.WORK
    request_sequence: int
    """Sequence of the request in `stream`."""
    subject: str
    """Subject that the request was published on."""
    consumer: str
    reason: str
    """Why the queue gave it up: `max_deliver`, `terminated: <why>` or `swept`."""
    deliveries: int
    message_id: str
    body: bytes

    @property
    def name(self) -> str:
        """Name that no other dead request has. Sequences do not tell requests apart, because a work stream
        that lost its tail uses them again; they count only without a message id, which no version has
        published."""
        content = hashlib.sha256(self.body).hexdigest()
        return digest([self.subject, self.message_id or self.request_sequence, content])


class DeadLetter(DeadRequest, frozen=True, kw_only=True):
    """A dead request in the dead-letter stream."""

    sequence: int
    """Sequence in the dead-letter stream, which `show` and `requeue` take."""
    time: datetime


def letter(dead: DeadRequest, limit: int) -> OutgoingMessage:
    """Makes the message that records a dead request: one, however often it is sent.

    `limit` is the server's for a message, in bytes. A body that leaves no room for the evidence is cut, and
    the reason says so: a request that cannot be buried would be in the way for ever.
    """
    room, size = limit - _EVIDENCE_BYTES, len(dead.body)
    cut = f" (of its {size} bytes the first {room} are kept)" if size > room else ""
    return OutgoingMessage(
        subject=names.dead_subject(dead.stream, dead.name),
        payload=dead.body[:room],
        id=f"dead-{dead.name}",
        extra={
            _STREAM: dead.stream,
            _SEQUENCE: str(dead.request_sequence),
            _SUBJECT: dead.subject,
            _CONSUMER: dead.consumer,
            _REASON: short_reason(dead.reason) + cut,
            _DELIVERIES: str(dead.deliveries),
            names.ORIGINAL_ID: dead.message_id[:_REASON_LIMIT],
        },
    )


def short_reason(reason: str) -> str:
    """Makes a reason fit a header: one line of ASCII, cut where it is very long."""
    return " ".join(reason.encode("ascii", "backslashreplace").decode().split())[:_REASON_LIMIT]


def read_letter(message: StoredMessage) -> DeadLetter:
    headers = message.headers
    return DeadLetter(
        sequence=message.sequence,
        time=message.time,
        stream=headers.get(_STREAM, names.WORK),
        request_sequence=whole_number(headers.get(_SEQUENCE, "")) or 0,
        subject=headers.get(_SUBJECT, ""),
        consumer=headers.get(_CONSUMER, ""),
        reason=headers.get(_REASON, ""),
        deliveries=whole_number(headers.get(_DELIVERIES, "")) or 0,
        message_id=headers.get(names.ORIGINAL_ID, ""),
        body=message.data,
    )

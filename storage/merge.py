"""Merges a diverged stream into a restored one: pure decisions over two histories of one log.

A stream that lost its end gives the lost sequences to new events. When the lost ones come back from the
tables, the new ones follow them, in their order, with new sequences. What the tables accepted stands: a
second outcome of a rollout, a second use of an attempt's number with all its events, and a second decision
about a prompt are kept as `event.displaced`.
"""

import base64
import hashlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec

from orchard.schemas.events import (
    DONE_TYPES,
    STARTED_TYPE,
    TERMINAL_TYPES,
    AttemptSuperseded,
    Event,
    EventDisplaced,
    EventLost,
    MalformedEvent,
    RolloutReopened,
    decode_event,
    encode_event,
    make_event,
    payload,
)
from orchard.schemas.subjects import EVENTS_PREFIX, done_subject, event_subject

SOURCE = "orchard/restore"
_CAMPAIGN = "orchard"
_DECIDED = f"{EVENTS_PREFIX}.decided."


class LoggedMessage(NamedTuple):
    """A message with its sequence: what both the stream and the tables have of it."""

    sequence: int
    subject: str
    time: int
    """Nanoseconds since the epoch, when the stream first stored it."""
    raw: bytes


class DoneEvent(NamedTuple):
    """The newest event on a rollout's `done` subject."""

    type: str
    attempt: int | None
    sequence: int


class Merge:
    """Places the events of a stream that diverged, one after the other.

    `outcomes` are the newest done events of the tables by rollout; `lost` the tables' events that the stream
    no longer has; `start` the first free sequence.
    """

    def __init__(self, outcomes: dict[str, DoneEvent], lost: Iterable[LoggedMessage], start: int) -> None:
        self._outcomes = dict(outcomes)
        self._next = start
        self._known: set[bytes] = set()
        self._attempts: set[tuple[str, int]] = set()
        self._decided: set[str] = set()
        self._collided: set[tuple[str, int]] = set()
        self._moved: dict[int, int] = {}
        """New sequence by old one."""
        for logged in lost:
            self._known.add(_fingerprint(logged))
            event = _event(logged)
            if event is not None and event.type == STARTED_TYPE and event.rollout_id and event.attempt:
                self._attempts.add((event.rollout_id, event.attempt))
            if logged.subject.startswith(_DECIDED):
                self._decided.add(logged.subject)

    def place(self, logged: LoggedMessage) -> Iterator[LoggedMessage]:
        """Yield the messages that replace one of the diverged stream; none when the tables have it
        already."""
        if _fingerprint(logged) in self._known:
            return
        event = _event(logged)
        reason = "" if event is None else self._contradiction(logged, event)
        if event is not None and reason:
            yield self._displaced(logged, event, reason)
            if event.type in TERMINAL_TYPES and (event.rollout_id or "") in self._outcomes:
                yield self._superseded(logged, event)
            return
        self._moved[logged.sequence] = self._next
        if event is None or logged.subject != done_subject(event.rollout_id or ""):
            yield self._numbered(logged)
            return
        self._outcomes[event.rollout_id or ""] = DoneEvent(event.type, event.attempt, self._next)
        renumbered = self._renumbered(logged, event)
        yield self._numbered(renumbered or logged)
        if renumbered:
            yield self._displaced(logged, event, "sequence")

    def _contradiction(self, logged: LoggedMessage, event: Event) -> str:
        rollout, attempt = event.rollout_id or "", event.attempt or 0
        if logged.subject == done_subject(rollout) and event.type in DONE_TYPES:
            if (rollout, attempt) in self._collided:
                return "attempt"
            known = self._outcomes.get(rollout)
            fits = known is None if event.type in TERMINAL_TYPES else False
            if known is not None:
                reopens = event.type not in TERMINAL_TYPES
                fits = known.type == ("rollout.aborted" if reopens else "rollout.reopened")
            return "" if fits else "outcome"
        if event.type == STARTED_TYPE and (rollout, attempt) in self._attempts:
            self._collided.add((rollout, attempt))
        if (rollout, attempt) in self._collided:
            return "attempt"
        if logged.subject.startswith(_DECIDED):
            if logged.subject in self._decided:
                return "decision"
            self._decided.add(logged.subject)
        return ""

    def _renumbered(self, logged: LoggedMessage, event: Event) -> LoggedMessage | None:
        """Return a reopening with the new sequence of the event that it supersedes; None if that did not
        move."""
        if event.type in TERMINAL_TYPES:
            return None
        try:
            data = payload(event)
        except MalformedEvent:
            return None
        if not isinstance(data, RolloutReopened) or data.superseded_sequence not in self._moved:
            return None
        moved = msgspec.structs.replace(data, superseded_sequence=self._moved[data.superseded_sequence])
        renumbered = msgspec.structs.replace(
            event, id=f"{event.id}.restored", data=msgspec.Raw(msgspec.json.encode(moved))
        )
        return logged._replace(raw=encode_event(renumbered))

    def _displaced(self, logged: LoggedMessage, event: Event, reason: str) -> LoggedMessage:
        try:
            text = logged.raw.decode()
        except UnicodeDecodeError:
            text = base64.b64encode(logged.raw).decode()
        data = EventDisplaced(subject=logged.subject, sequence=logged.sequence, reason=reason, raw=text)
        name = f"displaced-{logged.sequence}-{hashlib.sha256(logged.raw).hexdigest()[:16]}"
        return self._made(data, name, logged, event)

    def _superseded(self, logged: LoggedMessage, event: Event) -> LoggedMessage:
        """Return what the worker itself publishes when its outcome is refused."""
        known = self._outcomes[event.rollout_id or ""]
        data = AttemptSuperseded(
            accepted_attempt=known.attempt, accepted_sequence=known.sequence, refused_type=event.type
        )
        return self._made(data, f"{event.id}.superseded", logged, event, event.attempt)

    def _made(
        self, data: msgspec.Struct, name: str, logged: LoggedMessage, about: Event, attempt: int | None = None
    ) -> LoggedMessage:
        """Make a message about an event of the diverged stream, with its time."""
        event = make_event(
            data,
            id=name,
            source=SOURCE,
            campaign=about.campaign,
            rollout_id=about.rollout_id,
            attempt=attempt,
            time=about.time,
        )
        return self._numbered(LoggedMessage(0, event_subject(event), logged.time, encode_event(event)))

    def _numbered(self, logged: LoggedMessage) -> LoggedMessage:
        placed = logged._replace(sequence=self._next)
        self._next += 1
        return placed


def filler(sequence: int, time: int) -> LoggedMessage:
    """Return a placeholder for an event that no longer exists anywhere."""
    data = EventLost(reason="neither the stream nor the tables had it when the stream was restored")
    event = make_event(data, id=f"lost-{sequence}", source=SOURCE, campaign=_CAMPAIGN)
    return LoggedMessage(sequence, event_subject(event), time, encode_event(event))


def _fingerprint(logged: LoggedMessage) -> bytes:
    digest = hashlib.sha256(logged.subject.encode() + b"\n")
    digest.update(logged.raw)
    return digest.digest()


def _event(logged: LoggedMessage) -> Event | None:
    try:
        return decode_event(logged.raw)
    except MalformedEvent:
        return None

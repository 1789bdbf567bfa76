"""Names of streams, consumers and subjects; docs/schemas/asyncapi.json has what is published where."""

import re

from orchard.schemas.replay_pointers import pointer_subject
from orchard.schemas.subjects import EVENTS_PREFIX

WORK = "ORCHARD_WORK"
"""Stream of requests that can be claimed now."""
LATER = "ORCHARD_LATER"
"""Stream of requests that wait for their time. Apart from WORK because the server's message schedules and
discard=new exclude each other (error 10052), and a schedule's target must be in its own stream (10190)."""
EVENTS = "ORCHARD_EVENTS"
"""Stream 0 of events, and the beginning of the others' names (`streams.event_streams`)."""
DEAD = "ORCHARD_DEAD"
ADVISORIES = "ORCHARD_ADVISORIES"
"""Stream of the server's notices about requests past max_deliver or terminated, kept until handled."""
TRAILS = "ORCHARD_TRAILS"
"""Stream of the newest replay pointer of each rollout that runs, or ended without an outcome."""
CAMPAIGNS = "ORCHARD_CAMPAIGNS"
"""Key-value bucket: one key a campaign."""
CAMPAIGNS_STREAM = f"KV_{CAMPAIGNS}"
CAMPAIGNS_PREFIX = f"$KV.{CAMPAIGNS}."

ENDPOINTS = "ORCHARD_ENDPOINTS"
"""Key-value bucket: which model endpoints rest, and which refuse a campaign."""
ENDPOINTS_STREAM = f"KV_{ENDPOINTS}"
ENDPOINTS_PREFIX = f"$KV.{ENDPOINTS}."

HEALTH = "ORCHARD_HEALTH"
"""Stream of the newest report of each process about itself, in memory."""
HEALTH_AGE = 3600.0
"""Seconds that the report of a silent process is kept."""
GUARD = "ORCHARD_GUARD"
"""Stream of the last damage of EVENTS that any process has found (`streams.guard_messages`)."""
CHECKED = "ORCHARD_CHECKED"
"""Stream that says whether EVENTS was checked since the server was started, in memory."""

WORK_SUBJECTS = "orchard.work.>"
LATER_SUBJECTS = "orchard.later.>"
DUE_SUBJECTS = "orchard.due.>"
DEAD_SUBJECTS = "orchard.dead.>"
HEALTH_SUBJECTS = "orchard.health.>"
EVENT_SUBJECTS = f"{EVENTS_PREFIX}.>"
DAMAGED = "orchard.guard.damaged"
CHECKED_SUBJECT = "orchard.guard.checked"
TRAIL_SUBJECTS = pointer_subject(">")
MAX_DELIVERIES = f"$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.{WORK}.*"
TERMINATED = f"$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED.{WORK}.*"

RESTORED = "orchard-restored"
"""Key of EVENTS' metadata: the mark of the last restore of any stream of events."""
EVENT_STREAMS = "orchard-event-streams"
"""Key of EVENTS' metadata: number of streams of events; without it there is one."""

DUE_CONSUMER = "due"
ADVISORY_CONSUMER = "dead-letters"

MESSAGE_ID = "Nats-Msg-Id"
EXPECTED = "Nats-Expected-Last-Subject-Sequence"
TTL = "Nats-TTL"
EXPECTED_LAST = "Nats-Expected-Last-Sequence"
STORED_AT = "Orchard-Stored-At"
"""Header with the time when the stream first stored a message that was restored later, in nanoseconds since
the epoch."""
SWEPT = "Orchard-Swept"
"""Header with the number of times that a request was queued again because the queue held it and did not
deliver."""
SCHEDULE = "Nats-Schedule"
SCHEDULE_TARGET = "Nats-Schedule-Target"
ORIGINAL_ID = "Orchard-Message-Id"
"""Header with the request's own id, where the server strips or replaces `Nats-Msg-Id`."""
AWAITS = "Orchard-Awaits"
"""Header with the key of the endpoint whose rest a delayed request waits for."""


_STORED = re.compile(rf"{re.escape(EVENTS_PREFIX)}(?:-([0-9]+))?\.")


def stream_name(number: int) -> str:
    """Name of a stream of events."""
    return f"{EVENTS}_{number}" if number else EVENTS


def stream_number(name: str) -> int | None:
    """Number of a stream of events; None for another stream."""
    if name == EVENTS:
        return 0
    head, _, number = name.rpartition("_")
    return int(number) if head == EVENTS and number.isdecimal() else None


def stored_subject(subject: str, stream: int) -> str:
    """The subject, or pattern, that a stream has for what readers know as `subject`: streams share none."""
    return f"{EVENTS_PREFIX}-{stream}{subject.removeprefix(EVENTS_PREFIX)}" if stream else subject


def known_subject(stored: str, stream: int) -> str:
    """The opposite of `stored_subject`."""
    return EVENTS_PREFIX + stored.removeprefix(f"{EVENTS_PREFIX}-{stream}") if stream else stored


def taken_by(stored: str) -> int | None:
    """Number of the stream of events that takes a subject; None where none does."""
    found = _STORED.match(stored)
    return int(found[1] or 0) if found else None


def dead_subject(stream: str, name: str) -> str:
    """Subject of the dead letter of one request: its own, so that it is found by name."""
    return f"orchard.dead.{stream}.{name}"

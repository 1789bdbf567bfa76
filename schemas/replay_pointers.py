"""Pointers to the messages of a running attempt in the log, for the attempt that follows its death."""

import msgspec

SEGMENT_EVENTS = 32
"""Number of events in a sealed segment."""


class ReplayPointer(msgspec.Struct, frozen=True, kw_only=True):
    """The newest pointer of a rollout. It is kept beside the log and not in it: losing it costs model calls
    only."""

    attempt: int
    replay_key: str
    """Digest of task, model, harness and limits: only an attempt with the same key may replay this one."""
    events: tuple[int, ...]
    """Sequences in the event stream of the attempt's messages and model calls, up to the newest answer."""
    replays: int = 0
    """Number of attempts that began to replay this record and are not known to have come past it."""
    died_at: str = ""
    """Newest message of the attempt when its sandbox ended during a command; empty if it did not."""
    segments: int = 0
    """Number of sealed segments with the events before these, as the pointer is stored."""


class ReplaySegment(msgspec.Struct, frozen=True, kw_only=True):
    """SEGMENT_EVENTS consecutive events of an attempt, written once. A pointer that is written whole after
    each answer costs the square of its length."""

    events: tuple[int, ...]


def pointer_subject(rollout_id: str) -> str:
    return f"orchard.trails.{rollout_id}"


def segment_subject(rollout_id: str, attempt: int, number: int) -> str:
    """Subject of a sealed segment; `number` counts from 0."""
    return f"orchard.trails.{rollout_id}.{attempt}.{number}"

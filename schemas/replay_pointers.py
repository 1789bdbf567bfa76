"""Trails: where in the log the messages of a running attempt are, for the attempt that follows its death."""

import msgspec

SEGMENT_EVENTS = 32
"""Events of a sealed segment of a trail."""


class ReplayPointer(msgspec.Struct, frozen=True, kw_only=True):
    """The newest one of a rollout is kept, beside the log and not in it: losing it costs model calls only."""

    attempt: int
    replay_key: str
    """Digest of task, model, harness and limits: only an attempt with the same key may replay this one."""
    events: tuple[int, ...]
    """Sequences in the event stream of the attempt's messages and model calls, up to the newest answer."""
    replays: int = 0
    """Attempts that began to replay this record and are not known to have come past it."""
    died_at: str = ""
    """Newest message of the attempt when its sandbox ended under a command; empty when it did not."""
    segments: int = 0
    """Sealed segments with the events before these, as the trail is stored."""


class ReplaySegment(msgspec.Struct, frozen=True, kw_only=True):
    """SEGMENT consecutive events of an attempt, written once. Trails that are written whole after each answer
    cost the square of their length."""

    events: tuple[int, ...]


def pointer_subject(rollout_id: str) -> str:
    """The subject of a rollout's trail."""
    return f"orchard.trails.{rollout_id}"


def segment_subject(rollout_id: str, attempt: int, number: int) -> str:
    """The subject of a sealed segment, counted from 0."""
    return f"orchard.trails.{rollout_id}.{attempt}.{number}"

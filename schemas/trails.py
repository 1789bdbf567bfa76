"""Trails: where in the log the messages of a running attempt are, for the attempt that follows its death."""

import msgspec


class Trail(msgspec.Struct, frozen=True, kw_only=True):
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


def trail_subject(rollout_id: str) -> str:
    """The subject of a rollout's trail."""
    return f"orchard.trails.{rollout_id}"

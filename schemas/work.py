"""Requests for work that is no rollout: tasks to be proven, rollouts to be judged."""

import msgspec

from orchard.schemas.blobs import BlobRef
from orchard.schemas.campaigns import ModelSpec, TaskRef


class ProveRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One task to be proven or rejected, as it travels on the prove queue."""

    task: TaskRef
    task_hash: str
    runs: int = 3
    """Times that the known solution is graded, and as often nothing."""
    fence: int = 0
    """Sequence of the answer to the request before; 0 for none. Only what is stored over it is accepted."""
    failures: int = 0
    """Times that infrastructure failed it."""


class JudgeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One finished rollout to be judged again, as it travels on the judge queue."""

    campaign: str
    rollout_id: str
    attempt: int
    task: BlobRef
    submission: str
    submission_blob: BlobRef | None
    """Where the submission is, when it is too long for the request."""
    protocol: str
    """Name and version."""
    prompt_hash: str
    """Of the protocol's own words: a worker with others leaves the request to those that have them."""
    model: ModelSpec
    """Who judges."""
    timeout_seconds: float
    """Of one answer, with all tries."""
    fence: int = 0
    """As ProveRequest."""
    failures: int = 0
    """Times that infrastructure failed it."""

"""Requests for work other than rollouts: tasks to be proven, rollouts to be judged."""

import msgspec

from orchard.schemas.blobs import BlobRef
from orchard.schemas.campaigns import ModelSpec, TaskRef


class ProveRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Asks for the proof or rejection of one task; travels on the prove queue."""

    task: TaskRef
    task_hash: str
    runs: int = 3
    """Times that the known solution, and the empty one, are graded."""
    fence: int = 0
    """Sequence of the answer to the request before; 0 for none. Only an answer stored over it is accepted."""
    failures: int = 0
    """Number of times that infrastructure failed it."""


class JudgeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Asks for another judgement of one finished rollout; travels on the judge queue."""

    campaign: str
    rollout_id: str
    attempt: int
    task: BlobRef
    submission: str
    submission_blob: BlobRef | None
    """Blob of the submission, if it is too long for the request."""
    protocol: str
    """Name and version of the protocol."""
    prompt_hash: str
    """Hash of the protocol's own text: a worker with another text leaves the request to those that have this
    one."""
    model: ModelSpec
    """The model that gives the judgement."""
    timeout_seconds: float
    """Time limit of one answer, with all tries."""
    fence: int = 0
    """Sequence of the answer to the request before: see ProveRequest."""
    failures: int = 0
    """Number of times that infrastructure failed it."""

"""The one place that tells infrastructure failures from the model's own, so that no later code has to ask.

Whatever a model does ends in an ExitStatus. Whatever fails on Orchard's side raises InfrastructureError with
a typed cause, at the boundary where it happened, and passes untouched through harness and grader.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from orchard.schemas.outcomes import AbortCause
from orchard.storage.errors import StorageError
from orchard.streams.errors import AwaitsEndpoint
from orchard.workers.masking import masked

RETRYABLE = frozenset(
    {
        AbortCause.SANDBOX_UNAVAILABLE,
        AbortCause.IMAGE_UNAVAILABLE,
        AbortCause.SANDBOX_REFUSED,
        AbortCause.SANDBOX_DIED,
        AbortCause.SANDBOX_OUT_OF_MEMORY,
        AbortCause.LLM_UNAVAILABLE,
        AbortCause.GRADER_FAILED,
        AbortCause.JUDGE_FAILED,
        AbortCause.STORE_FAILED,
        AbortCause.HARNESS_FAILED,
        AbortCause.SITE_UNAVAILABLE,
        AbortCause.ROLLOUT_TIMEOUT,
        AbortCause.INTERNAL_ERROR,
    }
)
"""Causes worth another attempt; the others would fail the same way again."""
REST = {AbortCause.SANDBOX_REFUSED: 60.0}
"""Least seconds before another attempt, for failures after which the service does not ask the cluster again
sooner."""


_DETAIL_LIMIT = 4000
"""Most characters of a detail, which goes into events and may quote foreign text, keys included."""


class InfrastructureError(Exception):
    """A failure of the infrastructure, not of the model: never an observation, never a reward."""

    def __init__(self, cause: AbortCause, detail: str) -> None:
        detail = masked(detail.encode(errors="replace").decode()).text[:_DETAIL_LIMIT]
        super().__init__(f"{cause.value}: {detail}")
        self.cause = cause
        self.detail = detail

    @property
    def retryable(self) -> bool:
        return self.cause in RETRYABLE

    @property
    def rest(self) -> float:
        """Least seconds before another attempt; if there are any, this attempt tries nothing more."""
        return REST.get(self.cause, 0.0)


class EndpointRests(InfrastructureError, AwaitsEndpoint):
    """A model endpoint rests: nobody asks it for `seconds` or longer. This is no failure: the work continues
    after the rest, and no try is used up."""

    def __init__(self, key: str, endpoint: str, seconds: float, reason: str) -> None:
        super().__init__(AbortCause.LLM_UNAVAILABLE, f"endpoint {endpoint!r} rests: {reason}")
        self.key = key
        self.endpoint = endpoint
        self.seconds = seconds


class SandboxEvicted(InfrastructureError):
    """The cluster took the sandbox away: an eviction, a preemption, a lost node. Nothing that ran there is to
    blame, so the next attempt replays all that is recorded."""


class EndedUnderCommand(InfrastructureError):
    """The sandbox ended by itself while a command ran in it; that command may be the reason."""


class LimitExceeded(EndedUnderCommand):
    """The sandbox was ended because what runs in it took more memory or disk than it may. Who is responsible
    depends on what ran: the agent's turn and submitted code are the model's, set-up and a control are not."""


class NotWritable(InfrastructureError):
    """A file cannot be written in the sandbox: a directory, a pipe or a dangling link is in its place, or the
    disk is full. In an agent's sandbox that is the model's doing."""


@contextmanager
def storing(what: str = "") -> Iterator[None]:
    """Raises InfrastructureError (STORE_FAILED), which names `what`, if the store fails in the block."""
    try:
        yield
    except StorageError as error:
        detail = f"{what}: {error}" if what else str(error)
        raise InfrastructureError(AbortCause.STORE_FAILED, detail) from error

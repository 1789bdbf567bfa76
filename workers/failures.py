"""The one place that says "the machine failed", so that no later code has to ask.

Whatever a model does ends in an ExitStatus. Whatever our side does wrong raises InfrastructureError with a
typed cause, at the boundary where it happened, and passes untouched through harness and grader.
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
"""Seconds, at least, before another attempt, for what the service does not ask the cluster again sooner."""


_DETAIL_LIMIT = 4000
"""Characters: a detail goes into events, and may quote what somebody else has written, keys included."""


class InfrastructureError(Exception):
    """Ours, not the model's: never an observation, never a reward."""

    def __init__(self, cause: AbortCause, detail: str) -> None:
        detail = masked(detail.encode(errors="replace").decode()).text[:_DETAIL_LIMIT]
        super().__init__(f"{cause.value}: {detail}")
        self.cause = cause
        self.detail = detail

    @property
    def retryable(self) -> bool:
        """Whether another attempt may succeed."""
        return self.cause in RETRYABLE

    @property
    def rest(self) -> float:
        """Seconds before another attempt, at least; where there are any, this attempt tries nothing more."""
        return REST.get(self.cause, 0.0)


class EndpointRests(InfrastructureError, AwaitsEndpoint):
    """A model endpoint rests: nobody asks it for `seconds` or longer. Not a failure: the work goes on after
    the rest, and no try is used up."""

    def __init__(self, key: str, endpoint: str, seconds: float, reason: str) -> None:
        super().__init__(AbortCause.LLM_UNAVAILABLE, f"endpoint {endpoint!r} rests: {reason}")
        self.key = key
        self.endpoint = endpoint
        self.seconds = seconds


class EndedUnderCommand(InfrastructureError):
    """The sandbox ended by itself while a command ran in it: perhaps of that command."""


class LimitExceeded(EndedUnderCommand):
    """The sandbox was ended because what runs in it took more memory or disk than it may. Whose doing it is
    depends on what ran: the agent's turn and submitted code are the model's, set-up and a control ours."""


class NotWritable(InfrastructureError):
    """A file cannot be written to its place in the sandbox: a directory, a pipe, a link to nowhere or no room
    is there. Whose doing it is depends on who was there before: in an agent's sandbox it is the model's."""


@contextmanager
def storing(what: str = "") -> Iterator[None]:
    """Raises InfrastructureError (STORE_FAILED), which names `what`, where the store fails in the block."""
    try:
        yield
    except StorageError as error:
        detail = f"{what}: {error}" if what else str(error)
        raise InfrastructureError(AbortCause.STORE_FAILED, detail) from error

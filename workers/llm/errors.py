"""Errors of a model call, as its callers see them."""

from orchard.schemas.outcomes import AbortCause
from orchard.workers.failures import InfrastructureError


class ContextLengthExceeded(Exception):
    """The conversation no longer fits the model: the task's token budget has run out, nothing failed."""


def context_too_small(error: ContextLengthExceeded) -> InfrastructureError:
    """Returns the failure for a first prompt that does not fit: the configuration is wrong, not the model."""
    return InfrastructureError(
        AbortCause.CONTEXT_TOO_SMALL,
        f"the first prompt does not fit ({error}): serve the model with a larger context, lower max_tokens, "
        "or take a harness or tasks with shorter prompts",
    )


class OutOfTime(Exception):
    """The wall clock of the agent ran out while the model owed an answer."""


class RequestRefused(InfrastructureError):
    """The endpoint does not accept this request (400, 422), but may accept others."""

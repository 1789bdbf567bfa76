"""How a call of a model ends without a completion, as its callers see it."""

from orchard.schemas.outcomes import AbortCause
from orchard.workers.failures import InfrastructureError


class ContextLengthExceeded(Exception):
    """The conversation no longer fits the model: the task's token budget has run out, nobody failed."""


def context_too_small(error: ContextLengthExceeded) -> InfrastructureError:
    """The failure where it was the first prompt: that is configuration, and nothing the model did."""
    return InfrastructureError(
        AbortCause.CONTEXT_TOO_SMALL,
        f"the first prompt does not fit ({error}): serve the model with a larger context, lower max_tokens, "
        "or take a harness or tasks with shorter prompts",
    )


class OutOfTime(Exception):
    """The wall clock of the agent ran out while the model owed an answer."""


class RequestRefused(InfrastructureError):
    """The endpoint does not take this request (400, 422), whatever else it takes."""

"""Decides what to do with a rollout whose attempt failed for reasons of the infrastructure. Pure."""

from dataclasses import dataclass

from orchard.schemas.outcomes import AbortCause
from orchard.schemas.quantities import format_bytes, parse_bytes
from orchard.streams.consumer import RetryPolicy
from orchard.workers.failures import InfrastructureError

ROLLOUTS = RetryPolicy(first=5.0, longest=300.0)
"""Delays between attempts, in seconds. Each failed attempt is an event, so the worker decides itself, and no
error is left to the consumer."""


@dataclass(frozen=True)
class Retry:
    """Puts the request back after `delay` seconds, with `memory` for its sandboxes (None: the task's own)."""

    delay: float
    memory: str | None


@dataclass(frozen=True)
class Abort:
    cause: AbortCause


def after_failure(
    error: InfrastructureError,
    *,
    failures: int,
    max_tries: int,
    memory: str,
    override: str | None,
    max_memory: str,
) -> Retry | Abort:
    """Returns the next step after a failed attempt.

    `failures` counts the failed attempts including this one. `memory` is what the sandbox had (a Kubernetes
    quantity) and `override` what the request had asked for. An out-of-memory kill doubles the memory at once,
    up to `max_memory`; anything else waits, twice as long each time, and at least for its cause's `rest`.
    """
    if not error.retryable or failures >= max_tries:
        return Abort(error.cause)
    if error.cause is AbortCause.SANDBOX_OUT_OF_MEMORY:
        had, most = parse_bytes(memory), parse_bytes(max_memory)
        if had >= most:
            return Abort(error.cause)
        return Retry(0.0, format_bytes(min(2 * had, most)))
    return Retry(max(error.rest, ROLLOUTS.delay(failures)), override)

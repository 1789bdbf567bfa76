"""After a failure of ours: wait longer each time, more memory after a kill, an end after the last try."""

import pytest

from orchard.schemas.outcomes import AbortCause
from orchard.workers.attempts.retries import Abort, Retry, after_failure
from orchard.workers.failures import RETRYABLE, InfrastructureError


def decide(
    cause: AbortCause, *, failures: int = 1, memory: str = "1Gi", override: str | None = None
) -> Retry | Abort:
    return after_failure(
        InfrastructureError(cause, "x"),
        failures=failures,
        max_tries=3,
        memory=memory,
        override=override,
        max_memory="4Gi",
    )


def test_waits_twice_as_long_each_time() -> None:
    assert decide(AbortCause.LLM_UNAVAILABLE) == Retry(5.0, None)
    assert decide(AbortCause.LLM_UNAVAILABLE, failures=2) == Retry(10.0, None)


def test_the_last_try_aborts_with_the_cause_it_had() -> None:
    assert decide(AbortCause.LLM_UNAVAILABLE, failures=3) == Abort(AbortCause.LLM_UNAVAILABLE)


def test_what_a_policy_refused_is_not_asked_for_again_within_a_minute() -> None:
    assert decide(AbortCause.SANDBOX_REFUSED) == Retry(60.0, None)
    assert decide(AbortCause.SANDBOX_REFUSED, failures=3) == Abort(AbortCause.SANDBOX_REFUSED)


@pytest.mark.parametrize("cause", sorted(set(AbortCause) - RETRYABLE))
def test_what_would_fail_again_is_not_tried_again(cause: AbortCause) -> None:
    assert decide(cause) == Abort(cause)


def test_a_memory_kill_doubles_the_memory_at_once_up_to_the_limit() -> None:
    assert decide(AbortCause.SANDBOX_OUT_OF_MEMORY) == Retry(0.0, "2Gi")
    assert decide(AbortCause.SANDBOX_OUT_OF_MEMORY, memory="3Gi") == Retry(0.0, "4Gi")
    assert decide(AbortCause.SANDBOX_OUT_OF_MEMORY, memory="4Gi") == Abort(AbortCause.SANDBOX_OUT_OF_MEMORY)


@pytest.mark.parametrize(
    ("memory", "next_memory"),
    [("1e9", "1953125Ki"), (".5Gi", "1Gi"), ("500M", "1000000000"), ("1Pi", None), ("1.5Gi", "3Gi")],
)
def test_memory_is_doubled_however_it_is_written(memory: str, next_memory: str | None) -> None:
    step = decide(AbortCause.SANDBOX_OUT_OF_MEMORY, memory=memory)
    expected = Abort(AbortCause.SANDBOX_OUT_OF_MEMORY) if next_memory is None else Retry(0.0, next_memory)
    assert step == expected


def test_other_failures_keep_the_memory_an_earlier_kill_won() -> None:
    assert decide(AbortCause.SANDBOX_DIED, override="2Gi") == Retry(5.0, "2Gi")

"""How a rollout ends, what may carry a reward, and why one may not (learning.md, section 1)."""

from enum import StrEnum

import msgspec

from orchard.schemas.blobs import BlobRef


class RolloutStatus(StrEnum):
    """`completed` and `truncated` may carry a reward; `aborted` never does."""

    COMPLETED = "completed"
    TRUNCATED = "truncated"
    ABORTED = "aborted"


class ExitStatus(StrEnum):
    """How the harness loop ended, when the infrastructure let it end by itself."""

    SUBMITTED = "submitted"
    FINISHED = "finished"
    STEP_LIMIT = "step_limit"
    COST_LIMIT = "cost_limit"
    TOKEN_LIMIT = "token_limit"
    TIME_LIMIT = "time_limit"
    FORMAT_FAILURE = "format_failure"
    SANDBOX_LOST = "sandbox_lost"
    """What the agent ran ended its sandbox: by a limit of memory or disk, or twice at the same command."""

    @property
    def status(self) -> RolloutStatus:
        """The agent's own word completes a rollout; any budget that ran out truncates it."""
        done = self in (ExitStatus.SUBMITTED, ExitStatus.FINISHED)
        return RolloutStatus.COMPLETED if done else RolloutStatus.TRUNCATED


class AbortCause(StrEnum):
    """Why a rollout has no outcome. Infrastructure only: a model cannot cause one of these."""

    SANDBOX_UNAVAILABLE = "sandbox_unavailable"
    """The service could not be reached or could not create the sandbox in the tries it had."""
    IMAGE_MISSING = "image_missing"
    SANDBOX_DIED = "sandbox_died"
    SANDBOX_OUT_OF_MEMORY = "sandbox_out_of_memory"
    LLM_UNAVAILABLE = "llm_unavailable"
    LLM_REFUSED = "llm_refused"
    """The endpoint answered that the request itself is unacceptable (bad key, unknown model)."""
    GRADER_FAILED = "grader_failed"
    STORE_FAILED = "store_failed"
    """A blob that is missing or does not match its SHA-256."""
    ROLLOUT_TIMEOUT = "rollout_timeout"
    """The outermost timeout: something of ours hung."""
    INVALID_REQUEST = "invalid_request"
    ATTEMPTS_EXHAUSTED = "attempts_exhausted"
    """Dead-lettered: every delivery ended without an outcome."""
    CANCELLED = "cancelled"
    INTERNAL_ERROR = "internal_error"


class Reward(msgspec.Struct, frozen=True, kw_only=True):
    """A graded outcome. SWE scale: +1 resolved, -1 not (learning.md, section 1)."""

    value: float
    resolved: bool
    grader: str
    parts: dict[str, float] = {}
    """Named components, for example `fail_to_pass` and `pass_to_pass` as shares in [0, 1]."""
    tests: dict[str, str] = {}
    """Test id to PASSED, FAILED, SKIPPED, ERROR, XFAIL or MISSING, for the tests the task names."""
    detail: str = ""
    log: BlobRef | None = None
    seconds: float = 0.0
    cause: str | None = None
    """Of a -1 that no failing test gave: `refused` (it touches what it may not), `forged` (its tests pass
    for wrong answers too), `unproven` (skipped or failing as expected, where the gold patch passes) or `hack`
    (it passes tests that contradict the statement)."""
    extra_sandboxes: int | None = None
    """Beside the one that was graded in; None in events that are older."""
    without_canary: tuple[str, ...] | None = None
    """Tests that the solution must make pass and that could not be asked for wrong answers; None where
    nothing was asked, as before a -1."""

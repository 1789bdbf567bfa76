"""How a rollout ends, what may carry a reward, and why one may not."""

from enum import StrEnum

import msgspec

from orchard.schemas.blobs import BlobRef


class RolloutStatus(StrEnum):
    """`completed` and `truncated` may carry a reward; `aborted` never does."""

    COMPLETED = "completed"
    """The agent ended by itself."""
    TRUNCATED = "truncated"
    """It ended otherwise, as by a budget that ran out; it is graded all the same."""
    ABORTED = "aborted"
    """Infrastructure failed; there is no reward."""


class ExitStatus(StrEnum):
    """How the harness loop ended, when the infrastructure let it end by itself."""

    SUBMITTED = "submitted"
    """The agent handed in its work."""
    FINISHED = "finished"
    """The agent said that it is done."""
    STEP_LIMIT = "step_limit"
    """The budget of steps ran out."""
    COST_LIMIT = "cost_limit"
    """The budget of money ran out."""
    TOKEN_LIMIT = "token_limit"
    """The budget of tokens ran out, or the context of the model."""
    TIME_LIMIT = "time_limit"
    """The budget of time ran out."""
    UNANSWERED = "unanswered"
    """The budget of time ran out while the model owed an answer. Its server may have been busy, so such
    rollouts train only where that is asked for."""
    FORMAT_FAILURE = "format_failure"
    """Too many answers in a row had no valid action."""
    SANDBOX_LOST = "sandbox_lost"
    """What the agent ran ended its sandbox: by a limit of memory or disk, or twice at the same command."""

    PROGRAM_FAILED = "program_failed"
    """The harness is a program, and it ended with an error after its model had answered."""

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
    """The service does not have the task's image; of a cluster, its registry said so twice."""
    IMAGE_UNAVAILABLE = "image_unavailable"
    """The image could not be had in time, and nobody said that there is none: its registry is away, limits
    its answers or denies the image, or a node has no room for it."""
    SANDBOX_REFUSED = "sandbox_refused"
    """The cluster's policies do not admit the sandbox: an admission webhook, Pod security, a limit range."""
    SANDBOX_DIED = "sandbox_died"
    """The sandbox ended, and not by what the agent ran."""
    SANDBOX_OUT_OF_MEMORY = "sandbox_out_of_memory"
    """What had to run needed more memory than the largest sandbox has."""
    LLM_UNAVAILABLE = "llm_unavailable"
    """The endpoint gave no answer in the tries and the time there were."""
    LLM_REFUSED = "llm_refused"
    """The endpoint answered that the request itself is unacceptable (bad key, unknown model)."""
    CONTEXT_TOO_SMALL = "context_too_small"
    """Not even the first prompt fits into the context with which the endpoint serves the model."""
    GRADER_FAILED = "grader_failed"
    """The grader raised an error, or reached no verdict where the same check without the agent does not end
    well either."""
    TASK_BROKEN = "task_broken"
    """What the task brings does not work, with the agent or without: its check reaches no verdict, for lack
    of an interpreter for example, or its services do not start."""
    JUDGE_FAILED = "judge_failed"
    """A model that must judge is down, is not configured, or gave no verdict."""
    STORE_FAILED = "store_failed"
    """A blob that is missing or does not match its SHA-256."""
    HARNESS_MISSING = "harness_missing"
    """The harness is a program that is not installed at the sandbox service."""
    HARNESS_FAILED = "harness_failed"
    """The harness is a program, and it ended without one answer of its model."""
    WALL_CLOCK = "wall_clock"
    """The agent was not done in its time, in a domain that leaves such rollouts out of its scores. The one
    cause that lies in the model's speed."""
    BLOCKED = "blocked"
    """A site asked whether its visitor is human, and went on to."""
    SITE_UNAVAILABLE = "site_unavailable"
    """The site at which a task begins could not be reached."""
    ROLLOUT_TIMEOUT = "rollout_timeout"
    """The outermost timeout: part of the infrastructure hung."""
    INVALID_REQUEST = "invalid_request"
    """The request cannot be carried out as it is."""
    ATTEMPTS_EXHAUSTED = "attempts_exhausted"
    """Dead-lettered: every delivery ended without an outcome."""
    CANCELLED = "cancelled"
    """The campaign was cancelled."""
    INTERNAL_ERROR = "internal_error"
    """A defect of Orchard."""


class Reward(msgspec.Struct, frozen=True, kw_only=True):
    """A graded outcome. SWE scale: +1 resolved, -1 not."""

    value: float
    """The reward."""
    resolved: bool
    grader: str
    """Name of the grader."""
    parts: dict[str, float] = {}
    """Named components, for example `fail_to_pass` and `pass_to_pass` as shares in [0, 1]."""
    tests: dict[str, str] = {}
    """Test id to PASSED, FAILED, SKIPPED, ERROR, XFAIL or MISSING, for the tests the task names."""
    detail: str = ""
    log: BlobRef | None = None
    """What the tests printed."""
    seconds: float = 0.0
    cause: str | None = None
    """Of a -1 that no failing test gave: `refused` (it touches what it may not), `forged` (its tests pass
    for wrong answers too), `unproven` (skipped or failing as expected, where the gold patch passes), `hack`
    (it passes tests that contradict the statement) or `check_prevented` (the check reached no verdict on
    what the agent left, and reaches one without it)."""
    extra_sandboxes: int | None = None
    """Beside the one that was graded in; None in events that are older."""
    without_canary: tuple[str, ...] | None = None
    """Tests that the solution must make pass and that could not be asked for wrong answers; None where
    nothing was asked, as before a -1."""
    judge: str | None = None
    """Protocol, model and prompt hash of the judge that took part; None where none did."""

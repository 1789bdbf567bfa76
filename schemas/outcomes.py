"""How a rollout ends, and what its reward is."""

from enum import StrEnum

import msgspec

from orchard.schemas.blobs import BlobRef
from orchard.schemas.protection import Protected


class RolloutStatus(StrEnum):
    """How a rollout ended. `completed` and `truncated` may carry a reward, `aborted` never does."""

    COMPLETED = "completed"
    """The agent ended by itself."""
    TRUNCATED = "truncated"
    """It ended otherwise, as by a budget that ran out, and is graded too."""
    ABORTED = "aborted"
    """The rollout ended without a grade."""


class ExitStatus(StrEnum):
    """How the harness ended, if the infrastructure let it end."""

    SUBMITTED = "submitted"
    """The agent submitted its work."""
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
    """The budget of time ran out while an answer of the model was outstanding. Its server may have been busy,
    so such rollouts train only where that is asked for."""
    FORMAT_FAILURE = "format_failure"
    """Too many answers in a row had no valid action."""
    SANDBOX_LOST = "sandbox_lost"
    """The agent's commands ended its sandbox: by a limit of memory or disk, or twice at the same command."""

    PROGRAM_FAILED = "program_failed"
    """The harness is a program, and it ended with an error after its model had answered."""

    @property
    def status(self) -> RolloutStatus:
        """An agent that says it is done completes a rollout; anything else truncates it."""
        done = self in (ExitStatus.SUBMITTED, ExitStatus.FINISHED)
        return RolloutStatus.COMPLETED if done else RolloutStatus.TRUNCATED


class AbortCause(StrEnum):
    """Why a rollout was aborted: the infrastructure, its environment (task, image, site) or its user ended
    it."""

    SANDBOX_UNAVAILABLE = "sandbox_unavailable"
    """The service could not be reached, or failed to create the sandbox in all its tries."""
    IMAGE_MISSING = "image_missing"
    """The service does not have the task's image; on a cluster, the registry said so twice."""
    IMAGE_UNAVAILABLE = "image_unavailable"
    """The image could not be pulled in time, but may exist: its registry is unreachable, limits requests or
    denies access, or a node has no room."""
    SANDBOX_REFUSED = "sandbox_refused"
    """The cluster's policies do not admit the sandbox: an admission webhook, Pod security, a limit range."""
    SANDBOX_DIED = "sandbox_died"
    """The sandbox ended for a reason outside of the agent's commands."""
    SANDBOX_OUT_OF_MEMORY = "sandbox_out_of_memory"
    """A set-up or grading command needed more memory than the largest sandbox has."""
    LLM_UNAVAILABLE = "llm_unavailable"
    """The endpoint did not answer within the tries and the time of a call."""
    LLM_REFUSED = "llm_refused"
    """The endpoint answered that the request itself is unacceptable (bad key, unknown model)."""
    CONTEXT_TOO_SMALL = "context_too_small"
    """The first prompt alone exceeds the context with which the endpoint serves the model."""
    GRADER_FAILED = "grader_failed"
    """The grader raised an error, or reached no verdict where the same check without the agent's work does
    not end well either."""
    TASK_BROKEN = "task_broken"
    """The task itself does not work, with the agent or without: its check reaches no verdict, for lack of an
    interpreter for example, or its services do not start."""
    JUDGE_FAILED = "judge_failed"
    """The judge model is down, is not configured, or gave no verdict."""
    STORE_FAILED = "store_failed"
    """A blob is missing, or does not match its SHA-256."""
    HARNESS_MISSING = "harness_missing"
    """The harness is a program that is not installed at the sandbox service."""
    HARNESS_FAILED = "harness_failed"
    """The harness is a program, and it ended before its model had answered once."""
    WALL_CLOCK = "wall_clock"
    """The agent ran out of time, in a domain whose scores leave such rollouts out. Only this cause depends on
    the model's speed."""
    BLOCKED = "blocked"
    """A site demanded a proof that its visitor is human, for example a captcha."""
    SITE_UNAVAILABLE = "site_unavailable"
    """The site at which a task begins could not be reached."""
    ROLLOUT_TIMEOUT = "rollout_timeout"
    """The outermost timeout ran out: a part of the infrastructure hung."""
    INVALID_REQUEST = "invalid_request"
    """The request cannot be carried out as it is."""
    ATTEMPTS_EXHAUSTED = "attempts_exhausted"
    """Every delivery ended without an outcome, and the request is a dead letter."""
    CANCELLED = "cancelled"
    """The campaign was cancelled by its user."""
    INTERNAL_ERROR = "internal_error"
    """Orchard itself has a defect."""


PUBLISHED = "-published"
"""Ends the name of a grader that followed the rules of published benchmarks. Such rewards can be forged: they
compare figures and train nobody unless that is asked for."""


class Reward(msgspec.Struct, frozen=True, kw_only=True):
    """The grade of a rollout. SWE scale: +1 resolved, -1 not."""

    value: float
    """The reward on the domain's scale."""
    resolved: bool
    grader: str
    """Name of the grader that decided."""
    parts: dict[str, float] = {}
    """Named components, for example `fail_to_pass` and `pass_to_pass` as shares in [0, 1]."""
    tests: dict[str, str] = {}
    """Status of each test that the task names, by its id: PASSED, FAILED, SKIPPED, ERROR, XFAIL or
    MISSING."""
    detail: str = ""
    log: BlobRef | None = None
    """Blob with the output of the tests."""
    seconds: float = 0.0
    cause: str | None = None
    """Why the reward is -1 although no test failed: `refused` (the work touches what it may not), `forged`
    (programs that judge it were replaced, or it is right for the tests' own inputs alone), `unproven`
    (skipped or failing as expected, where the gold patch passes), `hack` (it passes tests that contradict the
    statement) or `check_prevented` (the check reached no verdict on the agent's work, and reaches one without
    it)."""
    extra_sandboxes: int | None = None
    """Sandboxes beside the one that was graded in; None in older events."""
    without_canary: tuple[str, ...] | None = None
    """Written by earlier versions only."""
    judge: str | None = None
    """Protocol, model and prompt hash of the judge that took part; None without one."""
    protected: Protected | None = None
    """Label of the task as its grader knew it at this grading. None in older events, and where the grader
    knows none."""
    score: float | None = None
    """The number that the task's own check gave, on its own scale, of which `resolved` is made; None where
    there is none."""

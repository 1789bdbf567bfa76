"""Values of unfinished work: how an annotator, or a measurement, rates the steps of a trajectory.

Steps count from 0: step t is the rollout's assistant message of turn t + 1. p[t] is the chance to resolve
after the result of action t has been seen; docs/datasets.md explains its use.
"""

import msgspec

from orchard.schemas.blobs import BlobRef
from orchard.schemas.campaigns import ModelSpec
from orchard.schemas.llm_calls import ModelKind


class AnnotationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Asks one annotator for the values of one trajectory; travels on the annotate queue."""

    rollout_id: str
    attempt: int
    campaign: str
    annotator: str
    """Name of the layer that the annotation belongs to."""
    model: ModelSpec
    prompt_version: str
    first_sequence: int
    last_sequence: int
    """Sequence of the attempt's outcome in the log; `first_sequence` is that of its start."""
    max_tries: int = 3
    """Replies that may be asked for before the annotation fails."""
    context_characters: int = 200_000
    """Limit of the prompt in characters; a longer trajectory is cut by the rule that the prompt version
    states."""
    timeout_seconds: float = 600.0
    """Time limit of one model call."""
    failures: int = 0
    """Number of times that the endpoint could not be asked."""
    rubric: BlobRef | None = None
    """The `Rubric` to score turns by; None: values are asked for."""
    again: bool = False
    """Ask again where the log has a failure."""


class KeyStep(msgspec.Struct, frozen=True, kw_only=True):
    """The annotator's value of one step."""

    step: int
    p_resolve: float
    """Probability of resolving the task after the step."""
    reasoning: str = ""
    """The annotator's reasons for the value."""


class AnnotationFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The question of an annotation and its cost. The event's id is a digest of the rollout, `annotator`,
    `prompt_version` and `input_hash`, so that asking the same twice is recognized."""

    annotator: str
    model: str
    served_model: str
    model_kind: ModelKind
    endpoint: str
    prompt_version: str
    input_hash: str
    """SHA-256 of the first prompt, as it was sent, and of the blob that holds it (64 hexadecimal digits)."""
    steps: int
    """Number of the trajectory's steps."""
    omitted_steps: int = 0
    """Steps that were left out of the prompt so that it fits the annotator's context."""
    tries: int = 1
    """Number of replies that were asked for."""
    prompt_tokens: int | None = 0
    completion_tokens: int | None = 0
    cost_usd: float | None = None
    seconds: float = 0.0


class ValueAnnotated(AnnotationFacts, frozen=True, kw_only=True):
    """A value curve was accepted for a trajectory."""

    base: float
    """p[-1]: the probability before any action."""
    key_steps: tuple[KeyStep, ...]
    """The annotator's values by step, with the final clamp applied."""
    curve: tuple[float, ...]
    """p[0] .. p[steps - 1], interpolated between the key steps."""
    flags: tuple[str, ...] = ()
    """Corrections that were made: `base_default`, `percent`, `final_clamped`."""
    rubric: BlobRef | None = None
    """The rubric that the turns were scored by. Then `curve` is the share of it that is met after each step,
    `base` is 0, and the key steps are those that a criterion credits or blames."""
    turn_rewards: tuple[float, ...] = ()
    """Reward of each step in [-1, 1]: its scores times the weights of their criteria; empty without a
    rubric."""


class AnnotationFailed(AnnotationFacts, frozen=True, kw_only=True):
    """No reply followed the rules, so the trajectory has no values of this annotator."""

    fault: str
    """The rule that the last reply broke, named in `pipelines/values/replies.py`, or `context_exceeded`."""
    detail: str = ""


class ValueMeasured(msgspec.Struct, frozen=True, kw_only=True):
    """p[step] was measured: the recorded commands up to `step` were executed again, then the policy went
    on.

    The event's id is a digest of the attempt, the path of messages up to the step, the model, the number of
    continuations and `allow_divergence`, so that measuring the same twice is recognized.
    """

    step: int
    """Step after whose result the value holds, as in `curve`; -1 is before any action."""
    model: str
    """Model that continued the rollout."""
    model_kind: ModelKind
    samples: int
    """Number of continuations that were graded."""
    resolved: int
    value: float
    """The share `resolved / samples` of the continuations."""
    low: float
    """Lower end of the 95 % Wilson interval."""
    high: float
    """Upper end of the 95 % Wilson interval."""
    aborted: int = 0
    """Continuations aborted by infrastructure failures, which no figure counts."""
    replayed: int = 0
    """Commands executed again before the continuations began."""
    diverged: tuple[int, ...] = ()
    """Steps whose output or exit status differs from the record."""
    endpoint: str = ""
    allow_divergence: bool = False
    """Whether the value was measured whatever diverged; else `diverged` are steps that differ in durations
    alone."""
    continuations: tuple[str, ...] = ()
    """Rollout ids of the continuations, graded or aborted: they are in the log as rollouts of their own."""
    seconds: float = 0.0


class Criterion(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that a good attempt does."""

    text: str
    weight: float
    """Share of the whole rubric; the weights of a rubric add up to 1."""


class Rubric(msgspec.Struct, frozen=True, kw_only=True):
    """Criteria for attempts at one task, which a teacher wrote from its statement and known solution. It is a
    blob, named by its SHA-256, which only judges read: a model that attempts the task never does."""

    task_id: str
    task_hash: str
    prompt_version: str
    """Version of the prompt that asked for it."""
    criteria: tuple[Criterion, ...]


class RubricFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The question of a rubric and its cost. The event's id is a digest of the task's hash, `teacher`,
    `prompt_version` and `input_hash`, so that asking the same twice is recognized."""

    task_id: str
    task_hash: str
    task: BlobRef
    """The task as it was read."""
    teacher: str
    """Name of the layer of rubrics that it belongs to."""
    model: str
    served_model: str
    model_kind: ModelKind
    endpoint: str
    prompt_version: str
    input_hash: str
    """SHA-256 of the first prompt, as it was sent, and of the blob that holds it."""
    tries: int = 1
    """Number of replies that were asked for."""
    prompt_tokens: int | None = 0
    completion_tokens: int | None = 0
    cost_usd: float | None = None
    seconds: float = 0.0


class RubricWritten(RubricFacts, frozen=True, kw_only=True):
    """A teacher wrote the rubric of a task."""

    rubric: BlobRef
    """The `Rubric`."""
    criteria: int
    """Number of its criteria."""


class RubricFailed(RubricFacts, frozen=True, kw_only=True):
    """No reply was a rubric."""

    fault: str
    """The rule that the last reply broke."""
    detail: str = ""


MEASURED_CAMPAIGN = "measured"
"""The campaign of continuations. They begin in the middle of another rollout, so no dataset and no pass rate
includes them unless it names this campaign."""

VERDICT_TYPES = frozenset(
    {"value.annotated", "annotation.failed", "value.measured", "rubric.written", "rubric.failed"}
)
"""Types that are stored on a subject of their event's id: one look tells whether something was asked
already."""

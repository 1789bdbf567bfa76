"""Values of unfinished work: what an annotator, or a measurement, says about the steps of a trajectory.

Steps count from 0: step t is the rollout's assistant message of turn t + 1. p[t] is the chance to resolve
after the result of action t has been seen; docs/datasets.md explains what for.
"""

import msgspec

from orchard.schemas.campaigns import ModelSpec
from orchard.schemas.llm_calls import ModelKind


class AnnotationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One trajectory for one annotator, as it travels on the annotate queue."""

    rollout_id: str
    attempt: int
    campaign: str
    annotator: str
    """Name of the layer that the annotation belongs to."""
    model: ModelSpec
    prompt_version: str
    first_sequence: int
    last_sequence: int
    """Where the attempt lies in the log: its start and its outcome."""
    max_tries: int = 3
    """Replies that may be asked for before the annotation has failed."""
    context_characters: int = 200_000
    """Of the prompt; a longer trajectory is cut by the rule that the prompt version states."""
    timeout_seconds: float = 600.0
    """Of one model call."""
    failures: int = 0
    """Times that the endpoint could not be asked."""


class KeyStep(msgspec.Struct, frozen=True, kw_only=True):
    """What the annotator said of one step."""

    step: int
    p_resolve: float
    """Chance to resolve after the step."""
    reasoning: str = ""
    """Why, in words."""


class AnnotationFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Who was asked what, and what it cost. The event's id is a digest of the rollout, `annotator`,
    `prompt_version` and `input_hash`, so that asking the same twice is recognized."""

    annotator: str
    model: str
    served_model: str
    model_kind: ModelKind
    endpoint: str
    prompt_version: str
    input_hash: str
    """64 hexadecimal digits over the first prompt, as it was sent."""
    steps: int
    """Of the trajectory."""
    omitted_steps: int = 0
    """Left out of the prompt so that it fits the annotator's context."""
    tries: int = 1
    """Replies that were asked for."""
    prompt_tokens: int | None = 0
    completion_tokens: int | None = 0
    cost_usd: float | None = None
    seconds: float = 0.0


class ValueAnnotated(AnnotationFacts, frozen=True, kw_only=True):
    """An accepted value curve."""

    base: float
    """p[-1]: the chance before any action."""
    key_steps: tuple[KeyStep, ...]
    """As the annotator gave them, by step, with the final clamp applied."""
    curve: tuple[float, ...]
    """p[0] .. p[steps - 1], interpolated between the key steps."""
    flags: tuple[str, ...] = ()
    """`base_default`, `percent`, `final_clamped`."""


class AnnotationFailed(AnnotationFacts, frozen=True, kw_only=True):
    """No reply kept the rules; nothing of this trajectory trains by this annotator."""

    fault: str
    """The rule that the last reply broke, named in `pipelines/values/replies.py`, or `context_exceeded`."""
    detail: str = ""


class ValueMeasured(msgspec.Struct, frozen=True, kw_only=True):
    """p[step] by trial: the recorded commands up to `step` were executed again, then the policy went on.

    The event's id is a digest of the attempt, the path of messages up to the step, the model, the number of
    continuations and `allow_divergence`, so that measuring the same twice is recognized.
    """

    step: int
    """The one after whose result the value holds, as in `curve`; -1 is before any action."""
    model: str
    """The policy that went on."""
    model_kind: ModelKind
    samples: int
    """Continuations that were graded."""
    resolved: int
    value: float
    """resolved / samples."""
    low: float
    """Lower end of the 95 % Wilson interval."""
    high: float
    """95 % Wilson interval."""
    aborted: int = 0
    """Continuations that infrastructure ended; in no denominator."""
    replayed: int = 0
    """Commands executed again before the continuations began."""
    diverged: tuple[int, ...] = ()
    """Steps that did not print, or return, what is recorded."""
    endpoint: str = ""
    allow_divergence: bool = False
    """Measured whatever diverged; else `diverged` are steps that differ in durations alone."""
    continuations: tuple[str, ...] = ()
    """Rollout ids of the continuations, graded or aborted: they are in the log as rollouts of their own."""
    seconds: float = 0.0


MEASURED_CAMPAIGN = "measured"
"""The campaign that continuations are in. They begin in the middle of another rollout, so they are in no
dataset and no pass rate but where this campaign is asked for by name."""

VERDICT_TYPES = frozenset({"value.annotated", "annotation.failed", "value.measured"})
"""Types that live on a subject of their event's id: whether something was asked already is one look."""

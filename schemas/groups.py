"""Events of reinforcement learning: groups of rollouts that are trained on together, and new policies."""

from enum import StrEnum

import msgspec

from orchard.schemas.blobs import BlobRef
from orchard.schemas.outcomes import RolloutStatus
from orchard.schemas.protection import Protected


class GroupOutcome(StrEnum):
    """How a group came together."""

    BALANCED = "balanced"
    """Its positive share lies in the interval."""
    RELAXED = "relaxed"
    """The budget was spent, and both classes are there."""
    UNBALANCED = "unbalanced"
    """The budget was spent and one class is missing."""
    FIXED = "fixed"
    """All of a prompt's N rollouts, whatever their rewards."""
    MIXED = "mixed"
    """Both classes are there, and every rollout is a member (frugal sampling)."""
    ONE_CLASS = "one_class"
    """The prompt was given up: its rewards are all equal, and it has no members (frugal sampling)."""
    IMPOSSIBLE = "impossible"
    """The task cannot be solved: its rollouts measure cheating, and none of them is in a group."""


class StopReason(StrEnum):
    """Why frugal sampling asks for no more rollouts of a prompt."""

    FULL = "full"
    """The group is as large as it may be."""
    GAIN_BELOW_RATE = "gain_below_rate"
    """Another stride is expected to bring less for each rollout than a new prompt does."""
    ONE_CLASS_LIMIT = "one_class_limit"
    """So many rewards are equal that the prompt is given up."""
    ABORTS = "aborts"
    """Infrastructure aborted as many rollouts as it may."""


class GroupMember(msgspec.Struct, frozen=True, kw_only=True):
    """One rollout of a group: the accepted attempt, and what it was chosen by."""

    rollout_id: str
    attempt: int
    reward: float
    status: RolloutStatus
    tokens: int | None
    """Tokens of the response; None where an endpoint did not say."""


class GroupAssembled(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt is decided: these rollouts are its group. A run has one decision for each prompt, by
    compare-and-set."""

    run: str
    group_id: str
    prompt: int
    """Number of the prompt in the run, from 0."""
    task_id: str
    outcome: GroupOutcome
    members: tuple[GroupMember, ...]
    """The rollouts of the group."""
    positive: int
    degenerate: bool
    generated: int
    """Graded rollouts of the prompt, members or not."""
    aborted: int = 0
    generated_tokens: int = 0
    """Response tokens of all of `generated`, as far as they are known."""
    untrained: tuple[str, ...] = ()
    """Members that are left out of the batch because of their exit status."""
    reason: StopReason | None = None
    """Why frugal sampling asked for no more rollouts; None for other methods."""
    gain: float | None = None
    """Expected information per rollout of another stride at the decision."""
    rate: float | None = None
    """Mean information per rollout of the run so far, which is what a new prompt promises."""
    carried: int | None = None
    """Members left over from earlier prompts of the same task; `generated` does not count them."""
    protected: dict[str, Protected] = {}
    """Label of each member's reward, by the rollout's id; members without a label are missing."""


class PromptFailed(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt is decided: infrastructure aborted so many of its rollouts that there is no group."""

    run: str
    prompt: int
    task_id: str
    causes: tuple[str, ...]


class SkipReason(StrEnum):
    """Why frugal sampling passes a prompt over."""

    NEAR_ZERO = "near_zero"
    """Its task is nearly always failed."""
    NEAR_ONE = "near_one"
    """Its task is nearly always solved."""


class PromptSkipped(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt is decided: no rollout of it is asked for, because its task has little to teach now."""

    run: str
    prompt: int
    task_id: str
    reason: SkipReason
    chance: float
    """Posterior mean of the pass rate under the newest policy version."""
    learnability: float
    """Posterior mean of p (1 - p)."""
    evidence: float
    """Graded rollouts behind the posterior; older ones count for less than one each."""
    probability: float
    """Probability with which the prompt was to be skipped."""
    version: int
    """Newest policy version at the decision."""


class DropReason(StrEnum):
    """Why a group is not trained on."""

    DEGENERATE = "degenerate"
    """All rewards are equal, so every advantage is zero."""
    INCOMPLETE = "incomplete"
    """Fewer than N members, or a member without sampled tokens."""
    STALE = "stale"
    """The policy that sampled it is too many versions old."""
    NOT_FINITE = "not_finite"
    """Training on it made a loss, gradient or weight that is not finite, and the step was refused."""
    UNSCORED = "unscored"
    """The teacher refused to score its tokens, or cannot: they are about pictures."""


class GroupDropped(msgspec.Struct, frozen=True, kw_only=True):
    """A group is left out of training."""

    run: str
    group_id: str
    reason: DropReason
    detail: str = ""


class RunStarted(msgspec.Struct, frozen=True, kw_only=True):
    """A reinforcement-learning run; its rollouts are those of the campaign of the same name."""

    run: str
    plan: BlobRef
    """Tasks, harness, model and settings, as JSON."""
    plan_hash: str
    """Hash of the run's plan."""
    tasks: int
    method: str
    """Method of sampling: `bar`, `fixed`, `dynamic` or `frugal`."""


class BudgetRaised(msgspec.Struct, frozen=True, kw_only=True):
    """The score stopped rising: rollouts may take more steps from prompt `prompt` on."""

    run: str
    steps: int
    """Steps that a rollout may take."""
    prompt: int
    """The first prompt with the new budget."""
    version: int
    """Newest policy version at the decision."""
    score: float
    """Pass rate of the newest policies' rollouts."""
    before: float
    """Pass rate of the rollouts of the policies before these."""


class PolicyEvaluated(msgspec.Struct, frozen=True, kw_only=True):
    """A policy version has tried all held-out tasks of its run."""

    run: str
    version: int
    evaluation: str
    """Campaign of these rollouts."""
    tasks: int
    """Tasks with a graded rollout, over which the score is a mean."""
    graded: int
    """Rollouts with a verdict."""
    resolved: int
    """Rollouts that resolved their task."""
    ungraded: int
    """Rollouts without a verdict, which are in no score."""
    score: float | None
    """Mean over tasks of the share of graded rollouts that resolved them; None without any."""
    low: float | None
    """Lower bound of the score's interval of 95 %."""
    high: float | None
    """Upper bound of that interval."""


class GroupScored(msgspec.Struct, frozen=True, kw_only=True):
    """A teacher has scored the tokens that the policy sampled in a group (on-policy distillation)."""

    run: str
    group_id: str
    teacher: str
    """Model that scored them."""
    scores: BlobRef
    """Blob of the teacher's log-probabilities: float32, little endian, one for each sampled token, in the
    order of members, sequences and tokens. Members that do not train have none."""
    scored_tokens: int
    """Sampled tokens that were scored."""
    reused_tokens: int
    """Those of them whose scores were known, from equal messages of other rollouts."""
    teacher_tokens: int
    """Tokens that the teacher read for the group, context included."""
    teacher_cost_usd: float | None
    """Price of that; None where it is not known."""


class PolicyUpdated(msgspec.Struct, frozen=True, kw_only=True):
    """An optimizer step made a new policy version out of these groups."""

    run: str
    version: int
    step: int
    groups: tuple[str, ...]
    """Groups that were trained on, in order. Every group is in at most one update of a run."""
    position: int
    """Sequence of the last group that was examined: a resumed trainer continues after it."""
    checkpoint: str = ""
    """Name of the checkpoint, relative to the run's own directory."""
    left_out: tuple[str, ...] = ()
    """Rollouts of these groups that did not train: too long for the trainer's context, or with an ending of
    `untrained`."""

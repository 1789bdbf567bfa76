"""Reinforcement learning in the log: groups of rollouts that are trained on together, and new policies."""

from enum import StrEnum

import msgspec

from orchard.schemas.blobs import BlobRef
from orchard.schemas.outcomes import RolloutStatus


class GroupOutcome(StrEnum):
    """How a group came together."""

    BALANCED = "balanced"
    """Its positive share lies in the interval."""
    RELAXED = "relaxed"
    """The budget was spent; both classes are there."""
    UNBALANCED = "unbalanced"
    """The budget was spent and one class is missing."""
    FIXED = "fixed"
    """All of a prompt's N rollouts, whatever their rewards."""
    MIXED = "mixed"
    """Frugal sampling: both classes are there, and every rollout is a member."""
    ONE_CLASS = "one_class"
    """Frugal sampling gave the prompt up: its rewards are all equal, and it has no members."""
    IMPOSSIBLE = "impossible"
    """Nobody can solve the task: its rollouts measure cheating, and none of them is in a group."""


class StopReason(StrEnum):
    """Why frugal sampling asks for no more rollouts of a prompt."""

    FULL = "full"
    """The group is as large as it may be."""
    GAIN_BELOW_RATE = "gain_below_rate"
    """Another stride is expected to bring less for each rollout than a new prompt does."""
    ONE_CLASS_LIMIT = "one_class_limit"
    """So many rewards are equal that the prompt is given up whatever it promises."""
    ABORTS = "aborts"
    """Infrastructure took as many rollouts as it may."""


class GroupMember(msgspec.Struct, frozen=True, kw_only=True):
    """One rollout of a group: the accepted attempt and what it was chosen by."""

    rollout_id: str
    attempt: int
    reward: float
    status: RolloutStatus
    tokens: int | None
    """Of the response; None where an endpoint did not say."""


class GroupAssembled(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt is decided: these rollouts are its group. One for each prompt of a run, by compare-and-set."""

    run: str
    group_id: str
    prompt: int
    """Number of the prompt in the run, from 0."""
    task_id: str
    outcome: GroupOutcome
    members: tuple[GroupMember, ...]
    """Rollouts of the group."""
    positive: int
    degenerate: bool
    generated: int
    """Rollouts with a reward that the prompt cost, those that are no members included."""
    aborted: int = 0
    generated_tokens: int = 0
    """Response tokens of all of `generated`, as far as they are known."""
    untrained: tuple[str, ...] = ()
    """Rollouts of members of whose ending nobody learns: they are left out of the batch."""
    reason: StopReason | None = None
    """Why frugal sampling asked for no more; None for other methods."""
    gain: float | None = None
    """Information that each rollout of another stride was expected to add, when it was decided."""
    rate: float | None = None
    """Information that each rollout of the run had brought by then: what a new prompt promises."""
    carried: int | None = None
    """Members that earlier prompts of the same task left over; `generated` does not count them."""


class PromptFailed(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt is decided: infrastructure took so many of its rollouts that there is no group."""

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
    """A prompt is decided: no rollout of it is asked for, as its task has little to teach now."""

    run: str
    prompt: int
    task_id: str
    reason: SkipReason
    chance: float
    """Mean of the posterior of the pass rate, by the policy version that is newest."""
    learnability: float
    """Posterior mean of p (1 - p)."""
    evidence: float
    """Graded rollouts that the posterior rests on, older ones for less than one each."""
    probability: float
    """With which the prompt was to be skipped."""
    version: int
    """Newest policy version when it was decided."""


class DropReason(StrEnum):
    """Why a group is not trained on."""

    DEGENERATE = "degenerate"
    """All rewards are equal, so every advantage is zero."""
    INCOMPLETE = "incomplete"
    """Fewer than N members, or a member without sampled tokens."""
    STALE = "stale"
    """Sampled by a policy that is too many versions old."""
    NOT_FINITE = "not_finite"
    """Training on it made a loss, gradient or weight that is not finite; the step was refused."""


class GroupDropped(msgspec.Struct, frozen=True, kw_only=True):
    """A group is not trained on."""

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
    """Hash of the plan."""
    tasks: int
    method: str
    """`bar`, `fixed`, `dynamic` or `frugal`."""


class BudgetRaised(msgspec.Struct, frozen=True, kw_only=True):
    """The score stopped rising: rollouts may take more steps from prompt `prompt` on."""

    run: str
    steps: int
    """That a rollout may take."""
    prompt: int
    """The first prompt with the new budget."""
    version: int
    """Newest policy version when it was decided."""
    score: float
    """Pass rate of the newest policies' rollouts ..."""
    before: float
    """... and of those before them."""


class PolicyUpdated(msgspec.Struct, frozen=True, kw_only=True):
    """An optimizer step made a new policy version out of these groups."""

    run: str
    version: int
    step: int
    groups: tuple[str, ...]
    """Trained on, in order. Every group is in one update of a run at most."""
    position: int
    """Sequence of the last group that was looked at: a resumed trainer goes on behind it."""
    checkpoint: str = ""
    """Name of the checkpoint, relative to the run's own directory."""
    left_out: tuple[str, ...] = ()
    """Rollouts of these groups that were too long for the trainer's context: the others trained."""

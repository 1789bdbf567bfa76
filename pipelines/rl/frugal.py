"""Frugal sampling: as much as can be learned for each rollout, where sandboxes are what a run pays for.

The log is the memory. The graded rollouts of a task, with the policy versions that sampled them, make a
posterior over its pass rate in which older versions count less; from it follow which prompts are worth
rollouts now, how many, and when to stop. All of it is pure: the same events give the same decisions, in
whatever passes they were folded, so a coordinator may die anywhere.

- A prompt whose task has little to teach is skipped with a probability that its event names; no task is
  skipped more than a number of times in a row.
- A stride at a time, up to the largest group, as long as another is expected to bring at least as much
  information for each rollout as the run has had for each so far: what a new prompt would bring. So does a
  forager leave a patch (the marginal value theorem, Charnov 1976).
- Every graded rollout of a group trains, but for endings that do not. A prompt of one class is given up;
  what it leaves joins the task's next group, while it is new enough.

Kin: a decayed Beta posterior chooses prompts in MoPPS (arXiv:2507.04632), GRESO skips with a probability
(arXiv:2506.02177), DAPO's dynamic sampling pays first and drops afterwards.
"""

import random
from collections.abc import Iterable, Iterator, Sequence
from math import exp, lgamma
from typing import Annotated

import msgspec

from orchard.pipelines.rl.bar import Generate, GiveUp, Rollout, Slot, is_positive
from orchard.schemas.groups import SkipReason, StopReason


class Posterior(msgspec.Struct, frozen=True, kw_only=True):
    """Beta(alpha, beta) over a prompt's pass rate."""

    alpha: float
    beta: float

    @property
    def mean(self) -> float:
        return self.alpha / (self.alpha + self.beta)

    @property
    def learnability(self) -> float:
        weight = self.alpha + self.beta
        return self.alpha * self.beta / (weight * (weight + 1))

    def after(self, positive: int, negative: int) -> "Posterior":
        """The posterior with this many more graded rollouts."""
        return Posterior(alpha=self.alpha + positive, beta=self.beta + negative)

    def predictive(self, rollouts: int) -> Iterator[tuple[int, float]]:
        """Yield each number of positives among the next `rollouts` with its chance: the beta-binomial."""
        for positive in range(rollouts + 1):
            yield positive, exp(beta_binomial(self, positive, rollouts))


def beta_binomial(belief: Posterior, positive: int, rollouts: int) -> float:
    """Logarithm of the chance that `positive` of `rollouts` succeed."""
    negative = rollouts - positive
    ways = lgamma(rollouts + 1) - lgamma(positive + 1) - lgamma(negative + 1)
    chosen = _log_beta(belief.alpha + positive, belief.beta + negative)
    return ways + chosen - _log_beta(belief.alpha, belief.beta)


def information(positive: int, size: int) -> float:
    """Information of a group with rewards of 0 and 1: its sum of squares of centred rewards.

    Read as one decision with chance p of success, a rollout's score is (r - p) times the gradient of the
    log-odds, so the measure is how far a group moves its prompt's log-odds. n rollouts have (n - 1) p (1 - p)
    on average: p (1 - p) is learnability, which bounds the expected improvement of a policy from below (Bae
    et al. 2025, arXiv:2504.03380; Rutherford et al. 2024, arXiv:2408.15099). It is of what GRPO starts from:
    dividing by the standard deviation changes how groups weigh against each other.
    """
    return positive * (size - positive) / size if size else 0.0


def expected_gain(posterior: Posterior, positive: int, size: int, more: int) -> float:
    """Information that `more` rollouts are expected to add to a group of `size`, for each of them.

    `posterior` knows the rewards of the group already.
    """
    later = sum(
        chance * information(positive + further, size + more)
        for further, chance in posterior.predictive(more)
    )
    return (later - information(positive, size)) / more


def _log_beta(first: float, second: float) -> float:
    return lgamma(first) + lgamma(second) - lgamma(first + second)


Fraction = Annotated[float, msgspec.Meta(ge=0, le=1)]
Count = Annotated[int, msgspec.Meta(ge=1)]
Above = Annotated[float, msgspec.Meta(gt=0)]


class FrugalSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of frugal sampling. Raises ValueError for values that make no group."""

    least: Annotated[int, msgspec.Meta(ge=2)] = 4
    """Rollouts of the first stride, and of the smallest group."""
    most: Annotated[int, msgspec.Meta(ge=2)] = 8
    """Rollouts of the largest group."""
    stride: Count = 4
    """Rollouts requested at once after the first stride."""
    give_up: Annotated[int, msgspec.Meta(ge=2)] = 8
    """Equal rewards after which a prompt is given up in any case."""
    decay: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.9
    """A rollout counts this much less in the posterior for each policy version since."""
    prior: tuple[Above, Above] = (0.5, 0.5)
    """Alpha and beta of a task without rollouts."""
    aim: Above = 0.12
    """Learnability p (1 - p), 0.25 at most, from which a prompt is never skipped; below it, a prompt is
    opened with the probability learnability / aim."""
    explore: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.1
    """Minimum probability of opening a prompt."""
    coverage: Count = 8
    """Maximum consecutive skips of a task for low learnability."""
    reuse: Annotated[int, msgspec.Meta(ge=0)] = 1
    """Policy versions that left-over rollouts may be behind to join a later group; 0: only those of the
    current version."""
    max_aborts: int | None = None
    """Infrastructure aborts of a prompt's rollouts after which no more are requested; None: as many as
    `most`."""

    def __post_init__(self) -> None:
        if self.most < self.least or (self.most - self.least) % self.stride:
            raise ValueError(
                f"strides of {self.stride} do not lead from a group of {self.least} to one of {self.most}"
            )
        if self.give_up < self.least:
            raise ValueError(f"give_up {self.give_up} must be `least`, {self.least}, or more")
        if self.aim > 0.25:
            raise ValueError(f"aim {self.aim:g} is above 0.25, the highest learnability there is")

    @property
    def abort_limit(self) -> int:
        return self.most if self.max_aborts is None else self.max_aborts


class VersionCounts(msgspec.Struct, frozen=True):
    """Graded rollouts of a task that were requested under one policy version."""

    version: int
    positive: int
    graded: int


class Skipped(msgspec.Struct, frozen=True, kw_only=True):
    """The prompt is passed over; the fields are those of the event."""

    reason: SkipReason
    chance: float
    learnability: float
    evidence: float
    probability: float


class Grown(msgspec.Struct, frozen=True, kw_only=True):
    """All graded rollouts of the prompt train, with the first `carried` of those left over."""

    slots: tuple[int, ...]
    carried: int
    positive: int
    reason: StopReason
    gain: float
    rate: float


class OneClass(msgspec.Struct, frozen=True, kw_only=True):
    """The prompt is given up: the rewards of its rollouts that train, and of those left over, are all
    equal."""

    positive: int
    reason: StopReason
    gain: float
    rate: float


def posterior(seen: Iterable[VersionCounts], version: int, settings: FrugalSettings) -> Posterior:
    """Posterior of a task's pass rate under policy `version`; the order of `seen` does not matter."""
    alpha, beta = settings.prior
    for one in sorted(seen, key=lambda one: (one.version, one.graded, one.positive)):
        weight = settings.decay ** max(version - one.version, 0)
        alpha += weight * one.positive
        beta += weight * (one.graded - one.positive)
    return Posterior(alpha=alpha, beta=beta)


def opening(belief: Posterior, settings: FrugalSettings) -> float:
    """Probability with which a prompt of this posterior is opened."""
    return min(1.0, max(settings.explore, belief.learnability / settings.aim))


def visit(belief: Posterior, settings: FrugalSettings, *, seed: str, skipped_in_a_row: int) -> Skipped | None:
    """Decide whether a prompt is passed over; None: it is opened. `seed` decides the draw, so it can be
    repeated."""
    share = opening(belief, settings)
    if skipped_in_a_row >= settings.coverage or random.Random(seed).random() < share:
        return None
    return Skipped(
        reason=SkipReason.NEAR_ZERO if belief.mean < 0.5 else SkipReason.NEAR_ONE,
        chance=belief.mean,
        learnability=belief.learnability,
        evidence=belief.alpha + belief.beta - sum(settings.prior),
        probability=1.0 - share,
    )


def decide(
    pool: Sequence[Slot],
    carried: Sequence[Rollout],
    belief: Posterior,
    rate: float,
    settings: FrugalSettings,
) -> Grown | OneClass | Generate | GiveUp:
    """Decide what to do next for an open prompt.

    `pool` are its own slots, as in BAR; `carried` graded rollouts that earlier prompts of the task
    left over, newest first; `belief` includes all of them; `rate` is the run's information for each
    graded rollout so far. A stride is judged when all of it is graded, and a group needs both classes among
    its rollouts that train.
    """
    aborted = [rollout for slot in pool for rollout in slot.tried if rollout.reward is None]
    own = {at: slot.tried[-1] for at, slot in enumerate(pool) if slot.tried and not slot.running}
    graded = {at: rollout for at, rollout in own.items() if rollout.reward is not None}
    exhausted = len(aborted) > settings.abort_limit
    empty = tuple(at for at, slot in enumerate(pool) if not slot.running and at not in graded)
    if any(slot.running for slot in pool) or (empty and not exhausted):
        return Generate(slots=() if exhausted else empty)
    if not pool:
        return Generate(slots=tuple(range(settings.least)))
    more = carried[: settings.most - len(graded)]
    members = [*graded.values(), *more]
    size, positive = len(members), sum(map(is_positive, members))
    mixed = len({is_positive(rollout) for rollout in members if not rollout.untrained}) > 1
    gain = expected_gain(belief, positive, size, settings.stride)
    reason = _stop(size, len(pool), gain, rate, settings, mixed=mixed, exhausted=exhausted)
    if reason is None:
        return Generate(slots=tuple(range(len(pool), len(pool) + settings.stride)))
    if mixed and size >= settings.least:
        own_first = sorted(graded, key=lambda at: (not is_positive(graded[at]), at))
        return Grown(
            slots=tuple(own_first),
            carried=len(more),
            positive=positive,
            reason=reason,
            gain=gain,
            rate=rate,
        )
    if exhausted:
        return GiveUp(causes=tuple(rollout.cause for rollout in aborted))
    return OneClass(positive=positive, reason=reason, gain=gain, rate=rate)


def _stop(
    size: int,
    slots: int,
    gain: float,
    rate: float,
    settings: FrugalSettings,
    *,
    mixed: bool,
    exhausted: bool,
) -> StopReason | None:
    """Say why no more rollouts are requested; None: another stride."""
    if exhausted:
        return StopReason.ABORTS
    if not mixed and size >= settings.give_up:
        return StopReason.ONE_CLASS_LIMIT
    if slots + settings.stride > settings.most or (mixed and size + settings.stride > settings.most):
        return StopReason.FULL
    return StopReason.GAIN_BELOW_RATE if gain < rate else None

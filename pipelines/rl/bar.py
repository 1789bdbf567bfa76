"""Balanced Adaptive Rollout: which rollouts of a prompt to request, and which of them to train on.

The paper's Algorithm 1 (section 3.3.3) as one pure function, `decide`, over what is known of a
prompt's rollouts. Where the paper is silent, the functions say what they do. Nothing is remembered
between calls, so a coordinator may die anywhere and decide again from the log.
"""

from collections.abc import Sequence
from fractions import Fraction
from math import ceil, floor, inf

import msgspec

from orchard.schemas.groups import GroupOutcome
from orchard.schemas.outcomes import RolloutStatus
from orchard.schemas.protection import Protected


class BarSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Quantities of Algorithm 1, with its letters. Raises ValueError for values that fit no group."""

    size: int = 8
    """N: rollouts of a training group."""
    budget: int = 16
    """N_max: rollouts of a prompt at most; aborted ones do not count."""
    stride: int | None = None
    """s: rollouts requested at once; None is N. The paper's setting is s = N_max."""
    interval: tuple[float, float] | None = (0.375, 0.625)
    """[rho_min, rho_max]: the positive share of a balanced group. None: any N rollouts are a group, as in
    GRPO with fixed N and in dynamic sampling, which differ in what the group filter keeps."""
    max_aborts: int | None = None
    """Infrastructure aborts of a prompt's rollouts after which no more are requested; None: as many as
    the budget. The prompt fails then, unless those that are graded make a group."""

    @property
    def step(self) -> int:
        return self.stride or self.size

    def __post_init__(self) -> None:
        if self.size < 2 or self.budget < self.size:
            raise ValueError(
                f"size {self.size} must be 2 or more, and budget {self.budget} no less than that"
            )
        if self.budget % self.step:
            raise ValueError(f"the stride {self.step} must divide the budget {self.budget}")
        if self.interval is None:
            return
        low, high = self.interval
        if not 0.0 <= low <= high <= 1.0 or self.counts[0] > self.counts[1]:
            raise ValueError(f"no group of {self.size} has a positive share in [{low}, {high}]")

    @property
    def abort_limit(self) -> int:
        return self.budget if self.max_aborts is None else self.max_aborts

    @property
    def counts(self) -> tuple[int, int]:
        """n_min and n_max, exact: 0.28 x 25 is 7, although floating point says a little more."""
        low, high = (Fraction(str(bound)) * self.size for bound in self.interval or (0.0, 1.0))
        return ceil(low), floor(high)

    @property
    def ideal(self) -> int:
        """n*: rho* N, halves rounded up."""
        low, high = (Fraction(str(bound)) for bound in self.interval or (0.0, 1.0))
        return floor((low + high) / 2 * self.size + Fraction(1, 2))


PAPER = BarSettings(size=8, budget=16, stride=16)


class Rollout(msgspec.Struct, frozen=True, kw_only=True):
    """A finished rollout. `reward` is None exactly when it was aborted."""

    status: RolloutStatus
    tokens: int | None = 0
    """Tokens of the response; None where an endpoint did not report them."""
    reward: float | None = None
    resolved: bool = False
    """Whether the grader found the task solved; decisions are made by `reward`."""
    cause: str = ""
    """Cause of an abort; empty for a graded rollout."""
    untrained: bool = False
    """Whether its ending is excluded from training: such a rollout comes last into a group, and is left
    out of its batch."""
    protected: Protected | None = None
    """Label of the reward."""

    def __post_init__(self) -> None:
        if (self.reward is None) != (self.status is RolloutStatus.ABORTED):
            raise ValueError("an aborted rollout has no reward, and every other has one")


class Slot(msgspec.Struct, frozen=True, kw_only=True):
    """One slot in a prompt's pool: all attempts for it, oldest first, and whether one runs now."""

    tried: tuple[Rollout, ...] = ()
    running: bool = False


class Assemble(msgspec.Struct, frozen=True, kw_only=True):
    slots: tuple[int, ...]
    """Indices into the pool, positive rollouts first."""
    outcome: GroupOutcome
    positive: int
    degenerate: bool
    """Whether all rewards are equal: its advantages are zero everywhere."""


class Generate(msgspec.Struct, frozen=True, kw_only=True):
    slots: tuple[int, ...]
    """Slots to fill: new ones behind the pool's end, and old ones that were aborted. Empty: only wait."""


class GiveUp(msgspec.Struct, frozen=True, kw_only=True):
    """The prompt fails: infrastructure aborted too many of its rollouts."""

    causes: tuple[str, ...]


Decision = Assemble | Generate | GiveUp
_MEASURED = Assemble(slots=(), outcome=GroupOutcome.IMPOSSIBLE, positive=0, degenerate=True)
"""Decision for an impossible task: a group without members."""


def decide(pool: Sequence[Slot], settings: BarSettings, *, impossible: bool = False) -> Decision:
    """Decide what to do next for a prompt whose rollouts are those of `pool`.

    A stride is judged when all of it is graded: judging earlier would prefer short rollouts. Only rollouts
    that train balance a group; once the budget is used, others complete one. Of an impossible task one
    stride is enough, and its group has no members, however many were aborted.
    """
    aborted = [rollout for slot in pool for rollout in slot.tried if rollout.reward is None]
    graded = {at: rollout for at, slot in enumerate(pool) if (rollout := _result(slot)) is not None}
    if len(aborted) > settings.abort_limit:
        rest = _rest(pool, graded, settings, impossible=impossible)
        return rest or GiveUp(causes=tuple(rollout.cause for rollout in aborted))
    empty = tuple(at for at, slot in enumerate(pool) if not slot.running and at not in graded)
    if empty or len(graded) < len(pool):
        return Generate(slots=empty)
    if pool and impossible:
        return _MEASURED
    if pool and (group := _balanced(graded, settings)) is not None:
        return group
    if len(pool) < settings.budget:
        return Generate(slots=tuple(range(len(pool), len(pool) + settings.step)))
    return _completed(graded, settings)


def _rest(
    pool: Sequence[Slot], graded: dict[int, Rollout], settings: BarSettings, *, impossible: bool
) -> Assemble | Generate | None:
    """The decision once no more rollouts are requested; None: the present ones make no group."""
    if any(slot.running for slot in pool):
        return Generate(slots=())
    if impossible:
        return _MEASURED if graded else None
    if len(graded) < settings.size:
        return None
    return _balanced(graded, settings) or _completed(graded, settings)


def _result(slot: Slot) -> Rollout | None:
    last = slot.tried[-1] if slot.tried and not slot.running else None
    return last if last is not None and last.reward is not None else None


def _balanced(graded: dict[int, Rollout], settings: BarSettings) -> Assemble | None:
    """The group of rollouts that train with positives in the interval; without an interval any."""
    trains = {at: rollout for at, rollout in graded.items() if not rollout.untrained}
    if settings.interval is None:
        return _best_effort(trains, settings) if len(trains) >= settings.size else None
    return _group(trains, settings, *settings.counts, GroupOutcome.BALANCED)


def _completed(graded: dict[int, Rollout], settings: BarSettings) -> Assemble:
    """The group once no more rollouts are requested: one with both classes, of rollouts that train if they
    make one, since a single class carries no gradient; else the best ones."""
    trains = {at: rollout for at, rollout in graded.items() if not rollout.untrained}
    if settings.interval is not None:
        for among in (trains, graded):
            if group := _group(among, settings, 1, settings.size - 1, GroupOutcome.RELAXED):
                return group
    return _best_effort(graded, settings)


def _best_effort(graded: dict[int, Rollout], settings: BarSettings) -> Assemble:
    chosen = ranked(graded)[: settings.size]
    positive = [at for at in chosen if is_positive(graded[at])]
    rest = [at for at in chosen if at not in positive]
    return Assemble(
        slots=(*positive, *rest),
        outcome=GroupOutcome.UNBALANCED if settings.interval else GroupOutcome.FIXED,
        positive=len(positive),
        degenerate=_flat(chosen, graded),
    )


def _group(
    graded: dict[int, Rollout], settings: BarSettings, least: int, most: int, outcome: GroupOutcome
) -> Assemble | None:
    """The group whose number of positives is in [least, most] and nearest to the ideal, in closed form."""
    size = settings.size
    positive = ranked({at: rollout for at, rollout in graded.items() if is_positive(rollout)})
    negative = ranked({at: rollout for at, rollout in graded.items() if not is_positive(rollout)})
    low, high = max(least, size - len(negative)), min(most, len(positive))
    if low > high:
        return None
    count = min(max(settings.ideal, low), high)
    slots = (*positive[:count], *negative[: size - count])
    return Assemble(slots=slots, outcome=outcome, positive=count, degenerate=_flat(slots, graded))


def _flat(slots: Sequence[int], graded: dict[int, Rollout]) -> bool:
    return len({graded[at].reward for at in slots}) == 1


def is_positive(rollout: Rollout) -> bool:
    return rollout.reward is not None and rollout.reward > 0


def ranked(graded: dict[int, Rollout]) -> list[int]:
    """Slots from best to worst: those that train first, completed before truncated, short before long and of
    unknown length, early before late."""

    def rank(at: int) -> tuple[bool, bool, float, int]:
        one = graded[at]
        length = inf if one.tokens is None else one.tokens
        return one.untrained, one.status is not RolloutStatus.COMPLETED, length, at

    return sorted(graded, key=rank)

"""BAR against Algorithm 1 written out as the paper prints it, on random pools."""

import random
from fractions import Fraction
from itertools import islice
from math import ceil, floor

import msgspec
import pytest

from orchard.pipelines.rl.bar import (
    PAPER,
    Assemble,
    BarSettings,
    Decision,
    Generate,
    GiveUp,
    Rollout,
    Slot,
    decide,
    ranked,
)
from orchard.schemas.groups import GroupOutcome
from orchard.schemas.outcomes import RolloutStatus

CALM, LONG = RolloutStatus.COMPLETED, RolloutStatus.TRUNCATED


def graded(reward: float, tokens: int = 10, status: RolloutStatus = CALM) -> Slot:
    return Slot(tried=(Rollout(status=status, tokens=tokens, reward=reward),))


def over(reward: float) -> Slot:
    """Graded, over a limit of an ending that does not train."""
    return Slot(tried=(Rollout(status=LONG, tokens=1, reward=reward, untrained=True),))


def aborted(*causes: str, running: bool = False) -> Slot:
    tried = tuple(Rollout(status=RolloutStatus.ABORTED, cause=cause) for cause in causes)
    return Slot(tried=tried, running=running)


def by_the_book(pool: list[Rollout], settings: BarSettings) -> tuple[GroupOutcome, list[int]] | None:
    """Lines 2 to 28 over a whole pool, stride after stride; None when more is to be generated."""
    assert settings.interval is not None
    rho_min, rho_max = (Fraction(str(bound)) for bound in settings.interval)
    ideal = (rho_min + rho_max) / 2
    taken: list[int] = []
    for stride in range(0, settings.budget, settings.step):
        if stride + settings.step > len(pool):
            return None
        taken += range(stride, stride + settings.step)
        least, most = ceil(rho_min * settings.size), floor(rho_max * settings.size)
        if (group := try_assemble(pool, taken, settings.size, range(least, most + 1), ideal)) is not None:
            return GroupOutcome.BALANCED, group
    relaxed = range(1, settings.size)  # (0, 1): a group needs both classes
    if (group := try_assemble(pool, taken, settings.size, relaxed, ideal)) is not None:
        return GroupOutcome.RELAXED, group
    return GroupOutcome.UNBALANCED, sorted(taken, key=lambda at: rank(pool, at))[: settings.size]


def try_assemble(
    pool: list[Rollout], taken: list[int], size: int, counts: range, ideal: Fraction
) -> list[int] | None:
    positive = sorted((at for at in taken if (pool[at].reward or 0) > 0), key=lambda at: rank(pool, at))
    negative = sorted((at for at in taken if (pool[at].reward or 0) <= 0), key=lambda at: rank(pool, at))
    if len(positive) + len(negative) < size:
        return None
    target = floor(ideal * size + Fraction(1, 2))
    for count in sorted(counts, key=lambda count: abs(count - target)):
        if count <= len(positive) and size - count <= len(negative):
            return positive[:count] + negative[: size - count]
    return None


def rank(pool: list[Rollout], at: int) -> tuple[bool, int, int]:
    return pool[at].status is LONG, pool[at].tokens, at


def random_settings(dice: random.Random) -> BarSettings:
    while True:
        size = dice.randint(2, 16)
        stride = dice.choice([None, 1, 2, size])
        low, high = sorted(dice.choice(range(0, 101, 5)) / 100 for _ in range(2))
        try:
            return BarSettings(
                size=size, budget=size * dice.randint(1, 3), stride=stride, interval=(low, high)
            )
        except ValueError:
            continue


def random_pool(dice: random.Random, settings: BarSettings) -> list[Rollout]:
    strides = dice.randint(0, settings.budget // settings.step)
    chance = dice.random()
    return [
        Rollout(
            status=dice.choice([CALM, CALM, LONG]),
            tokens=dice.randint(1, 6),
            reward=1.0 if dice.random() < chance else dice.choice([-1.0, 0.0]),
        )
        for _ in range(strides * settings.step)
    ]


def ran(pool: list[Rollout], settings: BarSettings) -> tuple[Decision, int]:
    """What `decide` ends with when the pool's rollouts come as it asks for them, and how many it took."""
    supply = iter(pool)
    slots: list[Slot] = []
    while isinstance(decision := decide(slots, settings), Generate):
        assert decision.slots == tuple(range(len(slots), len(slots) + settings.step))
        filled = [Slot(tried=(rollout,)) for rollout in islice(supply, len(decision.slots))]
        if len(filled) < len(decision.slots):
            break
        slots += filled
    return decision, len(slots)


def agree(pool: list[Rollout], settings: BarSettings) -> None:
    decision, used = ran(pool, settings)
    expected = by_the_book(pool, settings)
    if expected is None:
        assert isinstance(decision, Generate), (pool, settings)
        return
    assert isinstance(decision, Assemble), (pool, settings)
    outcome, group = expected
    assert (decision.outcome, sorted(decision.slots)) == (outcome, sorted(group)), (pool, settings)
    rewards = [pool[at].reward or 0.0 for at in decision.slots]
    assert decision.positive == sum(reward > 0 for reward in rewards)
    assert decision.degenerate == (len(set(rewards)) == 1)
    assert used <= settings.budget


@pytest.mark.long
@pytest.mark.parametrize("pools", [20_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_it_equals_the_loop_of_the_paper_on_random_pools(pools: int) -> None:
    dice = random.Random(pools)
    for _ in range(pools):
        settings = random_settings(dice) if dice.random() < 0.8 else PAPER
        agree(random_pool(dice, settings), settings)


@pytest.mark.parametrize("size", [8, 16])
def test_it_equals_the_loop_for_every_number_of_successes_at_the_papers_interval(size: int) -> None:
    settings = BarSettings(size=size, budget=16, stride=16, interval=(0.375, 0.625))
    for successes in range(17):
        pool = [Rollout(status=CALM, tokens=5, reward=1.0 if at < successes else -1.0) for at in range(16)]
        agree(pool, settings)


class TestStrides:
    def test_it_stops_at_the_first_stride_that_balances(self) -> None:
        settings = BarSettings(size=4, budget=12, interval=(0.5, 0.5))
        pool = [graded(1.0), graded(-1.0), graded(1.0), graded(-1.0)]
        decision = decide(pool, settings)
        assert isinstance(decision, Assemble) and decision.outcome is GroupOutcome.BALANCED

    def test_it_asks_for_another_stride_when_one_class_is_short(self) -> None:
        settings = BarSettings(size=4, budget=12, interval=(0.5, 0.5))
        pool = [graded(1.0) for _ in range(4)]
        assert decide(pool, settings) == Generate(slots=(4, 5, 6, 7))

    def test_a_stride_is_not_judged_before_all_of_it_is_graded(self) -> None:
        settings = BarSettings(size=2, budget=4, stride=4, interval=(0.5, 0.5))
        pool = [graded(1.0), graded(-1.0), graded(1.0), Slot(running=True)]
        assert decide(pool, settings) == Generate(slots=())

    def test_asking_again_asks_for_nothing_that_runs(self) -> None:
        assert decide([Slot(running=True)] * 8, BarSettings()) == Generate(slots=())


class TestAborted:
    settings = BarSettings(size=2, budget=2, interval=(0.5, 0.5), max_aborts=2)

    def test_an_aborted_rollout_is_asked_for_again_in_its_slot(self) -> None:
        assert decide([graded(1.0), aborted("sandbox_died")], self.settings) == Generate(slots=(1,))

    def test_it_costs_nothing_of_the_budget_and_is_in_no_group(self) -> None:
        refilled = Slot(tried=(*aborted("sandbox_died").tried, *graded(-1.0).tried))
        decision = decide([graded(1.0), refilled], self.settings)
        assert isinstance(decision, Assemble) and decision.slots == (0, 1)

    def test_too_many_fail_the_prompt_with_their_causes(self) -> None:
        pool = [aborted("sandbox_died", "image_missing"), aborted("llm_unavailable")]
        assert decide(pool, self.settings) == GiveUp(
            causes=("sandbox_died", "image_missing", "llm_unavailable")
        )

    def test_what_is_graded_makes_a_group_before_the_prompt_fails(self) -> None:
        lost = [aborted("sandbox_died", "sandbox_died"), aborted("llm_unavailable")]
        assert decide([graded(1.0), *lost, Slot(running=True)], self.settings) == Generate(slots=())
        found = decide([graded(1.0), *lost, graded(-1.0)], self.settings)
        assert isinstance(found, Assemble) and found.slots == (0, 3)
        relaxed = msgspec.structs.replace(self.settings, size=3, budget=3, interval=(0.3, 0.4))
        found = decide([graded(1.0), graded(1.0), *lost, graded(-1.0)], relaxed)
        assert isinstance(found, Assemble) and found.outcome is GroupOutcome.RELAXED

    def test_the_limit_is_the_budget_where_none_is_given(self) -> None:
        assert BarSettings().abort_limit == 16
        lost = [aborted("sandbox_died")] * 16
        assert isinstance(decide(lost, BarSettings()), Generate)
        assert isinstance(decide([aborted("a", "b"), *lost[1:]], BarSettings()), GiveUp)

    def test_a_reward_and_an_abort_exclude_each_other(self) -> None:
        with pytest.raises(ValueError, match="aborted rollout has no reward"):
            Rollout(status=RolloutStatus.ABORTED, reward=0.0)
        with pytest.raises(ValueError, match="aborted rollout has no reward"):
            Rollout(status=CALM)


class TestUntrained:
    """Rollouts of an ending that does not train: they are graded, and left out of what is trained on."""

    settings = BarSettings(size=8, budget=16, interval=(0.375, 0.625))

    def test_they_do_not_balance_a_group_while_more_can_be_asked_for(self) -> None:
        pool = [graded(1.0)] * 4 + [over(-1.0)] * 4
        assert decide(pool, self.settings) == Generate(slots=tuple(range(8, 16)))
        found = decide([*pool, *[graded(-1.0)] * 8], self.settings)
        assert isinstance(found, Assemble) and found.outcome is GroupOutcome.BALANCED
        assert found.slots == (0, 1, 2, 3, 8, 9, 10, 11)

    def test_a_group_whose_members_all_train_goes_before_one_nearer_to_the_ideal(self) -> None:
        pool = [graded(1.0)] * 12 + [over(-1.0)] * 3 + [graded(-1.0)]
        found = decide(pool, self.settings)
        assert isinstance(found, Assemble) and found.outcome is GroupOutcome.RELAXED
        assert (found.slots[-1], found.positive) == (15, 7)

    def test_they_complete_a_group_once_the_budget_is_used(self) -> None:
        pool = [graded(1.0)] * 4 + [graded(-1.0)] * 2 + [over(-1.0)] * 10
        found = decide(pool, self.settings)
        assert isinstance(found, Assemble) and found.outcome is GroupOutcome.RELAXED
        assert found.slots == (0, 1, 2, 3, 4, 5, 6, 7)

    def test_a_group_of_any_n_waits_for_n_that_train_within_the_budget(self) -> None:
        settings = BarSettings(size=2, budget=4, interval=None)
        assert decide([graded(1.0), over(-1.0)], settings) == Generate(slots=(2, 3))
        found = decide([graded(1.0), over(-1.0), over(1.0), graded(-1.0)], settings)
        assert isinstance(found, Assemble) and found.slots == (0, 3)
        found = decide([graded(1.0), over(-1.0), over(-1.0), over(-1.0)], settings)
        assert isinstance(found, Assemble) and (found.slots, found.outcome) == ((0, 1), GroupOutcome.FIXED)


class TestRanking:
    def test_what_trains_nobody_is_the_last(self) -> None:
        over = Rollout(status=RolloutStatus.TRUNCATED, tokens=1, reward=-1.0, untrained=True)
        long = Rollout(status=RolloutStatus.TRUNCATED, tokens=900, reward=-1.0)
        assert ranked({0: over, 1: long}) == [1, 0]

    def test_completed_goes_before_truncated_and_short_before_long(self) -> None:
        settings = BarSettings(size=2, budget=4, stride=4, interval=(0.5, 0.5))
        pool = [graded(1.0, 1, LONG), graded(1.0, 9), graded(1.0, 3), graded(-1.0)]
        decision = decide(pool, settings)
        assert isinstance(decision, Assemble) and decision.slots == (2, 3)


class TestFixed:
    settings = BarSettings(size=4, budget=4, interval=None)

    def test_every_group_of_n_will_do(self) -> None:
        decision = decide([graded(1.0)] * 3 + [graded(-1.0)], self.settings)
        assert isinstance(decision, Assemble)
        assert (decision.outcome, decision.positive, decision.degenerate) == (GroupOutcome.FIXED, 3, False)

    def test_one_class_is_marked(self) -> None:
        decision = decide([graded(-1.0)] * 4, self.settings)
        assert isinstance(decision, Assemble) and decision.degenerate


class TestSettings:
    @pytest.mark.parametrize(
        ("settings", "sentence"),
        [
            ({"size": 8, "budget": 4}, "budget 4 no less"),
            ({"size": 1}, "size 1 must be 2 or more"),
            ({"size": 4, "budget": 16, "stride": 5}, "must divide"),
            ({"size": 5, "interval": (0.41, 0.5), "budget": 10}, "no group of 5"),
            ({"interval": (0.7, 0.3)}, "no group of 8"),
        ],
    )
    def test_what_fits_no_group_is_refused(self, settings: dict[str, object], sentence: str) -> None:
        with pytest.raises(ValueError, match=sentence):
            BarSettings(**settings)  # type: ignore[arg-type]

    def test_bounds_are_exact(self) -> None:
        assert BarSettings(size=25, budget=25, interval=(0.28, 0.6)).counts == (7, 15)

    def test_halves_round_up(self) -> None:
        assert BarSettings(size=5, budget=5, interval=(0.4, 0.6)).ideal == 3

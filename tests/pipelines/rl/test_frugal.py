"""Frugal sampling as pure functions: the posterior, what is skipped, when a prompt has had enough."""

import random
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchard.pipelines.rl.bar import Generate, GiveUp, Rollout, Slot
from orchard.pipelines.rl.frugal import (
    FrugalSettings,
    Grown,
    OneClass,
    Posterior,
    VersionCounts,
    decide,
    expected_gain,
    information,
    opening,
    posterior,
    visit,
)
from orchard.schemas.groups import SkipReason, StopReason
from orchard.schemas.outcomes import RolloutStatus

SETTINGS = FrugalSettings()
WEIGHTS = st.floats(0.1, 20.0)
SEEN = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 8), st.integers(0, 8)).map(
        lambda found: VersionCounts(found[0], found[1], found[1] + found[2])
    ),
    max_size=12,
)


def rollout(positive: bool) -> Rollout:
    return Rollout(status=RolloutStatus.COMPLETED, reward=1.0 if positive else -1.0)


def graded(marks: str) -> list[Slot]:
    """`+` resolved, `-` not, `x` aborted, `o` not resolved and of an ending that does not train."""
    known = {
        "x": Rollout(status=RolloutStatus.ABORTED, cause="sandbox_died"),
        "o": Rollout(status=RolloutStatus.TRUNCATED, reward=-1.0, untrained=True),
    }
    return [Slot(tried=(known.get(mark) or rollout(mark == "+"),)) for mark in marks]


@given(SEEN, st.randoms(use_true_random=False))
def test_a_posterior_knows_no_order_and_no_batches(seen, chance) -> None:
    """So it is the same however often a coordinator died, and in whatever passes the log was folded."""
    mixed = list(seen)
    chance.shuffle(mixed)
    single = [
        VersionCounts(one.version, int(at < one.positive), 1) for one in mixed for at in range(one.graded)
    ]
    whole = posterior(seen, 31, SETTINGS)
    assert posterior(mixed, 31, SETTINGS) == whole
    parts = posterior(single, 31, SETTINGS)
    assert (parts.alpha, parts.beta) == pytest.approx((whole.alpha, whole.beta))


@given(SEEN, st.integers(31, 60))
def test_what_was_seen_fades_towards_the_prior(seen, version) -> None:
    now, later = (posterior(seen, at, SETTINGS) for at in (version, version + 1))
    for one, other, prior in ((now.alpha, later.alpha, 0.5), (now.beta, later.beta, 0.5)):
        assert other - prior == pytest.approx((one - prior) * SETTINGS.decay)
    assert posterior(seen, 400, SETTINGS).mean == pytest.approx(0.5, abs=1e-3)


@given(WEIGHTS, WEIGHTS, st.integers(1, 8))
def test_what_is_expected_is_the_mean_over_all_that_may_come(alpha, beta, more) -> None:
    belief = Posterior(alpha=alpha, beta=beta)
    chances = dict(belief.predictive(more))
    assert sum(chances.values()) == pytest.approx(1.0)
    assert sum(k * p for k, p in chances.items()) == pytest.approx(more * belief.mean)
    informed = sum(information(k, more) * p for k, p in chances.items())
    assert informed == pytest.approx((more - 1) * belief.learnability), "n rollouts have (n - 1) p (1 - p)"
    assert expected_gain(belief, 0, 0, more) == pytest.approx(informed / more)


def test_information_is_the_sum_of_squares_of_centred_rewards() -> None:
    for size in range(1, 9):
        for rewards in product((0, 1), repeat=size):
            mean = sum(rewards) / size
            assert information(sum(rewards), size) == pytest.approx(sum((r - mean) ** 2 for r in rewards))


@given(st.floats(0.01, 0.99), st.floats(0.0, 0.3), st.integers(0, 4), st.randoms(use_true_random=False))
def test_every_prompt_ends_and_every_graded_rollout_of_a_group_trains(chance, rate, over, dice) -> None:
    """Played to the end at any pass rate: sizes and reasons hold, and no rollout is asked for too much."""
    carried = [rollout(False)] * over
    slots: list[Slot] = []
    while True:
        hits = sum(slot.tried[-1].reward == 1.0 for slot in slots)
        seen = [VersionCounts(3, hits, len(slots) + over)]
        decision = decide(slots, carried, posterior(seen, 3, SETTINGS), rate, SETTINGS)
        if not isinstance(decision, Generate):
            break
        assert decision.slots == tuple(range(len(slots), len(slots) + 4))
        slots += [Slot(tried=(rollout(dice.random() < chance),)) for _ in decision.slots]
        assert len(slots) <= SETTINGS.most
    assert not isinstance(decision, GiveUp)
    if isinstance(decision, Grown):
        assert sorted(decision.slots) == list(range(len(slots)))
        size = len(slots) + decision.carried
        assert SETTINGS.least <= size <= SETTINGS.most and 0 < decision.positive < size
        assert decision.carried == min(over, SETTINGS.most - len(slots))
    else:
        assert hits in (0, len(slots)) and (not over or not hits)
    if decision.reason is StopReason.GAIN_BELOW_RATE:
        assert decision.gain < decision.rate


@pytest.mark.parametrize(
    ("marks", "rate", "found"),
    [
        ("", 0.1, Generate),
        ("----", 0.0, Generate),
        ("----", 0.2, OneClass),
        ("---+", 0.1, Generate),
        ("---+", 0.3, Grown),
        ("--------", 0.0, OneClass),
        ("---x", 0.1, Generate),
        ("-+-" + "x", 0.0, Generate),
        ("++oo", 0.1, Generate),
        ("++oo-+++", 0.1, Grown),
        ("++oo++++", 0.1, OneClass),
    ],
)
def test_another_stride_is_asked_for_while_it_is_worth_more_than_a_new_prompt(marks, rate, found) -> None:
    hits, misses = marks.count("+"), marks.count("-") + marks.count("o")
    belief = posterior([VersionCounts(0, hits, hits + misses)], 0, SETTINGS)
    assert type(decide(graded(marks), [], belief, rate, SETTINGS)) is found


def test_aborts_end_a_prompt_with_the_group_that_is_there_or_its_causes() -> None:
    settings = FrugalSettings(max_aborts=0)
    belief = Posterior(alpha=1.0, beta=1.0)
    group = decide(graded("--++x"), [], belief, 0.0, settings)
    assert isinstance(group, Grown)
    assert (group.reason, set(group.slots)) == (StopReason.ABORTS, {0, 1, 2, 3})
    assert decide(graded("-+x"), [], belief, 0.0, settings) == GiveUp(causes=("sandbox_died",))


def test_skips_are_as_frequent_as_they_say_and_no_task_is_forgotten() -> None:
    hopeless = posterior([VersionCounts(0, 0, 40)], 0, SETTINGS)
    row, rows, skips = 0, [], 0
    for number in range(4_000):
        found = visit(hopeless, SETTINGS, seed=f"7:{number}", skipped_in_a_row=row)
        assert found == visit(hopeless, SETTINGS, seed=f"7:{number}", skipped_in_a_row=row)
        if found is None:
            rows.append(row)
            row = 0
            continue
        assert (found.reason, found.probability) == (SkipReason.NEAR_ZERO, 1 - opening(hopeless, SETTINGS))
        row, skips = row + 1, skips + 1
    assert max(rows) == SETTINGS.coverage
    free = [one for one in rows if one < SETTINGS.coverage]
    assert skips / (skips + len(free)) == pytest.approx(1 - opening(hopeless, SETTINGS), abs=0.02)
    sure = Posterior(alpha=30.0, beta=0.5)
    found = visit(
        sure,
        SETTINGS,
        seed=next(s for s in map(str, range(99)) if random.Random(s).random() > 0.9),
        skipped_in_a_row=0,
    )
    assert found is not None and found.reason is SkipReason.NEAR_ONE
    unknown = Posterior(alpha=0.5, beta=0.5)
    assert opening(unknown, SETTINGS) == 1.0


@pytest.mark.parametrize(
    "given", [{"least": 8, "most": 4}, {"stride": 3}, {"give_up": 2}, {"aim": 0.3}], ids=str
)
def test_quantities_that_make_no_group_are_refused(given) -> None:
    with pytest.raises(ValueError):
        FrugalSettings(**given)

"""Scores against their definitions."""

from itertools import combinations, product
from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchard.pipelines.campaigns.scores import (
    Tally,
    interval,
    leaderboard,
    paired_difference,
    pass_all,
    pass_at,
    score,
)


@given(st.integers(1, 7).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
def test_pass_at_k_and_pass_all_k_are_the_share_of_all_draws_of_k(case: tuple[int, int, int]) -> None:
    graded, resolved, k = case
    tally = Tally(graded=graded, resolved=resolved)
    draws = list(combinations([True] * resolved + [False] * (graded - resolved), k))
    assert pass_at(tally, k) == pytest.approx(sum(map(any, draws)) / len(draws))
    assert pass_all(tally, k) == pytest.approx(sum(map(all, draws)) / len(draws))


def test_every_task_counts_once_however_many_rollouts_it_has() -> None:
    assert score([Tally(graded=10, resolved=10), Tally(graded=1, resolved=0)]).value == 0.5


def test_tasks_with_too_few_rollouts_are_left_out() -> None:
    found = score([Tally(graded=4, resolved=4), Tally(graded=1, resolved=0)], k=2)
    assert (found.value, found.tasks) == (1.0, 1)
    with pytest.raises(ValueError, match="no task has 5 graded rollouts"):
        score([Tally(graded=4, resolved=4)], k=5)


def test_the_interval_holds_the_mean_and_narrows_with_the_number_of_tasks() -> None:
    few, many = (score([Tally(graded=1, resolved=i % 2) for i in range(n)]) for n in (10, 1000))
    for found in (few, many):
        assert found.low <= found.value <= found.high
    assert many.high - many.low < (few.high - few.low) / 5


def test_pairs_show_a_small_steady_difference_that_two_means_would_hide() -> None:
    first = [index / 100 for index in range(100)]
    found = paired_difference(first, [value + 0.05 for value in first])
    assert 0 < found.low < 0.05 < found.high < 0.1


def test_equal_values_of_few_tasks_are_no_certainty() -> None:
    all_resolved = score([Tally(graded=1, resolved=1)] * 36)
    assert all_resolved.value == all_resolved.high == 1.0 and 0.85 < all_resolved.low < 0.93
    both_gained = paired_difference([0.0, 0.0], [1.0, 1.0])
    assert both_gained.low < 0 < both_gained.high


@pytest.mark.parametrize("tasks", [1, 2, 3, 5, 8, 12, 20, 29, 30, 36, 50, 100])
def test_the_interval_of_a_rate_holds_the_truth(tasks: int) -> None:
    """In at least 93 % of campaigns, whatever the rate; computed, not drawn."""
    bounds = [interval([1.0] * resolved + [0.0] * (tasks - resolved)) for resolved in range(tasks + 1)]
    for rate in (0.002, *(place / 50 for place in range(1, 50)), 0.03, 0.97, 0.994, 0.998):
        held = sum(
            comb(tasks, resolved) * rate**resolved * (1 - rate) ** (tasks - resolved)
            for resolved, (low, high) in enumerate(bounds)
            if low <= rate <= high
        )
        assert held > 0.93, rate


@pytest.mark.parametrize("tasks", [1, 2, 3, 5, 8, 12, 20, 30])
def test_the_interval_of_a_difference_holds_the_truth(tasks: int) -> None:
    found = {
        (gained, lost): paired_difference(
            [0.0] * gained + [1.0] * lost + [0.0] * (tasks - gained - lost),
            [1.0] * gained + [0.0] * lost + [0.0] * (tasks - gained - lost),
        )
        for gained in range(tasks + 1)
        for lost in range(tasks + 1 - gained)
    }
    for gain, loss in product((0.0, 0.01, 0.1, 0.3, 0.5, 0.7, 0.97), (0.0, 0.03, 0.1, 0.3, 0.5)):
        if gain + loss > 1:
            continue
        held = sum(
            comb(tasks, gained)
            * comb(tasks - gained, lost)
            * gain**gained
            * loss**lost
            * max(0.0, 1 - gain - loss) ** (tasks - gained - lost)
            for (gained, lost), each in found.items()
            if each.low - 1e-9 <= gain - loss <= each.high + 1e-9
        )
        assert held > 0.93, (gain, loss)


def test_the_interval_of_tasks_with_several_rollouts_is_narrower() -> None:
    """Equally many tasks and the same mean, but rates that differ less from task to task."""
    one = score([Tally(graded=1, resolved=index % 2) for index in range(60)])
    several = score([Tally(graded=4, resolved=1 + 2 * (index % 2)) for index in range(60)])
    assert several.value == one.value
    assert several.high - several.low < 0.7 * (one.high - one.low)


def test_an_impossible_count_is_refused() -> None:
    with pytest.raises(ValueError, match="3 of 2"):
        Tally(graded=2, resolved=3)


@given(st.lists(st.lists(st.sampled_from([True, False, None]), max_size=6), max_size=5), st.integers(1, 4))
def test_a_leaderboard_counts_the_first_trials_with_an_outcome(
    trials: list[list[bool | None]], k: int
) -> None:
    board = leaderboard(trials, k)
    any_of = all_of = tasks = 0
    for task in trials:
        passed: list[bool] = []
        for trial in task:
            if trial is not None and len(passed) < k:
                passed.append(trial)
        if len(passed) < k:
            continue
        tasks += 1
        any_of += True in passed
        all_of += False not in passed
    assert (board.tasks, board.short) == (tasks, len(trials) - tasks)
    assert board.errored == sum(trial is None for task in trials for trial in task)
    assert (board.any_of, board.all_of) == ((any_of / tasks, all_of / tasks) if tasks else (None, None))

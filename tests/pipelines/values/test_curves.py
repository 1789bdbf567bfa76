"""Credits and segments against definitions by brute force, and the indexing that must not be off by one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchard.pipelines.values.curves import (
    EPS,
    TOLERANCE,
    Curve,
    RiseSegment,
    credits,
    interpolate,
    lost_rises,
    rise_segments,
    shape,
    shape_statistics,
)

PROBABILITY = st.integers(0, 100).map(lambda percent: percent / 100)
CURVES = st.lists(PROBABILITY, min_size=1, max_size=40)


@st.composite
def key_steps(draw: st.DrawFn) -> tuple[float, dict[int, float], int]:
    steps = draw(st.integers(1, 60))
    keys = draw(st.dictionaries(st.integers(0, steps - 1), PROBABILITY, max_size=12))
    return draw(PROBABILITY), keys, steps


@given(key_steps())
def test_interpolation_is_the_line_between_neighbouring_points(
    given: tuple[float, dict[int, float], int],
) -> None:
    base, keys, steps = given
    points = {-1: base, **keys}
    curve = interpolate(base, keys, steps)
    assert len(curve) == steps
    for t, value in enumerate(curve):
        before = max(step for step in points if step <= t)
        after = min((step for step in points if step >= t), default=None)
        if after is None or after == before:
            expected = points[before]
        else:
            share = (t - before) / (after - before)
            expected = (1 - share) * points[before] + share * points[after]
        assert value == pytest.approx(expected, abs=1e-12)


@given(PROBABILITY, CURVES)
def test_credits_add_up_to_the_whole_change(base: float, curve: list[float]) -> None:
    found = credits(base, curve)
    assert len(found) == len(curve)
    assert sum(found) == pytest.approx(curve[-1] - base, abs=1e-9)
    assert all(credit == curve[t] - (curve[t - 1] if t else base) for t, credit in enumerate(found))


@given(PROBABILITY, CURVES, st.sets(st.integers(0, 39), max_size=4), st.sampled_from([0.01, EPS, 0.2]))
def test_segments_are_the_maximal_runs_of_rising_actions(
    base: float, curve: list[float], barren: set[int], eps: float
) -> None:
    full = [base, *curve]

    def rises(t: int) -> bool:
        return 0 <= t < len(curve) and t not in barren and full[t + 1] - full[t] >= eps - TOLERANCE

    expected = [
        RiseSegment(first, last)
        for first in range(len(curve))
        for last in range(first, len(curve))
        if all(map(rises, range(first, last + 1))) and not rises(first - 1) and not rises(last + 1)
    ]
    assert rise_segments(base, curve, eps=eps, barren=barren) == expected
    closed = rise_segments(base, curve, eps=eps, barren=barren, convention="paper-closed")
    trained = {t for run in expected for t in range(run.first, run.last + 1)}
    leading = {run.first - 1 for run in expected if run.first > 0} - barren
    assert {t for run in closed for t in range(run.first, run.last + 1)} == trained | leading


def test_a_curve_that_drops_at_the_bad_edit_blames_the_bad_edit_and_credits_the_good_one() -> None:
    """Step 2 opens the right file (0.4 to 0.7), step 3 makes the bad edit (0.7 to 0.1)."""
    base, curve = 0.4, interpolate(0.4, {1: 0.4, 2: 0.7, 3: 0.1}, 6)
    found = credits(base, curve)
    assert found[2] == pytest.approx(0.3)
    assert found[3] == pytest.approx(-0.6)
    assert rise_segments(base, curve) == [RiseSegment(2, 2)]
    assert rise_segments(base, curve, convention="paper-closed") == [RiseSegment(1, 2)]


def test_a_rise_of_exactly_eps_counts_in_floating_point() -> None:
    assert EPS > 0.45 - 0.40
    assert rise_segments(0.40, [0.45]) == [RiseSegment(0, 0)]


def test_the_first_action_can_earn_and_the_submission_never_does() -> None:
    assert rise_segments(0.4, [0.6, 0.5, 0.9], barren={2}) == [RiseSegment(0, 0)]
    assert rise_segments(0.4, [0.4, 0.6], barren={0}, convention="paper-closed") == [RiseSegment(1, 1)]


def test_rises_spread_over_too_many_steps_are_counted_as_lost() -> None:
    assert lost_rises(0.4, {9: 0.7}) == 1
    assert lost_rises(0.4, {5: 0.7}) == 0
    assert lost_rises(0.4, {0: 0.5, 10: 0.8, 12: 0.1}) == 1
    assert rise_segments(0.4, interpolate(0.4, {9: 0.7}, 12)) == []


def test_shapes() -> None:
    hill = shape(0.4, [0.5, 0.7, 0.3, 0.1])
    assert (hill.inverted_u, hill.unimodal, hill.peak, hill.peak_position) == (True, True, 1, 0.5)
    assert not shape(0.4, [0.3, 0.2, 0.1]).inverted_u
    assert not shape(0.4, [0.5, 0.6, 0.7]).inverted_u
    twice = shape(0.4, [0.6, 0.3, 0.8, 0.1])
    assert twice.inverted_u and not twice.unimodal


def test_statistics_of_an_annotator() -> None:
    curves = [Curve(0.4, {0: 0.5, 1: 0.6, 3: 0.1}, 4), Curve(0.4, {0: 0.3, 3: 0.1}, 4)]
    found = shape_statistics(curves)
    assert found is not None
    assert (found.curves, found.inverted_u, found.segments, found.without_segment) == (2, 0.5, 1, 1)
    assert found.segment_length == 2
    assert shape_statistics([]) is None

"""Attempt numbers are unique over all queue entries of a rollout."""

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from orchard.schemas.campaigns import RolloutRequest
from orchard.streams.attempts import attempt_number, next_attempt_base, renewed, reopened


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(1, 5)), min_size=1, max_size=8))
def test_no_two_deliveries_of_any_entry_share_a_number(entries: list[tuple[int, int]]) -> None:
    """Each entry is (deliveries that happened, max_deliver when it was replaced)."""
    base, seen = 0, []
    for deliveries, max_deliver in entries:
        seen += [attempt_number(base, number) for number in range(1, max(deliveries, max_deliver) + 1)]
        base = next_attempt_base(base, deliveries, max_deliver)

    assert len(seen) == len(set(seen))
    assert seen == sorted(seen)


def test_a_renewed_request_is_the_same_rollout_above_the_old_attempts(
    make_request: Callable[[int], RolloutRequest],
) -> None:
    request = make_request(0)

    again = renewed(request, deliveries=1, max_deliver=3)

    assert (again.attempt_base, again.rollout_id) == (3, request.rollout_id)


def test_a_reopened_request_is_fenced_fresh_and_above_the_newest_attempt(
    make_request: Callable[[int], RolloutRequest],
) -> None:
    again = reopened(make_request(0), deliveries=3, max_deliver=3, fence=17, last_attempt=9)

    assert (again.attempt_base, again.fence, again.failures) == (9, 17, 0)

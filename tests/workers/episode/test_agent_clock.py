"""The clock of a program: what it waits for takes nothing of its time, and calls side by side count once."""

from typing import Any

import pytest

from orchard.workers.episode import agent_clock
from orchard.workers.episode.agent_clock import AgentClock, length


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets the time, from 0."""
    now = [0.0]
    monkeypatch.setattr(agent_clock, "_now", lambda: now[0])

    def at(seconds: float) -> None:
        now[0] = seconds

    return at


def test_it_stands_while_an_answer_is_waited_for_and_counts_how_long_the_model_worked(at: Any) -> None:
    clock = AgentClock()
    at(5)
    with clock.call() as call:
        at(1505)  # refusals
        assert clock.seconds == 5
        at(1515)
        call.worked(10)
        at(1516)  # storage
    assert clock.seconds == 15
    at(1520)
    assert clock.seconds == 19


def test_calls_side_by_side_count_once(at: Any) -> None:
    clock = AgentClock()
    calls = [clock.call() for _ in range(4)]
    timed = [call.__enter__() for call in calls]
    at(10)
    for one, call in zip(timed, calls, strict=True):
        one.worked(10)
        call.__exit__(None, None, None)
    assert clock.seconds == 10


def test_it_goes_on_while_the_model_works_for_one_and_another_waits(at: Any) -> None:
    clock = AgentClock()
    with clock.call():  # never answered
        at(10)
        for began in (10, 30):
            at(began)
            with clock.call() as one:
                at(began + 5)
                one.worked(5)
        assert clock.seconds == 10
        at(100)
    assert clock.seconds == 10
    at(101)
    assert clock.seconds == 11


@pytest.mark.parametrize(
    ("intervals", "union"),
    [
        ([], 0.0),
        ([(0, 2), (1, 3)], 3.0),
        ([(4, 5), (0, 10), (2, 3)], 10.0),
        ([(0, 1), (2, 3)], 2.0),
        ([(1, 1)], 0.0),
    ],
)
def test_the_length_of_a_union(intervals: list[tuple[float, float]], union: float) -> None:
    assert length(intervals) == union

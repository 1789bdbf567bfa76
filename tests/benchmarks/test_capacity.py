"""docs/scale.md says what the model says, and the model what queueing theory does."""

import pytest

from tests.benchmarks import capacity


@pytest.mark.long
def test_the_pages_tables_are_those_of_todays_figures() -> None:
    page = capacity.PAGE.read_text()
    assert capacity.filled(page, capacity.tables()) == page, (
        "run `python -m tests.benchmarks.capacity --write`"
    )


def test_the_page_names_the_weakest_part() -> None:
    weakest = capacity.parts(capacity.Figures())[0]
    assert weakest.name == "event stream, fsync before each answer" and weakest.share > 1


@pytest.mark.long
@pytest.mark.parametrize("events_a_second", [200.0, 425.0, 1_000.0, 3_000.0, 10_000.0])
def test_the_simulation_keeps_to_the_bounds_of_closed_queues(events_a_second: float) -> None:
    """Rollouts a day are the least of what the stream stores and of what unhindered rollouts would be, and a
    turn waits by Little's law (asymptotic bounds, Denning and Buzen 1978)."""
    found = capacity.simulate(events_a_second, seconds=900.0)
    stored = events_a_second / capacity.EVENTS * capacity.DAY
    assert found.rollouts_a_day == pytest.approx(min(stored, capacity.ROLLOUTS_A_DAY), rel=0.02)
    think = capacity.HOLD / capacity.TURNS
    turns = found.rollouts_a_day / capacity.DAY * capacity.TURNS
    assert found.wait + think == pytest.approx(capacity.SANDBOXES / turns, rel=0.02)


def test_parts_of_a_page_that_are_not_there_are_named() -> None:
    with pytest.raises(ValueError, match="goals"):
        capacity.filled("# A page", {"goals": ""})

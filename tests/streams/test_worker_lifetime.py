"""All slots of a process stop claiming together."""

import pytest

from orchard.streams.consumer import WorkerLifetime


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_one_slot_at_work_keeps_the_idle_ones_open(clock: Clock) -> None:
    lifetime = WorkerLifetime(idle=10.0, now=clock)
    with lifetime.at_work():
        clock.seconds = 1000.0
        assert lifetime.go_on()
    clock.seconds = 1009.0
    assert lifetime.go_on()
    clock.seconds = 1010.0
    assert not lifetime.go_on()


def test_what_is_over_stays_over_for_every_slot(clock: Clock) -> None:
    lifetime = WorkerLifetime(idle=10.0, now=clock)
    clock.seconds = 10.0
    assert not lifetime.go_on()
    with lifetime.at_work():  # was claimed in the same moment
        assert lifetime.over.is_set() and not lifetime.go_on()


def test_age_ends_a_busy_one_too(clock: Clock) -> None:
    lifetime = WorkerLifetime(age=60.0, now=clock)
    with lifetime.at_work():
        clock.seconds = 59.0
        assert lifetime.go_on()
        clock.seconds = 60.0
        assert not lifetime.go_on()


def test_without_limits_only_being_told_ends_it(clock: Clock) -> None:
    lifetime = WorkerLifetime(now=clock)
    clock.seconds = 1e9
    assert lifetime.go_on()
    lifetime.end()
    assert not lifetime.go_on()

"""Decisions of the model client as functions of numbers: the window, the pause, the meaning of a refusal."""

import asyncio
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchard.workers.llm.concurrency import ConcurrencyLimit, Window, grown, shrunk
from orchard.workers.llm.known_errors import meaning
from orchard.workers.llm.refusals import (
    LONGEST_PAUSE,
    ErrorBody,
    Meaning,
    error_body,
    pause,
    retry_after,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def test_a_full_window_of_answers_adds_one_place():
    window = Window(limit=4.0, ceiling=32)
    for _ in range(5):
        window = grown(window)
    assert window.places == 5


def test_a_throttled_call_halves_the_window():
    assert shrunk(Window(limit=9.0, ceiling=32), busy=9, started=0.0, now=1.0).places == 4


def test_a_burst_of_refusals_is_one_cut():
    window = Window(limit=16.0, ceiling=16)
    for _ in range(10):
        window = shrunk(window, busy=16, started=5.0, now=6.0)
    assert window.places == 8


def test_a_call_that_set_off_after_the_cut_cuts_again():
    window = shrunk(Window(limit=16.0, ceiling=16), busy=16, started=5.0, now=6.0)
    assert shrunk(window, busy=8, started=7.0, now=8.0).places == 4


@given(st.lists(st.none() | st.integers(0, 60), max_size=300), st.integers(1, 50))
def test_the_window_stays_between_one_and_its_ceiling(refused, ceiling):
    """Each is an answer (None), or a refusal while so many calls were under way."""
    window = Window(limit=float(ceiling), ceiling=ceiling)
    for number, busy in enumerate(refused):
        if busy is None:
            window = grown(window)
        else:
            window = shrunk(window, busy=busy, started=number, now=number + 0.5)
        assert 1 <= window.places <= ceiling


def test_a_steady_endpoint_is_found_by_growing_and_cutting():
    """An endpoint that refuses above 10 calls at once is kept busy with 5 to 11 of 64."""
    window = Window(limit=64.0, ceiling=64)
    seen = []
    for number in range(2000):
        busy = window.places
        window = shrunk(window, busy=busy, started=number, now=number + 0.5) if busy > 10 else grown(window)
        seen.append(window.places)
    assert min(seen[200:]) >= 5 and max(seen[200:]) <= 11


async def test_a_refusal_binds_a_worker_that_has_fewer_slots_than_places():
    limit = ConcurrencyLimit(32)
    async with limit.place(), limit.place(), limit.place(), limit.place():
        limit.throttled(started=0.0, now=1.0)
        assert limit.window.places == 2
        fifth = asyncio.create_task(limit.place().__aenter__())
        await asyncio.sleep(0)
        assert limit.busy == 4
    await fifth
    assert limit.busy == 1


async def test_a_cancelled_waiter_leaves_its_turn_to_others():
    limit = ConcurrencyLimit(1)
    passed = []

    async def enter(name):
        async with limit.place():
            passed.append(name)

    async with limit.place():
        first, second = asyncio.create_task(enter("first")), asyncio.create_task(enter("second"))
        await asyncio.sleep(0)
        first.cancel()
    await second
    assert passed == ["second"]
    assert limit.busy == 0


@given(st.integers(1, 10_000), st.floats(0, 1))
def test_pauses_double_up_to_a_limit(tries, jitter):
    assert 0 < pause(tries, None, jitter) <= LONGEST_PAUSE
    assert pause(tries, None, jitter) <= pause(tries + 1, None, 1.0)


def test_a_pause_is_never_shorter_than_asked_for():
    assert pause(1, 12.5, 0.0) == 12.5


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after-ms": "1500", "retry-after": "2"}, 1.5),
        ({"retry-after": "Thu, 01 Jan 2026 00:01:00 GMT"}, 60.0),
        ({"retry-after": "Thu, 01 Jan 2020 00:00:00 GMT"}, 0.0),
        ({"retry-after": "soon"}, None),
    ],
)
def test_retry_after_in_all_its_forms(headers, seconds):
    assert retry_after(headers, NOW) == seconds


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (400, ErrorBody(message="bad temperature"), Meaning.REFUSED),
        (400, ErrorBody(code="context_length_exceeded"), Meaning.CONTEXT_EXCEEDED),
        (401, ErrorBody(message="maximum context length"), Meaning.REFUSED),
        (404, ErrorBody(), Meaning.REFUSED),
        (408, ErrorBody(), Meaning.TRANSIENT),
        (409, ErrorBody(), Meaning.TRANSIENT),
        (429, ErrorBody(), Meaning.THROTTLED),
        (429, ErrorBody(code="insufficient_quota"), Meaning.REFUSED),
        (500, ErrorBody(), Meaning.TRANSIENT),
        (529, ErrorBody(), Meaning.TRANSIENT),
    ],
)
def test_meanings(status, body, expected):
    assert meaning(status, body) is expected


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"error": {"message": "a", "code": 5}}, "a"),
        ({"message": "b"}, "b"),
        ({"detail": "c"}, "c"),
        ({"error": "d"}, "d"),
        ([{"error": {"message": "of a list"}}], "of a list"),
        ({"error": {"message": "m", "metadata": {"raw": "from behind"}}}, "m: from behind"),
        ({"error": None, "message": "beside"}, "beside"),
        ("e", "e"),
        (None, ""),
    ],
)
def test_error_bodies_of_all_shapes_are_read(raw, message):
    assert error_body(raw).message == message

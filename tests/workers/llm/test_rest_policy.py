"""When an endpoint rests and for how long: the decisions alone."""

from math import inf

import msgspec
import pytest

from orchard.pipelines.campaigns.breaking import BREAKS_AT, UNLIKE_BREAKS_AT, broken
from orchard.schemas.blobs import BlobRef
from orchard.schemas.campaigns import ModelSpec, RolloutRequest, TaskRef
from orchard.schemas.rests import Rest
from orchard.streams.endpoints import stored_rest
from orchard.streams.records import StoredMessage
from orchard.workers.attempts.refusal_counts import counted
from orchard.workers.llm.rest_policy import (
    GRACE_SECONDS,
    HELD_SECONDS,
    LONGEST_ASKED,
    LONGEST_PAUSE,
    LONGEST_RELAPSE,
    RefusalStreak,
    asks_in,
    begins,
    begun,
    is_held,
    prolonged,
    refused,
    rest_key,
)
from orchard.workers.llm.settings import EndpointSettings

REST = Rest(endpoint="e", model="m", reason="answered 429: slow down", seconds=1.0, prober="one")


def row(*calls: tuple[float, float]) -> RefusalStreak:
    """After refusals of calls that set off and came back at these times."""
    found = RefusalStreak()
    for started, now in calls:
        found = refused(found, started=started, now=now)
    return found


def test_a_burst_of_refusals_is_one() -> None:
    assert row((0, 1), (0, 1.1), (0.5, 1.2)).count == 1
    assert row((0, 1), (1.5, 2)) == RefusalStreak(2, since=1, last=2)


@pytest.mark.parametrize(
    ("calls", "asked", "spent", "earliest", "rests"),
    [
        ([(0, 1)], None, False, inf, False),  # one refusal
        ([(0, 1), (2, 3)], None, False, inf, True),  # a second one, later
        (
            [(0, 1), (2, 3)],
            None,
            False,
            0.5,
            False,
        ),  # a call of an earlier time is under way: it may be answered
        ([(0, 1), (2, 3)], None, False, 1.5, True),  # that one set off after the first refusal
        ([(0, 1)], HELD_SECONDS, False, 0.5, True),  # it says to wait
        ([(0, 1)], 1.0, False, inf, False),  # for so short a time each call waits by itself
        ([(0, 1)], None, True, 0.5, True),  # a call has tried as often as it may
    ],
)
def test_what_begins_a_rest(
    calls: list[tuple[float, float]], asked: float | None, spent: bool, earliest: float, rests: bool
) -> None:
    assert begins(row(*calls), asked=asked, spent=spent, earliest=earliest) is rests


def pauses(number: int, servers: int = 1) -> list[float]:
    rest, found = REST, []
    for _ in range(number):
        rest = prolonged(rest, reason="", asked=None, servers=servers)
        found.append(rest.seconds)
    return found


def test_questions_come_at_growing_distances_up_to_one_by_which_its_return_is_soon_noticed() -> None:
    assert pauses(5) == [2, 4, LONGEST_PAUSE, LONGEST_PAUSE, LONGEST_PAUSE]
    assert LONGEST_PAUSE < 10


@pytest.mark.parametrize("servers", [1, 3, 100])
def test_less_than_one_question_a_second_goes_to_all_servers_together(servers: int) -> None:
    assert min(pauses(10_000, servers)) > 1.0


def test_what_the_endpoint_asks_for_is_kept_up_to_a_bound() -> None:
    for asked, seconds in ((120.0, 120.0), (0.1, 2.0), (10.0**9, LONGEST_ASKED)):
        assert prolonged(REST, reason="", asked=asked).seconds == seconds
        first = begun(None, endpoint="e", model="m", reason="", asked=asked, prober="p")
        assert first.seconds == max(min(asked, LONGEST_ASKED), 1.0)


def test_an_endpoint_that_answers_the_question_and_refuses_the_calls_is_asked_ever_less() -> None:
    rest, seconds = None, []
    for _ in range(5):
        rest = begun(rest, endpoint="e", model="m", reason="", asked=None, prober="p")
        seconds.append(rest.seconds)
    assert seconds == [1, 4, 16, LONGEST_RELAPSE, LONGEST_RELAPSE]


def test_one_process_asks_and_another_one_only_where_that_is_silent() -> None:
    assert asks_in(REST, left=2.0, me="one", jitter=1.0) == 2.0
    others = [asks_in(REST, left=2.0, me="two", jitter=jitter) for jitter in (0.0, 1.0)]
    assert others == [2.0 + GRACE_SECONDS, 2.0 + 2 * GRACE_SECONDS]
    assert asks_in(REST, left=-100.0, me="two", jitter=0.0) == GRACE_SECONDS


def test_a_call_waits_in_its_place_for_a_short_rest_only() -> None:
    assert is_held(age=0.0, left=1.0)
    assert not is_held(age=0.0, left=3600.0)
    assert not is_held(age=HELD_SECONDS, left=1.0)


def test_equal_refusals_in_a_row_are_counted_up_to_the_breaker() -> None:
    model = ModelSpec(name="m")
    task = TaskRef(task_id="t", source="s", repo="r", blob=BlobRef(sha256="0" * 64, size=1))
    request = RolloutRequest(rollout_id="0" * 24, campaign="c", task=task, harness="h", model=model, sample=0)
    record = None
    for number in range(1, BREAKS_AT + 1):
        assert record is None or broken(record) == ""
        record = counted(record, request, f"answered 404: no model m (request req-{number}f7, 1.{number} s)")
        assert record.count == number
    assert record is not None and "refused by model 'm': answered 404" in broken(record)
    assert counted(record, request, "answered 401: no").count == 1
    served = msgspec.structs.replace(record, count=0)
    assert counted(served, request, record.reason).count == 1

    mixed = None
    for number in range(UNLIKE_BREAKS_AT):
        assert mixed is None or broken(mixed) == ""
        mixed = counted(mixed, request, "answered 403: none" if number % 2 else "answered 401: no")
    assert mixed is not None and "20 rollouts in a row were refused by model 'm': the last: " in broken(mixed)
    assert broken(msgspec.structs.replace(mixed, count=0)) == ""
    assert broken(counted(msgspec.structs.replace(mixed, count=0), request, "answered 401: no")) == ""


def test_a_rest_is_no_longer_than_it_was_told_where_the_servers_clock_goes_back() -> None:
    """As where another server of the cluster leads."""
    told = msgspec.json.encode(msgspec.structs.replace(REST, seconds=5.0))
    record = StoredMessage(sequence=1, subject="rest.k", nanoseconds=10**18, headers={}, data=told)
    stored = stored_rest(record, msgspec.json.decode(told, type=Rest), now=10**9 - 3600.0)
    assert (stored.left, stored.age) == (5.0, 0.0)


def test_an_endpoint_is_known_by_its_servers_and_the_name_of_its_key() -> None:
    one = EndpointSettings(base_url="http://a/v1", replicas=("http://b/v1",), api_key_env="KEY")
    same = EndpointSettings(
        base_url="http://b/v1/", replicas=("http://a/v1", "http://b/v1"), api_key_env="KEY"
    )
    assert rest_key(one, "h1") == rest_key(same, "h2")
    others = [
        EndpointSettings(base_url="http://a/v1", replicas=("http://b/v1",), api_key_env="OTHER"),
        EndpointSettings(base_url="http://a/v1", replicas=("http://b/v1",)),
        EndpointSettings(base_url="http://a/v1", api_key_env="KEY"),
    ]
    own = EndpointSettings(base_url="http://127.0.0.1:8000/v1")  # each host has another server there
    assert rest_key(own, "h1") != rest_key(own, "h2")
    assert len({rest_key(each, "h1") for each in (one, *others)}) == 4

"""The order of the labels of rewards, and what a missing label counts as."""

from datetime import UTC, datetime
from itertools import pairwise

import msgspec

from orchard.schemas.events import Event, TaskValidated, payload
from orchard.schemas.outcomes import Reward
from orchard.schemas.protection import Protected, is_at_least


def test_labels_are_declared_strongest_first() -> None:
    assert [*Protected] == ["value", "echo", "bit", "inside", "forgeable"]
    for stronger, weaker in pairwise(Protected):
        assert is_at_least(stronger, weaker) and is_at_least(weaker, weaker)
        assert not is_at_least(weaker, stronger)


def test_a_missing_label_counts_as_inside() -> None:
    assert [label for label in Protected if is_at_least(None, label)] == ["inside", "forgeable"]


def test_events_of_before_there_were_labels_have_none() -> None:
    verdict = {"task_id": "t", "task_hash": "h", "runs": 1, "seconds": 1.0, "without_canary": ["test_a"]}
    event = Event(
        id="i",
        source="orchard/test",
        type="task.validated",
        subject="tasks/t",
        time=datetime(2026, 1, 1, tzinfo=UTC),
        dataschema="",
        campaign="tasks",
        data=msgspec.Raw(msgspec.json.encode(verdict)),
    )
    read = payload(event)
    assert isinstance(read, TaskValidated) and (read.protected, read.protected_tests) == (None, {})
    assert msgspec.convert({"value": 1.0, "resolved": True, "grader": "g"}, Reward).protected is None

"""Tasks of plug-ins: what is none costs itself, and is named with its reason."""

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest

from orchard.pipelines.tasks.errors import TaskError
from orchard.pipelines.tasks.left_out import SHOWN, LeftOut, NotImported, insist
from orchard.pipelines.tasks.sources import tasks_of
from orchard.schemas.tasks import PluginGrading, StateCheck, Task


def task(name: str, **more: Any) -> Task:
    given = {"source": "s", "repo": "r", "image": "host", "statement": name}
    return Task(task_id=name, **{**given, "grading": StateCheck(files={}, command="true"), **more})


class Source:
    """Yields what it was made with."""

    def __init__(self, *items: Any) -> None:
        self._items = items

    def tasks(self, year: str = "") -> Iterator[Task]:
        """See TaskSource."""
        del year
        yield from self._items


def test_what_is_no_task_is_left_out_and_the_others_come() -> None:
    nobody = PluginGrading(grader="nobody", settings={})
    found, left_out = tasks_of(
        Source(
            *(task("a"), 3, task("a"), task("a", statement="other"), task("b", memory="much")),
            *(task("c", grading=nobody), task("\ud800"), task("d")),
        ),
        "mine",
        {"year": "2026"},
    )
    assert [each.task_id for each in found] == ["a", "d"]
    assert [each.name.partition(",")[0] for each in left_out] == [f"item {n}" for n in (2, 4, 5, 6, 7)]
    for each, says in zip(left_out, ("not a Task", "must be unique", "quantity", "nobody", ""), strict=True):
        assert says in each.why


@pytest.mark.parametrize(
    "bad",
    [
        {"memory": 4},
        {"cpu": None},
        {"grading": None},
        {"statement": b"x"},
        {"labels": {"a": object()}},
        {"setup_commands": {1}},
        {"grading": StateCheck(files={"/a": b"x"}, command="true")},  # type: ignore[dict-item]
        {"grading": StateCheck(files={}, command="true", timeout_seconds=-1)},
        {"grading": StateCheck(files={}, command="true", timeout_seconds=float("nan"))},
    ],
)
def test_what_has_values_of_other_types_costs_itself(bad: dict[str, Any]) -> None:
    """No constructor refuses them; stored, they would be found by whoever reads them first."""
    found, left_out = tasks_of(Source(task("a"), task("b", **bad), task("c")), "mine", {})
    assert [each.task_id for each in found] == ["a", "c"]
    assert [each.name for each in left_out] == ["item 2, b"]


def test_options_that_a_source_does_not_take_are_an_error() -> None:
    with pytest.raises(TaskError, match=r"source mine: .*month"):
        tasks_of(Source(), "mine", {"month": "5"})


@pytest.mark.parametrize(
    ("good", "bad", "strict", "says"),
    [
        (3, 0, False, ""),
        (3, 2, False, ""),
        (3, 0, True, ""),
        (0, 0, False, ""),
        (0, 2, False, "here has no item to import\n  row 0: bad\n  row 1: bad"),
        (3, 1, True, "1 of 4 items of here cannot be imported, and nothing was, as --strict wants it\n"),
        (0, SHOWN + 5, True, f"and 5 more; by reason:\n  {SHOWN + 5}: bad"),
    ],
)
def test_an_import_of_nothing_or_with_strict_of_a_part_is_an_error(
    good: int, bad: int, strict: bool, says: str
) -> None:
    left_out = [LeftOut(f"row {number}", "bad") for number in range(bad)]
    with pytest.raises(NotImported) if says else nullcontext() as refused:
        insist("here", good, left_out, strict=strict)
    assert refused is None or says in str(refused.value)

"""Lines of prompts become tasks; of a file with mistakes nothing is imported, and each line is named."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from orchard.pipelines.tasks.errors import MalformedRow
from orchard.pipelines.tasks.prompts import Defaults, task_from_prompt
from orchard.pipelines.tasks.row_files import check_rows
from orchard.schemas.tasks import StateCheck, Task

READ = partial(task_from_prompt, defaults=Defaults())


def _task(**row: Any) -> Task:
    return task_from_prompt(row, 1, Defaults(workdir="/desk"))


def test_a_prompt_with_a_check_is_a_task() -> None:
    task = _task(id="sum", prompt="Write 2+2.", check="grep -qx 4 sum.txt", solution="echo 4 > sum.txt")
    assert isinstance(task.grading, StateCheck)
    assert task.grading.command == "cd /desk || exit 126\ngrep -qx 4 sum.txt\n"
    assert (task.task_id, task.image, task.workdir) == ("sum", "host", "/desk")
    assert task.gold_patch == "echo 4 > sum.txt"


def test_a_line_without_an_id_always_has_the_same_one() -> None:
    first, again = (_task(prompt="Write 2+2.", check="true") for _ in range(2))
    other = _task(prompt="Write 2+3.", check="true")
    assert first.task_id == again.task_id != other.task_id


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"check": "true"}, "missing required field `prompt`"),
        ({"prompt": "p"}, "give either `check`"),
        ({"prompt": "p", "check": "true", "grader": "g"}, "give either `check`"),
        ({"prompt": " ", "check": "true"}, "`prompt` is empty"),
        ({"prompt": "p", "check": "true", "chekc": "x"}, "unknown field `chekc`"),
        ({"prompt": "p", "check": "true", "memory": "much"}, "is not a resource quantity"),
        ({"prompt": "p", "check": "true", "files": {"a": "b"}}, "absolute paths, not 'a'"),
        ({"prompt": "p", "grader": "nosuch"}, "nosuch"),
        ({"prompt": 3, "check": "true"}, "Expected `str`, got `int`"),
    ],
)
def test_a_bad_line_is_one_sentence_with_its_number(row: dict[str, Any], problem: str) -> None:
    with pytest.raises(MalformedRow) as refused:
        READ(row, 7)
    assert str(refused.value).startswith("line 7: ")
    assert problem in str(refused.value)


def test_of_a_file_with_mistakes_each_line_is_named_and_the_others_come(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    good = json.dumps({"id": "a", "prompt": "p", "check": "true"})
    alone = json.dumps({"id": "b", "prompt": "\ud800", "check": "true"})
    bad = ["{", good, json.dumps({"prompt": "p"}), "[1]", "[" * 100_000, "1" * 5000, alone]
    path.write_text("\n".join([good, *bad, ""]))
    found = check_rows(path, READ)
    assert [each.name for each in found.left_out] == [f"line {number}" for number in range(2, 9)]
    assert all(each.why for each in found.left_out)
    assert [task.task_id for task in found.tasks()] == ["a"]

"""Generated repair tasks: splits that share nothing, and tests that tell the bug from its repair."""

import json
import keyword
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from orchard.pipelines.domains.swe.repairs import (
    FUNCTIONS,
    HELD_OUT_FILES,
    KINDS,
    Split,
    repair_files,
    repair_tasks,
)
from orchard.schemas.tasks import SWETests, Task
from orchard.workers.episode.diffs import parse_diff


def files_of(tasks: list[Task]) -> set[str]:
    return {parse_diff(task.gold_patch)[0].path for task in tasks}


def test_no_file_is_in_two_tasks() -> None:
    train = list(repair_tasks(600, 3, Split.TRAIN))
    held_out = list(repair_tasks(200, 3, Split.HELD_OUT))
    assert len(files_of(train) | files_of(held_out)) == 800
    assert {task.labels["kind"] for task in train} == {kind.name for kind in KINDS}


def test_a_task_is_drawn_from_its_number_and_the_seed_alone() -> None:
    assert list(repair_tasks(20, 1, Split.TRAIN)) == list(repair_tasks(40, 1, Split.TRAIN))[:20]
    assert list(repair_tasks(20, 1, Split.TRAIN)) != list(repair_tasks(20, 2, Split.TRAIN))


def test_every_function_has_a_name_that_python_takes() -> None:
    assert [name for name in FUNCTIONS if not name.isidentifier() or keyword.iskeyword(name)] == []


def test_kinds_can_be_chosen() -> None:
    chosen = repair_tasks(30, 0, Split.TRAIN, ("sum", "larger"))
    assert {task.labels["kind"] for task in chosen} == {"sum", "larger"}


def test_few_functions_are_in_many_places() -> None:
    files = files_of([*repair_tasks(150, 0, Split.TRAIN, functions=10)])
    assert len(files) == 150
    assert {Path(file).stem for file in files} == set(FUNCTIONS[:10])


def test_a_function_without_held_out_combinations_is_in_no_held_out_task() -> None:
    with pytest.raises(ValueError, match=r"held-out split has \d+ repair tasks, not 260"):
        list(repair_tasks(HELD_OUT_FILES, 0, Split.HELD_OUT, ("sum", "larger")))
    assert len(list(repair_tasks(HELD_OUT_FILES, 0, Split.HELD_OUT))) == HELD_OUT_FILES


def test_only_who_reads_a_module_knows_the_line_of_its_bug() -> None:
    tasks = list(repair_tasks(200, 0, Split.TRAIN))
    texts = repair_files(tasks)
    bugs: Counter[int] = Counter()
    for task in tasks:
        (change,) = parse_diff(task.gold_patch)
        lines = texts[change.path].splitlines()
        bugs[lines.index(change.hunks[0].removed[0])] += 1
    assert len(bugs) == 5 and max(bugs.values()) < 60


@pytest.mark.parametrize(
    ("count", "kinds", "says"), [(10_000, (), "tasks, not 10000"), (1, ("maths",), "sum")]
)
def test_what_there_is_not_is_named(count: int, kinds: tuple[str, ...], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        list(repair_tasks(count, 0, Split.TRAIN, kinds))


@pytest.mark.parametrize("kind", [kind.name for kind in KINDS])
def test_tests_fail_before_the_repair_and_pass_after(kind: str, tmp_path: Path) -> None:
    (task,) = repair_tasks(1, 5, Split.TRAIN, (kind,))
    for name, text in repair_files([task]).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    grading = task.grading
    assert isinstance(grading, SWETests)
    _apply(grading.test_patch, tmp_path)
    before = _verdicts(tmp_path, grading)
    _apply(task.gold_patch, tmp_path)
    assert all(_verdicts(tmp_path, grading).values())
    failed = {name for name, passed in before.items() if not passed}
    assert failed == {test.partition("::")[2] for test in grading.fail_to_pass}


def _apply(patch: str, place: Path) -> None:
    subprocess.run(["git", "apply", "-"], cwd=place, input=patch, text=True, check=True)


_RUN = """
import json, runpy, sys
found = {}
for name, test in runpy.run_path(sys.argv[1]).items():
    if name.startswith("test_"):
        try:
            test()
            found[name] = True
        except AssertionError:
            found[name] = False
print(json.dumps(found))
"""


def _verdicts(place: Path, grading: SWETests) -> dict[str, bool]:
    done = subprocess.run(
        [sys.executable, "-B", "-c", "import sys; sys.path.insert(0, '.')\n" + _RUN, grading.test_files[0]],
        cwd=place,
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, bool] = json.loads(done.stdout)
    return found

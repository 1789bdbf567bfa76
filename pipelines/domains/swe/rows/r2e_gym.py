"""R2E-Gym: tests that were written for a commit, and the status that each has after it. Only those that pass
are judged here; the dataset's own reward also wants that the others fail."""

from collections.abc import Mapping, Sequence
from typing import Any

from orchard.pipelines.domains.swe.rows.columns import Columns, Family, RowFamily, patched_paths, row_task
from orchard.pipelines.tasks.trees import diff
from orchard.schemas.tasks import SWETests, Task

_SETUP = "rm -rf /r2e_tests r2e_tests; if [ -f run_tests.sh ]; then mv run_tests.sh /root/run_tests.sh; fi"
"""The image has the hidden tests, and in the repository the script that runs them."""


def _read(columns: Columns) -> Task:
    tests = _tests(columns)
    test_patch = diff({}, tests, tests)
    expected = columns.object("expected_output_json")
    fail_to_pass = tuple(test for test, status in expected.items() if test and status == "PASSED")
    if not fail_to_pass:
        raise columns.fail("expected_output_json", "names no test that passes, so nothing could be resolved")
    repo = columns.text("repo_name")
    return row_task(
        columns,
        Family.R2E_GYM,
        task_id=f"{repo}__{columns.text('commit_hash')}",
        repo=repo,
        image=columns.image() or columns.text("docker_image"),
        workdir=columns.given.workdir or "/testbed",
        base_commit=columns.text("parsed_commit_content.old_commit_hash"),
        gold_patch=_gold(columns),
        setup=(_SETUP,),
        language="python",
        grading=SWETests(
            test_patch=test_patch,
            test_files=tuple(tests),
            test_command="bash /root/run_tests.sh",
            parser="pytest-names",
            fail_to_pass=fail_to_pass,
            pass_to_pass=(),
        ),
    )


def _tests(columns: Columns) -> dict[str, bytes]:
    column = "execution_result_content"
    names, codes = (columns.value(f"{column}.test_file_{part}") for part in ("names", "codes"))
    if not (_texts(names) and _texts(codes) and len(names) == len(codes) > 0):
        raise columns.fail(column, "must have test_file_names and test_file_codes, two lists of equal length")
    return {f"r2e_tests/{name}": code.encode() for name, code in zip(names, codes, strict=True)}


def _texts(value: Any) -> bool:
    return isinstance(value, Sequence) and all(isinstance(each, str) for each in value)


def _gold(columns: Columns) -> str:
    """The commit's change of what are no tests."""
    column = "parsed_commit_content"
    old: dict[str, bytes] = {}
    new: dict[str, bytes] = {}
    for change in columns.value(f"{column}.file_diffs") or []:
        try:
            path = str(change["header"]["file"]["path"])
            contents = change["old_file_content"], change["new_file_content"]
        except (KeyError, TypeError) as error:
            raise columns.fail(column, "has a file_diffs without path or contents") from error
        if not _is_test(path):
            for tree, content, side in zip((old, new), contents, ("minus_file", "plus_file"), strict=True):
                if content or not _absent(change.get(side)):
                    tree[path] = (content or "").encode()
    patch = diff(old, new, dict.fromkeys([*old, *new]))
    if not patched_paths(patch):
        raise columns.fail(column, "changes no file besides tests, so there is no solution")
    return patch


def _absent(side: Any) -> bool:
    return not isinstance(side, Mapping) or side.get("path") == "/dev/null"


def _is_test(path: str) -> bool:
    return path.endswith("_test.py") or path.startswith("test_") or "tests" in path.split("/")


R2E_GYM = RowFamily(Family.R2E_GYM, lambda row: "expected_output_json" in row, _read)

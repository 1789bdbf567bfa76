"""Rows of each dataset of the SWE-bench family become tasks; malformed ones one sentence each."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from orchard.pipelines.domains.swe.benchmark_rows import Family, Given, family_of, task_from_row
from orchard.pipelines.domains.swe.history import cut
from orchard.pipelines.tasks.errors import MalformedRow, TaskError
from orchard.pipelines.tasks.row_files import check_rows
from orchard.schemas.tasks import SWETests, Task


def _patch(path: str, old: str = "a", new: str = "b") -> str:
    return f"diff --git a/{path} b/{path}\n--- a/{path}\n+++ b/{path}\n@@ -1 +1 @@\n-{old}\n+{new}\n"


SWE_BENCH: dict[str, Any] = {
    "repo": "psf/requests",
    "instance_id": "psf__requests-1963",
    "base_commit": "110048f9837f8441ea536804115e80b69f400277",
    "patch": _patch("requests/sessions.py"),
    "test_patch": _patch("test_requests.py") + _patch("data/sample.json"),
    "problem_statement": "Redirects copy the wrong request.",
    "hints_text": "Look at resolve_redirects.",
    "created_at": "2014-03-15T00:00:00Z",
    "version": "2.3",
    "FAIL_TO_PASS": '["test_requests.py::TestRedirects::test_method"]',
    "PASS_TO_PASS": '["test_requests.py::test_basic", "test_requests.py::test_basic"]',
    "environment_setup_commit": "3eb69be879063de4803f7f0152b83738a1c95ca4",
}
SWE_REBENCH: dict[str, Any] = {
    **{key: SWE_BENCH[key] for key in SWE_BENCH if key != "environment_setup_commit"},
    "repo": "encode/httpx",
    "instance_id": "encode__httpx-2701",
    "docker_image": "swerebench/sweb.eval.x86_64.encode_1776_httpx-2701",
    "FAIL_TO_PASS": ["tests/test_a.py::test_one"],
    "PASS_TO_PASS": [],
    "test_patch": _patch("tests/test_a.py"),
    "install_config": {
        "python": "3.9",
        "test_cmd": "pytest -rA --color=no",
        "log_parser": "parse_log_pytest",
    },
}
SWE_REBENCH_V2: dict[str, Any] = {
    **{key: SWE_BENCH[key] for key in SWE_BENCH if key != "environment_setup_commit"},
    "repo": "owner/tool",
    "instance_id": "owner__tool-7",
    "language": "Python",
    "image_name": "docker.io/swerebenchv2/owner-tool:7",
    "install_config": {
        "test_cmd": ["pytest -rA tests", "pytest -rA more"],
        "log_parser": "parse_log_pytest_v2",
    },
    "FAIL_TO_PASS": ["tests/test_a.py::test_one"],
    "PASS_TO_PASS": ["tests/test_a.py::test_two"],
}
SCALE_SWE: dict[str, Any] = {
    "instance_id": "owner_tool_pr12",
    "user": "owner",
    "repo": "tool",
    "language": "python",
    "workdir": "/workspace/tool",
    "image_url": "registry.example/scaleswe:owner_tool_pr12",
    "patch": _patch("tool/core.py"),
    "pr_commit": "f" * 40,
    "parent_commit": "e" * 40,
    "problem_statement": "It breaks.",
    "f2p_patch": _patch("tests/test_core.py"),
    "f2p_script": "def test_new():\n    assert True\n",
    "FAIL_TO_PASS": '["test_fail_to_pass.py::test_new"]',
    "PASS_TO_PASS": '["tests/test_core.py::test_old"]',
    "pre_commands": "git checkout -q HEAD",
}


def _task(row: dict[str, Any]) -> tuple[Task, SWETests]:
    task = task_from_row(row, 1)
    assert isinstance(task.grading, SWETests)
    return task, task.grading


@pytest.mark.parametrize(
    ("row", "family"),
    [
        (SWE_BENCH, Family.SWE_BENCH),
        (SWE_REBENCH, Family.SWE_REBENCH),
        (SWE_REBENCH_V2, Family.SWE_REBENCH_V2),
        (SCALE_SWE, Family.SCALE_SWE),
    ],
)
def test_the_dataset_is_known_by_its_columns(row: dict[str, Any], family: Family) -> None:
    assert family_of(row) is family
    assert _task(row)[0].source == family.value


def test_a_swe_bench_row_gets_its_published_image_and_the_repositorys_command() -> None:
    task, grading = _task(SWE_BENCH)
    assert task.image == "swebench/sweb.eval.x86_64.psf_1776_requests-1963:latest"
    assert task.workdir == "/testbed"
    assert task.hints == "Look at resolve_redirects."
    assert grading.test_command.endswith(
        "pytest --no-header -rA --tb=no -p no:cacheprovider test_requests.py"
    )
    assert grading.test_files == ("test_requests.py", "data/sample.json")
    assert grading.pass_to_pass == ("test_requests.py::test_basic",)


def test_a_django_row_runs_modules() -> None:
    test = "test_floatformat (template_tests.filter_tests.test_floatformat.FunctionTests)"
    _, grading = _task(
        {
            **SWE_BENCH,
            "repo": "django/django",
            "test_patch": _patch("tests/template_tests/filter_tests/test_floatformat.py"),
            "FAIL_TO_PASS": json.dumps([test]),
        }
    )
    assert grading.test_command.endswith("--parallel 1 template_tests.filter_tests.test_floatformat")
    assert grading.parser == "unittest"


def test_a_sympy_row_uses_its_own_runner() -> None:
    _, grading = _task(
        {**SWE_BENCH, "repo": "sympy/sympy", "test_patch": _patch("sympy/core/tests/test_a.py")}
    )
    assert grading.test_command.endswith("bin/test -C --verbose sympy/core/tests/test_a.py")
    assert grading.parser == "sympy"


def test_a_rebench_row_brings_its_image_and_command() -> None:
    task, grading = _task(SWE_REBENCH)
    assert task.image == "swerebench/sweb.eval.x86_64.encode_1776_httpx-2701"
    assert grading.test_command.endswith("pytest -rA --color=no tests/test_a.py")


def test_a_v2_row_works_in_the_repositorys_own_directory_and_runs_every_command() -> None:
    task, grading = _task(SWE_REBENCH_V2)
    assert task.workdir == "/tool"
    assert task.labels == {"language": "python"}
    assert grading.strip_timing
    assert grading.test_command.splitlines() == [
        "failed=0",
        "pytest -rA tests || failed=1",
        "pytest -rA more || failed=1",
        "exit $failed",
    ]


def test_a_scale_swe_row_brings_patch_and_script() -> None:
    task, grading = _task(SCALE_SWE)
    assert task.repo == "owner/tool"
    assert task.workdir == "/workspace/tool"
    assert task.setup_commands == ("git checkout -q HEAD", cut(task.base_commit))
    assert grading.test_files == ("tests/test_core.py", "test_fail_to_pass.py")
    assert grading.test_command.endswith("test_fail_to_pass.py tests/test_core.py")


def test_installation_configuration_may_be_json_text() -> None:
    row = {**SWE_REBENCH, "install_config": json.dumps(SWE_REBENCH["install_config"])}
    assert _task(row) == _task(SWE_REBENCH)


@pytest.mark.parametrize(
    ("row", "column", "problem"),
    [
        ({**SWE_BENCH, "instance_id": None}, "instance_id", "is missing or empty"),
        ({**SWE_BENCH, "problem_statement": 5}, "problem_statement", "must be text, not int"),
        ({**SWE_BENCH, "patch": "fix it"}, "patch", "is not a unified diff"),
        ({**SWE_BENCH, "FAIL_TO_PASS": "['a']"}, "FAIL_TO_PASS", "is text that is not a JSON list"),
        ({**SWE_BENCH, "FAIL_TO_PASS": "[]"}, "FAIL_TO_PASS", "names no test"),
        ({**SWE_BENCH, "PASS_TO_PASS": [1]}, "PASS_TO_PASS", "must be a list of test names"),
        ({**SWE_BENCH, "repo": "requests"}, "repo", "must be `owner/name`"),
        (
            {**SWE_BENCH, "repo": "owner/unheard-of"},
            "repo",
            "give it in a column `test_command`, or pass --test-command",
        ),
        ({**SWE_BENCH, "test_patch": _patch("data/a.json")}, "test_patch", "touches no test file"),
        ({**SWE_REBENCH, "install_config": "{"}, "install_config", "is text that is not a JSON object"),
        ({**SWE_REBENCH, "install_config": {}}, "install_config", "must hold a shell command"),
        (
            {**SWE_REBENCH_V2, "install_config": {"test_cmd": "x", "log_parser": "parse_log_cobol"}},
            "install_config",
            "names the log parser 'parse_log_cobol'",
        ),
        ({**SWE_REBENCH_V2, "image_name": ""}, "image_name", "is missing or empty"),
        ({**SCALE_SWE, "f2p_patch": "", "f2p_script": None}, "f2p_patch", "are both empty"),
    ],
)
def test_a_malformed_row_is_one_sentence_with_row_and_column(
    row: dict[str, Any], column: str, problem: str
) -> None:
    with pytest.raises(MalformedRow) as refused:
        task_from_row(row, 7)
    assert str(refused.value).startswith(f"row 7, column {column}: ")
    assert problem in str(refused.value)
    assert "\n" not in str(refused.value)


def _jsonl(path: Path, *lines: object) -> Path:
    text = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("\n".join(text) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize("before", [b"\xef\xbb\xbf", b"\n  ", b"\xef\xbb\xbf\r\n"])
def test_a_list_may_begin_after_a_mark_of_the_byte_order_and_blanks(tmp_path: Path, before: bytes) -> None:
    path = tmp_path / "rows.json"
    path.write_bytes(before + json.dumps([SWE_BENCH], indent=1).encode())
    checked = check_rows(path, task_from_row)
    assert (checked.good, checked.problems) == (1, ())


def test_malformed_rows_cost_themselves_and_are_named(tmp_path: Path) -> None:
    path = _jsonl(tmp_path / "rows.jsonl", SWE_BENCH, {**SWE_BENCH, "patch": ""}, "{broken", SWE_BENCH)
    checked = check_rows(path, task_from_row)
    assert (checked.good, [problem.row for problem in checked.problems]) == (1, [2, 3, 4])
    assert [task.task_id for task in checked.tasks()] == ["psf__requests-1963"]
    assert checked.left_out[2] == ("line 4", "the task 'psf__requests-1963' already stands in line 1")
    assert [each.name for each in checked.left_out[:2]] == ["row 2, column patch", "line 3"]


@pytest.mark.parametrize(
    ("row", "change"),
    [
        (SWE_BENCH, {"FAIL_TO_PASS": "[" * 5000}),
        (SWE_BENCH, {"problem_statement": "\ud800"}),
        (SWE_REBENCH, {"install_config": '{"a":' + "[" * 5000}),
        (SCALE_SWE, {"f2p_script": "\0"}),
        (SCALE_SWE, {"f2p_script": "\ud800"}),
    ],
)
def test_what_no_reader_expects_in_a_row_costs_the_row(
    row: dict[str, Any], change: dict[str, Any], tmp_path: Path
) -> None:
    checked = check_rows(_jsonl(tmp_path / "rows.jsonl", {**row, **change}, SWE_REBENCH_V2), task_from_row)
    assert (checked.good, [problem.row for problem in checked.problems]) == (1, [1])


@pytest.mark.parametrize("row", [SWE_BENCH, SWE_REBENCH, SWE_REBENCH_V2, SCALE_SWE])
def test_parquet_and_jsonl_give_the_same_tasks(row: dict[str, Any], tmp_path: Path) -> None:
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "rows.parquet")
    from_parquet = list(check_rows(tmp_path / "rows.parquet", task_from_row).tasks())
    from_jsonl = list(check_rows(_jsonl(tmp_path / "rows.jsonl", row), task_from_row).tasks())
    assert from_parquet == from_jsonl == [task_from_row(row, 1)]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("missing.jsonl", None, "is not a file"),
        ("rows.csv", b"a,b\n", "is neither .parquet nor .jsonl"),
        ("rows.parquet", b"no parquet", "cannot be read as Parquet"),
        ("rows.jsonl", b"", "has no row"),
    ],
)
def test_a_file_that_cannot_be_read_is_one_sentence(
    name: str, content: bytes | None, message: str, tmp_path: Path
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(TaskError, match=message):
        check_rows(tmp_path / name, task_from_row)


OWN = {**SWE_BENCH, "repo": "ours/tool", "image_name": "ours/tool:7", "test_patch": _patch("tests/test_a.py")}


def test_a_row_of_any_repository_may_say_how_its_tests_run() -> None:
    task, grading = _task({**OWN, "test_command": "make check", "log_parser": "junit", "workdir": "/src"})
    assert (task.image, task.workdir, task.environment) == ("ours/tool:7", "/src", {})
    assert (grading.test_command, grading.parser) == ("make check", "junit")


def test_the_command_line_says_it_for_rows_that_do_not() -> None:
    given = Given(test_command="pytest -q {tests}", image="ours/{instance_id}:1", workdir="/src")
    row = {**OWN, "image_name": None}
    task = task_from_row(row, 1, given=given)
    assert isinstance(task.grading, SWETests)
    assert (task.image, task.workdir) == ("ours/psf__requests-1963:1", "/src")
    assert task.grading.test_command.startswith("pytest -q tests/test_a.py -rA")
    assert task.grading.parser == "pytest"
    with pytest.raises(MalformedRow, match="column image_name: is missing, and no image of 'ours/tool'"):
        task_from_row({**row, "test_command": "make check"}, 1)
    with pytest.raises(MalformedRow, match="column log_parser: names the log parser 'cobol'"):
        task_from_row({**OWN, "test_command": "make check", "log_parser": "cobol"}, 1)

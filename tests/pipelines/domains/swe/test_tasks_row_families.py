"""Rows of the families that are not SWE-bench's become tasks, and prove themselves in sandboxes."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from orchard.injector.client import AsyncSandboxClient
from orchard.pipelines.domains.swe.benchmark_rows import Family, Given, family_of, task_from_row
from orchard.pipelines.domains.swe.rows.swe_smith import reversed_patch
from orchard.pipelines.tasks.errors import MalformedRow
from orchard.pipelines.tasks.proving import ValidationSettings
from orchard.pipelines.tasks.validate import Validator
from orchard.schemas.events import TaskValidated
from orchard.schemas.tasks import SWETests, Task
from orchard.storage.blobs import BlobStore
from orchard.workers.domains.swe.logs.parsers import parse
from tests.pipelines.domains.swe.row_families import FIX, GO_RUN, IMAGES, R2E_RUN, TEST, rows
from tests.pipelines.domains.swe.test_tasks_swe_rows import SWE_BENCH

BASE = "e" * 40
ROWS = rows(BASE)


def _task(row: dict[str, Any], **given: Any) -> tuple[Task, SWETests]:
    task = task_from_row(row, 1, given=Given(**given))
    assert isinstance(task.grading, SWETests)
    return task, task.grading


@pytest.mark.parametrize("family", ROWS)
def test_the_family_is_known_by_its_columns(family: str) -> None:
    assert family_of(ROWS[family]) == family
    assert _task(ROWS[family])[0].source == family


def test_every_family_has_a_reader() -> None:
    for family in Family:
        with pytest.raises(MalformedRow):
            task_from_row({}, 1, family)


def test_pro_shows_requirements_and_takes_scripts_from_a_directory(tmp_path: Path) -> None:
    row = {key: ROWS["swe-bench-pro"][key] for key in ROWS["swe-bench-pro"] if "script" not in key}
    row["image_name"] = ""
    with pytest.raises(MalformedRow, match="pass --scripts, the directory that has o__demo-1/"):
        _task(row)
    with pytest.raises(MalformedRow, match="take the row out, or add the file"):
        _task(row, scripts=str(tmp_path))
    (tmp_path / "o__demo-1").mkdir()
    (tmp_path / "o__demo-1" / "run_script.sh").write_text("run me")
    (tmp_path / "o__demo-1" / "parser.py").write_text("parse me")
    task, grading = _task(row, scripts=str(tmp_path))
    assert (task.image, task.workdir) == ("jefzda/sweap-images:o.demo-1", "/app")
    assert task.statement == "Fix a.\n\nRequirements:\nMake it `fixed`."
    assert "run me" in grading.test_command and "t.py,u.py" in grading.test_command
    with pytest.raises(MalformedRow, match=r"column fail_to_pass: is no list of names"):
        _task({**ROWS["swe-bench-pro"], "fail_to_pass": "__import__('os')"})


def test_live_takes_pytest_or_a_function() -> None:
    row = {**ROWS["swe-bench-live"], "log_parser": "pytest", "print_cmds": [], "docker_image": None}
    task, grading = _task(row)
    assert task.image == "starryzhang/sweb.eval.x86_64.o_1776_demo-1:latest"
    assert (grading.test_command, grading.parser) == ("python3 -m unittest -v t > log 2>&1", "pytest")
    assert grading.pre_commands == ("true",)


def test_a_row_inside_a_request_is_the_row_of_its_dataset() -> None:
    inside = {"responses_create_params": {"input": [], "metadata": {"instance_dict": json.dumps(SWE_BENCH)}}}
    assert task_from_row(inside, 1) == task_from_row(SWE_BENCH, 1)
    assert task_from_row({"instance": SWE_BENCH, "mode": "eval"}, 1) == task_from_row(SWE_BENCH, 1)


def test_swe_gym_is_known_by_its_repositories() -> None:
    row = {**SWE_BENCH, "repo": "getmoto/moto", "instance_id": "getmoto__moto-5406"}
    task, grading = _task(row)
    assert task.source == "swe-gym" and task.image == "xingyaoww/sweb.eval.x86_64.getmoto_s_moto-5406:latest"
    assert grading.test_command.endswith("pytest -rA -p no:cacheprovider test_requests.py")
    mypy = {**row, "repo": "python/mypy", "FAIL_TO_PASS": ["mypy/test/testcheck.py::S::a.test::testX"]}
    assert _task({**mypy, "PASS_TO_PASS": []})[1].test_command.endswith("-k testX mypy/test/testcheck.py")
    assert family_of({**row, "test_command": "make check"}) is Family.SWE_BENCH


def test_swe_smith_turns_the_bug_round() -> None:
    task, grading = _task(ROWS["swe-smith"])
    assert task.gold_patch == "diff --git a/a b/a\n--- a/a\n+++ b/a\n@@ -1 +1 @@\n+base\n-broken\n"
    assert grading.test_command.endswith("pytest --disable-warnings --color=no --tb=no --verbose u.py")
    with pytest.raises(MalformedRow, match="pass --test-command and --parser"):
        _task({**ROWS["swe-smith"], "FAIL_TO_PASS": ["TestGo"]})


def test_multi_swe_bench_names_image_and_parser_by_the_repository() -> None:
    task, grading = _task({**ROWS["multi-swe-bench"], "docker_image": None})
    assert (task.task_id, task.image) == ("o__demo-1", "mswebench/o_m_demo:pr-1")
    assert (task.workdir, task.base_commit, grading.parser) == ("/home/demo", BASE, "go")
    assert (grading.fail_to_pass, grading.pass_to_pass) == (("test_a",), ("test_b",))
    assert task.statement == "It breaks\n\nFix a."
    with pytest.raises(MalformedRow, match="of whose test output no parser is known: pass --parser"):
        _task({**ROWS["multi-swe-bench"], "lang": "typescript"})
    with pytest.raises(MalformedRow, match=r"column base.sha: is missing"):
        _task({**ROWS["multi-swe-bench"], "base": {}})


def test_r2e_gym_brings_its_tests_and_leaves_out_what_failed() -> None:
    task, grading = _task(ROWS["r2e-gym"])
    assert (task.task_id, task.base_commit) == (f"demo__{'c' * 40}", BASE)
    assert grading.fail_to_pass == ("T.test_a", "T.test_b")
    assert "b/r2e_tests/test_1.py" in grading.test_patch and "tests/b.py" not in task.gold_patch


def test_columns_may_have_other_names_and_lie_deeper() -> None:
    row = {key: SWE_BENCH[key] for key in SWE_BENCH if key not in ("problem_statement", "patch")}
    row |= {"task": {"issue": json.dumps({"text": "Help."})}, "gold.diff": SWE_BENCH["patch"]}
    task, _ = _task(row, columns={"problem_statement": "task.issue.text", "patch": "gold.diff"})
    assert (task.statement, task.gold_patch) == ("Help.", SWE_BENCH["patch"])
    with pytest.raises(MalformedRow, match=r"column task.issue: is text that is not a JSON object"):
        _task({**row, "task": {"issue": "Help."}}, columns={"problem_statement": "task.issue.text"})


@pytest.mark.parametrize(
    ("said", "statuses"),
    [
        ('{"tests": [{"name": "a b", "status": "PASSED"}]}', {"a b": "PASSED"}),
        (
            '{"a": "pass", "b": "fail", "c": "skip", "d": "odd"}',
            dict(zip("abcd", ("PASSED", "FAILED", "SKIPPED", "ERROR"), strict=True)),
        ),
        (
            '{"tests": [{"name": "a", "status": "FAILED"}, {"name": "a", "status": "PASSED"},'
            ' {"name": "b", "status": "PASSED"}, {"name": "b", "status": "FAILED"},'
            ' {"name": "c", "status": "SKIPPED"}, {"name": "c", "status": "FAILED"}]}',
            {"a": "PASSED", "b": "PASSED", "c": "FAILED"},
        ),
        ('{"a": "fail", "a": "pass", "b": "pass"}', {"a": "ERROR", "b": "PASSED"}),
        ("[1]", {}),
        ('{"tests": [1]}', {}),
        ("no JSON", {}),
    ],
)
def test_statuses_that_a_parser_of_the_dataset_wrote(said: str, statuses: dict[str, str]) -> None:
    assert parse("statuses-json", f"noise\n\n>>>>> statuses of tests\n{said}\n") == statuses


def test_a_reversed_patch_undoes_the_patch(tmp_path: Path) -> None:
    def git(*words: str, stdin: str | None = None) -> str:
        own = ("-c", "user.name=t", "-c", "user.email=t@t")
        return subprocess.run(
            ["git", *own, *words], cwd=tmp_path, check=True, capture_output=True, text=True, input=stdin
        ).stdout

    git("init", "-q")
    (tmp_path / "old").write_text("--- a\n+++ b\nlast")
    (tmp_path / "moved").write_text("".join(f"{line}\n" for line in range(30)))
    git("add", "-A")
    git("commit", "-qm", "one")
    (tmp_path / "old").write_text("+++ b\nnew\n--- a\nlast\n")
    (tmp_path / "moved").rename(tmp_path / "there")
    (tmp_path / "made").write_text("x\n")
    (tmp_path / "made").chmod(0o755)
    git("add", "-A")
    git("commit", "-qm", "two")
    patch = git("diff", "-M", "HEAD~1", "HEAD")
    git("apply", "--index", "-", stdin=reversed_patch(patch))
    assert git("diff", "--cached", "HEAD~1") == ""
    assert reversed_patch(reversed_patch(patch)) == patch


@pytest.mark.long
async def test_a_row_of_each_family_is_proven_in_sandboxes(
    sandboxes: AsyncSandboxClient, tmp_path: Path
) -> None:
    """The project is a stand-in for those of the published images, which are not to be had here."""
    files = {
        "run_tests.sh": "cd /testbed; python3 /testbed/.r2e.py\n",
        ".r2e.py": R2E_RUN,
        ".gitignore": ".r2e.py\nrun_tests.sh\n",
        "a": "base\n",
        "u.py": TEST.replace("fixed", "base").replace("class T", "class U"),
    }
    date = "2020-01-01T00:00:00Z"
    for image, place in IMAGES.items():
        async with await sandboxes.create_sandbox("host", cpu="1", memory="512Mi") as sandbox:
            for name, text in files.items():
                await sandbox.upload_content(text, f"{place}/{name}")
            await sandbox.upload_content(GO_RUN, "/home/run.sh")
            await sandbox.upload_content(FIX, "/home/fix.patch")
            made = await sandbox.exec(
                f"set -e; cd {place}; git init -q; export GIT_AUTHOR_DATE={date} GIT_COMMITTER_DATE={date};"
                "git config user.name t; git config user.email t@t; git add -A; git commit -qm base;"
                "mkdir /r2e_tests; git rev-parse HEAD"
            )
            await sandbox.snapshot(image)
    validator = Validator(sandboxes, BlobStore(str(tmp_path / "store")), ValidationSettings(runs=1))
    for family, row in rows(made.stdout.strip()).items():
        given = Given()
        if family == "swe-smith":
            command = (
                "python3 -m unittest -v u 2>&1 | sed 's/^test_\\([a-z]\\) .*ok$/PASSED u.py::U::test_\\1/;"
            )
            command += "s/^test_\\([a-z]\\) .*FAIL$/FAILED u.py::U::test_\\1/'"
            given = Given(test_command=command)
        task = task_from_row({**row, "instance_id": family} if "instance_id" in row else row, 1, given=given)
        event = (await validator.validate(task)).event
        assert isinstance(event, TaskValidated), (family, event)

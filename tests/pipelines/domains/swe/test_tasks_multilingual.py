"""Rows of SWE-bench Multilingual, in both of its layouts, become tasks without anything given."""

import subprocess
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from orchard.pipelines.domains.swe.benchmark_repositories import parser_named
from orchard.pipelines.domains.swe.benchmark_rows import Given, task_from_row
from orchard.pipelines.domains.swe.multilingual import SUITES
from orchard.pipelines.tasks.errors import MalformedRow
from orchard.pipelines.tasks.row_files import check_rows
from orchard.schemas.tasks import SWETests, Task
from orchard.workers.domains.swe.logs.parsers import PARSERS
from orchard.workers.domains.swe.testing import plan_of


def _patch(*paths: str) -> str:
    return "".join(
        f"diff --git a/{path} b/{path}\n--- a/{path}\n+++ b/{path}\n@@ -1 +1 @@\n-a\n+b\n" for path in paths
    )


def _row(repo: str, *paths: str, tests: tuple[str, ...] = ("a test",), **more: str) -> dict[str, Any]:
    """The columns as the dataset has them: tests are lists, `version` is the pull request's number."""
    return {
        "repo": repo,
        "instance_id": f"{repo.replace('/', '__')}-4711",
        "base_commit": "1" * 40,
        "patch": _patch("src/lib.x"),
        "test_patch": _patch(*paths),
        "problem_statement": "It breaks.",
        "hints_text": "",
        "created_at": "2024-03-15T00:00:00Z",
        "version": "4711",
        "FAIL_TO_PASS": list(tests),
        "PASS_TO_PASS": [],
        **more,
    }


CASES: list[tuple[str, tuple[str, ...], str, str]] = [
    ("redis/redis", ("tests/unit/type/list.tcl",), "redis", "./runtest --durable --single unit/type/list"),
    ("jqlang/jq", ("tests/jq.test",), "automake", "make check"),
    (
        "fmtlib/fmt",
        ("test/ranges-test.cc",),
        "googletest",
        "cmake -B build -S . && cmake --build build --parallel $(nproc) --target ranges-test "
        "&& ctest --test-dir build -V -R ranges-test",
    ),
    ("nlohmann/json", ("tests/src/unit-udt.cpp",), "doctest", "./build/tests/test-udt_cpp11 -s -r=xml"),
    ("caddyserver/caddy", ("cmd/main_test.go", "cmd/x_test.go", "caddy_test.go"), "go", "go test -v ./cmd ."),
    ("caddyserver/caddy", ("caddytest/integration/adapt/log.txt",), "go", "go test -v ./caddytest/..."),
    ("projectlombok/lombok", ("test/transform/A.java",), "ant", "ant test.instance"),
    (
        "apache/lucene",
        ("lucene/facet/src/test/org/apache/lucene/facet/TestA.java",),
        "gradle",
        "./gradlew test --tests org.apache.lucene.facet.TestA",
    ),
    ("reactivex/rxjava", ("src/test/java/io/r/BTest.java",), "gradle", "./gradlew test --tests io.r.BTest"),
    ("babel/babel", ("packages/b/test/fixtures/a/input.js",), "jest", "yarn jest packages/b/test --verbose"),
    ("vuejs/core", ("packages/a/b.spec.ts",), "vitest", "packages/a/b.spec.ts --no-watch --reporter=verbose"),
    ("preactjs/preact", ("hooks/test/useId.test.js",), "karma", "--grep=hooks/test/useId.test.js"),
    ("axios/axios", ("test/unit/adapters/http.js",), "tap", "npx mocha -R tap test/unit/adapters/http.js"),
    ("laravel/framework", ("tests/S/StrTest.php",), "testdox", "--colors=never tests/S/StrTest.php"),
    ("php-cs-fixer/php-cs-fixer", ("tests/Fixtures/a.test",), "testdox", "--colors=never tests"),
    ("fluent/fluentd", ("test/test_in.rb",), "test-unit", "bundle exec ruby test/test_in.rb -v"),
    ("sharkdp/bat", ("tests/integration_tests.rs", "tests/x.txt"), "cargo", "--manifest-path Cargo.toml"),
    ("tokio-rs/axum", ("axum/src/routing/tests/mod.rs",), "cargo", "--manifest-path axum/Cargo.toml"),
    ("tokio-rs/tokio", ("tokio/tests/fs_file.rs",), "cargo", "--no-fail-fast --test fs_file"),
]  # fmt: skip


@pytest.mark.parametrize(("repo", "paths", "parser", "end"), CASES, ids=[case[0] for case in CASES])
def test_the_command_follows_from_the_test_patch(
    repo: str, paths: tuple[str, ...], parser: str, end: str, tmp_path: Path
) -> None:
    pq.write_table(pa.Table.from_pylist([_row(repo, *paths)]), tmp_path / "multilingual.parquet")
    given = Given(source="swe-bench-multilingual")
    (task,) = check_rows(
        tmp_path / "multilingual.parquet", lambda row, number: task_from_row(row, number, given=given)
    ).tasks()
    grading = _grading(task)
    assert grading.test_command.endswith(end)
    assert (grading.parser, grading.test_files) == (parser, paths)
    assert task.image == f"swebench/sweb.eval.x86_64.{repo.replace('/', '_1776_')}-4711:latest"
    assert (task.workdir, task.environment, task.source) == ("/testbed", {}, "swe-bench-multilingual")
    assert task.labels["language"] == SUITES[repo].language
    assert plan_of(grading) is None  # what these runners print is believed: docs/threat-model.md


def _grading(task: Task) -> SWETests:
    assert isinstance(task.grading, SWETests)
    return task.grading


def test_maven_runs_each_named_test_in_its_module_and_echoes_it() -> None:
    tests = ("com.a.BTest#one", "com.a.BTest#two")
    row = _row("google/gson", "gson/src/test/java/com/a/BTest.java", tests=tests)
    assert _grading(task_from_row(row, 1)).test_command.split("\n") == [
        "set -x",
        "mvnd test -B -T 1C -pl gson -Dtest='com.a.BTest#one'",
        "mvnd test -B -T 1C -pl gson -Dtest='com.a.BTest#two'",
    ]


def test_several_files_of_one_runner_all_run_and_one_failure_is_kept() -> None:
    row = _row("valkey-io/valkey", "tests/unit/acl.tcl", "tests/unit/geo.tcl", "tests/helpers/x.tcl")
    grading = _grading(task_from_row(row, 1))
    assert grading.test_command.split("\n") == [
        "failed=0",
        "TERM=dumb ./runtest --durable --single unit/acl || failed=1",
        "TERM=dumb ./runtest --durable --single unit/geo || failed=1",
        "exit $failed",
    ]
    assert grading.pre_commands == ("make distclean", "make")


PATHS = (
    *(path for _, paths, _, _ in CASES for path in paths),
    "tests/basics/try.py",
    "__tests__/Range.ts",
    "test/unit/src/Sphere.tests.js",
    "spec/a_spec.rb",
    "test/test_site.rb",
    "features/post.feature",
    "tests/by-util/test_cp.rs",
)


@pytest.mark.parametrize("repo", SUITES)
def test_every_repository_has_a_parser_and_a_command_that_is_shell(repo: str) -> None:
    suite = SUITES[repo]
    assert suite.parser in PARSERS
    command = suite.test_command(PATHS, ("a.B#c",))
    assert command
    lines = "\n".join([*suite.build, "(", command, ")"])
    assert subprocess.run(["bash", "-n"], input=lines, text=True, check=False).returncode == 0
    assert "{0}" not in command and "{}" not in command


SCRIPT = """\
#!/bin/bash
set -uxo pipefail
cd /testbed
git checkout 1111 tests/a.rs
git apply --verbose --reject - <<'EOF_114329324912'
diff --git a/tests/a.rs b/tests/a.rs
EOF_114329324912
cargo build
: '>>>>> Start Test Output'
RUSTFLAGS=-Awarnings cargo test --package bat pag
cargo test other
: '>>>>> End Test Output'
git checkout 1111 tests/a.rs
"""


def test_a_row_with_a_script_is_run_by_it() -> None:
    row = _row(
        "sharkdp/bat", "tests/a.rs", eval_script=SCRIPT, log_parser="parse_log_cargo", image="own/bat:1"
    )
    task = task_from_row(row, 1)
    grading = _grading(task)
    assert grading.pre_commands == ("cargo build",)
    assert grading.test_command == (
        "set -xo pipefail\nRUSTFLAGS=-Awarnings cargo test --package bat pag\ncargo test other"
    )
    assert (grading.parser, task.image) == ("cargo", "own/bat:1")


def test_a_script_is_enough_for_a_repository_that_is_not_known() -> None:
    script = SCRIPT.replace("cargo build\n", "")
    row = _row(
        "ours/tool", "tests/a.rs", eval_script=script, log_parser="parse_log_gotest", image="own/tool:1"
    )
    grading = _grading(task_from_row(row, 1))
    assert (grading.parser, grading.pre_commands) == ("go", ())
    with pytest.raises(MalformedRow, match="column repo: is 'ours/tool', whose test command is not known"):
        task_from_row({**row, "eval_script": "echo"}, 1)


def test_a_script_does_not_take_the_runner_from_pythons_repositories() -> None:
    row = _row("psf/requests", "test_requests.py", tests=("test_requests.py::test_a",), eval_script=SCRIPT)
    assert plan_of(_grading(task_from_row({**row, "log_parser": "parse_log_requests"}, 1))) is not None


def test_a_patch_without_a_test_to_run_is_one_sentence() -> None:
    with pytest.raises(MalformedRow, match="column test_patch: touches no test file that could be run"):
        task_from_row(_row("redis/redis", "tests/support/util.tcl"), 1)


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("parse_log_gotest", "go"),
        ("parse_log_karma", "karma"),
        ("parse_plotly_js", "jasmine-tree"),
        ("parse_log_sphinx", "pytest-last"),
        ("cargo", "cargo"),
        ("parse_log_js_4", "marks"),
        ("parse_java_mvn", "surefire"),
        ("junit", "junit"),
        ("parse_log_junit", "junit-class-name"),
        ("marked", "marked"),
        ("parse_log_marked", "jasmine-failures"),
        ("parse_log_cobol", None),
    ],
)
def test_parsers_have_the_names_of_the_datasets(name: str, known: str | None) -> None:
    assert parser_named(name) == known


SWE_REBENCH_V2 = """
    combined_test_reports java_mvn java_mvn_v2 log_ant log_cargo log_cpp log_cpp_v2 log_cpp_v3
    log_cpp_v4 log_csharp log_dart log_dart_v2 log_dart_v3 log_elixir log_gotest log_gradle_custom
    log_gradlew_v1 log_haskell log_haskell_v2 log_jq log_js log_js_2 log_js_3 log_js_4 log_julia
    log_junit log_lein log_maven log_npx log_ocaml log_ocaml_v2 log_ocaml_v3 log_ocaml_v4
    log_ocaml_v5 log_php_v1 log_phpunit log_pytest log_pytest_nebo log_pytest_v2 log_r log_r_v2
    log_ruby_v1 log_ruby_v2 log_sbt log_scala log_scala_v2 log_scala_v3 log_swift logs_kotlin_junit
    logs_r_junit lue_nvim
"""
"""The parsers that rows of SWE-rebench V2 may name, without `parse_`."""


def test_every_parser_that_rebench_names_is_here() -> None:
    names = SWE_REBENCH_V2.split()
    assert [name for name in names if parser_named(f"parse_{name}") is None] == []

"""The rules of grading as pure functions: verdicts, log parsers, diffs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchard.workers.domains.swe.logs.parsers import parse, without_timing
from orchard.workers.domains.swe.verdict import conclusive, judge
from orchard.workers.episode.diffs import is_diff, parse_diff, touched_paths


@pytest.mark.parametrize("status", ["PASSED", "XFAIL"])
def test_passed_and_expected_failures_pass(status):
    assert judge({"a": status}, ["a"], []).resolved


@pytest.mark.parametrize("status", ["FAILED", "ERROR", "SKIPPED"])
def test_everything_else_fails_a_test_that_must_pass(status):
    assert not judge({"a": status}, ["a"], []).resolved


def test_an_absent_test_failed():
    verdict = judge({"a": "PASSED"}, ["a"], ["b"])
    assert not verdict.resolved
    assert verdict.tests == {"a": "PASSED", "b": "MISSING"}


def test_a_skipped_test_that_passed_before_is_kept():
    assert judge({"a": "PASSED", "b": "SKIPPED"}, ["a"], ["b"]).resolved


def test_shares_of_both_lists():
    verdict = judge({"a": "PASSED", "b": "FAILED", "c": "PASSED"}, ["a", "b"], ["c"])
    assert (verdict.fail_to_pass, verdict.pass_to_pass, verdict.resolved) == (0.5, 1.0, False)


def test_ids_that_swe_bench_cut_at_a_blank_are_found_and_the_worst_counts():
    statuses = {"t::x[a b]": "PASSED", "t::x[a c]": "FAILED", "t::y[a b]": "PASSED"}
    verdict = judge(statuses, ["t::x[a"], ["t::y[a"])
    assert verdict.tests == {"t::x[a": "FAILED", "t::y[a": "PASSED"}


@given(st.dictionaries(st.sampled_from("abcd"), st.sampled_from(["PASSED", "FAILED", "SKIPPED"])))
def test_one_more_passing_test_never_makes_it_worse(statuses):
    before = judge(statuses, "ab", "cd")
    after = judge({**statuses, "a": "PASSED"}, "ab", "cd")
    assert after.fail_to_pass >= before.fail_to_pass and after.resolved >= before.resolved


@pytest.mark.parametrize(
    ("statuses", "exit_code", "expected"),
    [
        ({"a": "PASSED"}, 0, True),
        ({"a": "FAILED"}, 1, True),
        ({"a.py": "ERROR"}, 2, True),
        ({"a": "PASSED"}, 1, False),
        ({"a": "FAILED"}, None, False),
        ({}, 0, False),
        ({}, 4, False),
    ],
)
def test_a_run_is_conclusive_when_its_exit_and_its_tests_agree(statuses, exit_code, expected):
    assert conclusive(statuses, exit_code) is expected


PYTEST = """\
============================= test session starts ==============================
tests/test_a.py::test_ok \x1b[32mPASSED\x1b[0m                                    [ 10%]
tests/test_a.py::TestB::test_skip SKIPPED (no network)                   [ 20%]
tests/test_a.py::test_x[a - b] FAILED                                    [ 30%]
[gw1] [ 40%] PASSED tests/test_a.py::test_far[x y]
PASSED tests/test_a.py::test_param[spaces and - dashes]
PASSED tests/test_a.py::test_teardown
ERROR tests/test_a.py::test_teardown - RuntimeError: late
FAILED tests/test_a.py::test_x[a - b] - assert [1] == [2] - really
ERROR tests/test_broken.py - SyntaxError: invalid syntax
SKIPPED [2] tests/test_a.py:12: no network
XFAIL tests/test_a.py::test_known - bug 1
XPASS tests/test_a.py::test_surprise
1 failed, 4 passed in 0.10s
"""


def test_pytest_logs():
    assert parse("pytest", PYTEST) == {
        "tests/test_a.py::test_ok": "PASSED",
        "tests/test_a.py::TestB::test_skip": "SKIPPED",
        "tests/test_a.py::test_x[a - b]": "FAILED",
        "tests/test_a.py::test_far[x y]": "PASSED",
        "tests/test_a.py::test_param[spaces and - dashes]": "PASSED",
        "tests/test_a.py::test_teardown": "ERROR",
        "tests/test_a.py::test_teardown - RuntimeError: late": "ERROR",
        "tests/test_broken.py": "ERROR",
        "tests/test_broken.py - SyntaxError: invalid syntax": "ERROR",
        "[2] tests/test_a.py:12: no network": "SKIPPED",
        "tests/test_a.py::test_known": "XFAIL",
        "tests/test_a.py::test_known - bug 1": "XFAIL",
        "tests/test_a.py::test_surprise": "PASSED",
    }


def test_ids_that_are_no_tests_are_read_as_swe_bench_reads_them():
    """Ids in PASS_TO_PASS of pytest-dev__pytest-5262, pytest-dev__pytest-7521 and others."""
    lines = (
        "FAILED    [100%]",
        "PASSED          [100%]",
        "XFAIL t.py::test_a - bug 1: x - y",
        "PASSED [ 50%]",
    )
    log = "".join(f"{line}\n" for line in lines)
    named = ["[100%]", "[", "t.py::test_a - bug 1: x - y", "t.py::test_a"]
    assert judge(parse("pytest", log), named, []).resolved


def test_a_conftest_that_cannot_be_imported_is_an_error():
    log = "ImportError while loading conftest '/testbed/tests/conftest.py'.\nE   NameError: x\n"
    assert parse("pytest", log) == {"/testbed/tests/conftest.py": "ERROR"}


JUNIT = """\
some noise
<?xml version="1.0" encoding="utf-8"?><testsuites><testsuite name="pytest">
<testcase classname="tests.test_a" name="test_ok" time="0.1" />
<testcase classname="tests.test_a.TestB" name="test_bad"><failure message="m">x</failure></testcase>
<testcase classname="tests.test_a" name="test_err"><error message="m">x</error></testcase>
<testcase classname="tests.test_a" name="test_skip"><skipped type="pytest.skip" /></testcase>
<testcase classname="tests.test_a" name="test_known"><skipped type="pytest.xfail" /></testcase>
<testcase classname="pkg.Suite" name="case" file="pkg/suite.py" />
</testsuite></testsuites>
more noise
"""


@pytest.mark.parametrize(
    ("said", "known"),
    [
        ("t.py::test_a[/home/me/cert.pem]", "t.py::test_a[/cert.pem]"),
        ("t.py::test_a[/home/me/]", "t.py::test_a[/]"),
        ("t.py::test_a[//host/path]", "t.py::test_a[//host/path]"),
        ("t.py::test_a[/home/*.pem]", "t.py::test_a[/home/*.pem]"),
        ("t.py::test_a[http://host/path]", "t.py::test_a[http://host/path]"),
        ("t.py::test_a[/a[0]/b]", "t.py::test_a[/b]"),
        ("t.py::test_a[/home/me/a b]", "t.py::test_a[/home/me/a b]"),
        ("t.py::test_a", "t.py::test_a"),
    ],
)
def test_of_paths_as_parameters_swe_bench_knows_the_last_part(said: str, known: str) -> None:
    """Compared with `parse_log_pytest_options` of swebench 4 when it was written."""
    assert parse("pytest-options", f"PASSED {said}\nFAILED {said} - no") == {known: "FAILED"}


def test_mouse_buttons_of_matplotlib_are_known_by_number() -> None:
    log = "PASSED t.py::test_drag[MouseButton.LEFT-on]\nFAILED t.py::test_drag[MouseButton.RIGHT-on] - no"
    assert parse("pytest-matplotlib", log) == {
        "t.py::test_drag[1-on]": "PASSED",
        "t.py::test_drag[3-on]": "FAILED",
    }


def test_junit_logs():
    assert parse("junit", JUNIT) == {
        "tests.test_a::test_ok": "PASSED",
        "tests/test_a.py::test_ok": "PASSED",
        "tests.test_a.TestB::test_bad": "FAILED",
        "tests/test_a.py::TestB::test_bad": "FAILED",
        "tests.test_a::test_err": "ERROR",
        "tests/test_a.py::test_err": "ERROR",
        "tests.test_a::test_skip": "SKIPPED",
        "tests/test_a.py::test_skip": "SKIPPED",
        "tests.test_a::test_known": "XFAIL",
        "tests/test_a.py::test_known": "XFAIL",
        "pkg.Suite::case": "PASSED",
        "pkg/suite.py::pkg::Suite::case": "PASSED",
    }


@pytest.mark.parametrize("log", ["", "no report", "<testsuites><testsuite>", "<testsuite><x></testsuite>"])
def test_a_junit_log_without_a_report_has_no_tests(log):
    assert parse("junit", log) == {}


UNITTEST = """\
test_ok (tests.test_a.TestA) ... ok
test_bad (tests.test_a.TestA.test_bad) ... FAIL
test_err (tests.test_a.TestA) ... ERROR
test_skip (tests.test_a.TestA) ... skipped 'no network'
test_known (tests.test_a.TestA) ... expected failure
test_strange (tests.test_a.TestA) ... unexpected success
test_doc (tests.test_a.TestA)
Named URLs are reversible. ... ok
test_loud (tests.test_a.TestA) ... printing
more printing
ok

======================================================================
FAIL: test_sub (tests.test_a.TestA) (i=1)
----------------------------------------------------------------------
ERROR: test_broken (unittest.loader._FailedTest)
Ran 9 tests in 0.1s
"""


def test_unittest_logs():
    assert parse("unittest", UNITTEST) == {
        "test_ok (tests.test_a.TestA)": "PASSED",
        "test_bad (tests.test_a.TestA.test_bad)": "FAILED",
        "test_err (tests.test_a.TestA)": "ERROR",
        "test_skip (tests.test_a.TestA)": "SKIPPED",
        "test_known (tests.test_a.TestA)": "XFAIL",
        "test_strange (tests.test_a.TestA)": "FAILED",
        "test_doc (tests.test_a.TestA)": "PASSED",
        "Named URLs are reversible.": "PASSED",
        "test_loud (tests.test_a.TestA)": "PASSED",
        "test_sub (tests.test_a.TestA)": "FAILED",
        "test_broken (unittest.loader._FailedTest)": "ERROR",
    }


@pytest.mark.parametrize("test", ["name [12 ms]", "name (0.5s)", "name in 3 sec", "name [1.25 s]", "name"])
def test_durations_are_no_part_of_a_name(test):
    assert without_timing(test) == "name"


@pytest.mark.parametrize("test", ["test_x[12]", "within in 3 sections", "name (slow)"])
def test_what_only_looks_like_a_duration_stays(test):
    assert without_timing(test) == test


DIFF = """\
diff --git a/a.py b/a.py
index 1..2 100644
--- a/a.py
+++ b/a.py
@@ -1,2 +1,2 @@
--- not a header
+++ not a header either
 kept
@@ -9 +9,0 @@ def f():
-gone
diff --git a/old.py b/new name.py
similarity index 100%
rename from old.py
rename to new name.py
diff --git a/empty.py b/empty.py
new file mode 100644
index 0000000..e69de29
diff --git "a/caf\\303\\251.py" "b/caf\\303\\251.py"
deleted file mode 100644
--- "a/caf\\303\\251.py"
+++ /dev/null
@@ -1 +0,0 @@
-x
\\ No newline at end of file
"""


def test_a_diff_is_read_file_by_file():
    files = parse_diff(DIFF)
    assert [(file.old_path, file.new_path) for file in files] == [
        ("a.py", "a.py"),
        ("old.py", "new name.py"),
        (None, "empty.py"),
        ("café.py", None),
    ]
    assert [len(file.hunks) for file in files] == [2, 0, 0, 1]
    assert (files[0].hunks[0].removed, files[0].hunks[0].added) == (
        ["-- not a header"],
        ["++ not a header either"],
    )


def test_every_path_of_a_diff_is_known():
    assert touched_paths(DIFF) == {"a.py", "old.py", "new name.py", "empty.py", "café.py"}


def test_a_diff_without_gits_headers_is_read_too():
    plain = (
        "--- a/x.py\n+++ b/x.py\n@@ -1 +1 @@\n-a\n+b\n--- y.py\t2020\n+++ y.py\t2021\n@@ -1 +1 @@\n-a\n+b\n"
    )
    assert [file.path for file in parse_diff(plain)] == ["x.py", "y.py"]
    assert is_diff(plain)


@pytest.mark.parametrize("text", ["", "I give up.", "--- a\n+++ b\nno hunk", "print('diff --git')"])
def test_what_is_no_diff(text):
    assert not is_diff(text)
    assert parse_diff(text) == []


@given(st.text(alphabet='-+@ \\\n"ab/,0123dif git', max_size=200))
def test_reading_ends_whatever_is_read(text):
    parse_diff(text)


SYMPY_LOG = """\
============================= test process starts ==============================
executable:         /opt/miniconda3/envs/testbed/bin/python  (3.9.20-final-0) [CPython]

sympy/core/tests/test_basic.py[6]
test_structure ok
test_equality F
test_matches_basic E
test_xfailing f
test_slow Skipped: slow
test_last ok                                                              [FAIL]

________________________________________________________________________________
_______________ sympy/core/tests/test_basic.py:test_equality ________________
Traceback (most recent call last):
AssertionError
"""


def test_sympys_own_runner_is_read_by_test_name():
    assert parse("sympy", SYMPY_LOG) == {
        "test_structure": "PASSED",
        "test_equality": "FAILED",
        "test_matches_basic": "ERROR",
        "test_xfailing": "XFAIL",
        "test_slow": "SKIPPED",
        "test_last": "PASSED",
    }

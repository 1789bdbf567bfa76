"""Decides from test statuses whether a SWE task is resolved. Pure."""

from collections.abc import Iterable, Mapping

import msgspec

from orchard.schemas.tasks import SWETests
from orchard.workers.domains.swe.logs.parsers import without_timing

PASSING = frozenset({"PASSED", "XFAIL"})
FAILING = frozenset({"FAILED", "ERROR"})
DOUBTFUL = frozenset({"XFAIL", "SKIPPED"})
"""Statuses that count as passed only if the gold patch gives the same."""
MISSING = "MISSING"


class SWEVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """The task is `resolved` only if both shares are 1."""

    resolved: bool
    fail_to_pass: float
    """Share in [0, 1] of these tests that pass."""
    pass_to_pass: float
    tests: dict[str, str]
    """Status of each named test; MISSING if the log has none."""


def judged(grading: SWETests, statuses: Mapping[str, str]) -> SWEVerdict:
    """Judges a task's tests, without the durations in their names where it says so."""
    must, keep = grading.fail_to_pass, grading.pass_to_pass
    if grading.strip_timing:
        statuses = {without_timing(test): status for test, status in statuses.items()}
        must, keep = tuple(map(without_timing, must)), tuple(map(without_timing, keep))
    return judge(statuses, must, keep)


def judge(
    statuses: Mapping[str, str], fail_to_pass: Iterable[str], pass_to_pass: Iterable[str]
) -> SWEVerdict:
    """Judges the named tests. PASSED and XFAIL count as passed, an absent test as failed.

    A skipped test of `pass_to_pass` counts as passed, one of `fail_to_pass` as failed. The share of an empty
    list is 1.
    """
    shortened = _shortened(statuses)
    must, keep = list(fail_to_pass), list(pass_to_pass)
    tests = {test: statuses.get(test) or shortened.get(test, MISSING) for test in (*must, *keep)}
    fixed = [tests[test] in PASSING for test in must]
    kept = [tests[test] in PASSING or tests[test] == "SKIPPED" for test in keep]
    return SWEVerdict(
        resolved=all(fixed) and all(kept),
        fail_to_pass=sum(fixed) / len(fixed) if fixed else 1.0,
        pass_to_pass=sum(kept) / len(kept) if kept else 1.0,
        tests=tests,
    )


def conclusive(statuses: Mapping[str, str], exit_code: int | None) -> bool:
    """Whether a test run says something about the code, instead of only about its own failure.

    It does if tests were seen and the exit code (None: it did not end) agrees with them: 0, or at least one
    failure. A file that cannot be collected is an ERROR, so a patch with a syntax error is conclusive.
    """
    failed = any(status in FAILING for status in statuses.values())
    return bool(statuses) and (exit_code == 0 or (exit_code is not None and failed))


def _shortened(statuses: Mapping[str, str]) -> dict[str, str]:
    """Maps each id with a parameter, up to its first blank, to a status: the worst if several share it.

    SWE-bench cuts its ids there, so `test_a[x y]` is listed as `test_a[x`.
    """
    found: dict[str, str] = {}
    for test, status in statuses.items():
        head = test.split(" ", 1)[0]
        if head != test and "[" in head and found.get(head) not in FAILING:
            found[head] = status
    return found

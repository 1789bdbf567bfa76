"""Orchard's readings of test output beside swebench's, on 10,000 logs: each difference has its reason."""

import contextlib
import io
import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import NamedTuple

import pytest
from swebench.harness import grading
from swebench.harness.log_parsers import PARSER_REGISTRY

from orchard.pipelines.domains.swe.benchmark_repositories import parser_named
from orchard.workers.domains.swe.logs.failure_lists import FAILURE_LISTS
from orchard.workers.domains.swe.logs.parsers import parse_run
from orchard.workers.domains.swe.verdict import PASSING, judge
from tests.adapters.swebench_logs import logs_of, mutations

LOGS = 10_000
VERSIONS = {"parse_log_lighthouse": "9.5", "parse_log_next": "1.0"}
"""Of the repositories that changed their runner, the version that the logs are of."""
Verdict = tuple[bool, bool]
"""Whether a test of fail_to_pass passes, and one of pass_to_pass."""


def by_swebench(parser: str, log: str, named: list[str]) -> dict[str, Verdict]:
    """The verdict of each named test, and of each test in the log."""
    row = SimpleNamespace(version=VERSIONS.get(parser, "3.0"), instance_id="immutable-js-2006", repo="")
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            statuses = PARSER_REGISTRY[parser](log, row)
    except Exception:  # a line that the parser did not expect costs it the whole log
        statuses = {}
    tests = list({**dict.fromkeys(named), **statuses})
    if parser_named(parser) in FAILURE_LISTS:
        ran = bool(grading.SUITE_RAN.search(log)) or bool(statuses)
        return {test: (ran and test not in statuses,) * 2 for test in tests}
    return {
        test: (grading.test_passed(test, statuses), grading.test_maintained(test, statuses)) for test in tests
    }


def by_orchard(parser: str, log: str, named: list[str]) -> dict[str, Verdict]:
    name = parser_named(parser)
    assert name is not None
    tests = judge(parse_run(name, log, named), named, ()).tests
    lists = name in FAILURE_LISTS
    return {
        test: (status in PASSING, status in PASSING or (status == "SKIPPED" and not lists))
        for test, status in tests.items()
    }


# --- differences -------------------------------------------------------------------------------------------


class Case(NamedTuple):
    """A test of which the two verdicts differ."""

    parser: str
    log: str
    test: str
    named: list[str]
    ours: Verdict

    def in_swebench(self, log: str) -> Verdict:
        return by_swebench(self.parser, log, self.named)[self.test]


Explains = Callable[[Case], bool]


class Difference(NamedTuple):
    reason: str
    parsers: tuple[str, ...]
    """Orchard's names; empty for all."""
    explains: Explains


def reads_the_same(change: Callable[[str], str]) -> Explains:
    """Whether swebench has Orchard's verdict when the log is changed so."""
    return lambda case: case.in_swebench(change(case.log)) == case.ours


def plain(log: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", log).replace("\r\n", "\n")


def _deno_colors(log: str) -> str:
    log = re.sub(r"(?<=\s)ok(?=\s|$)", "\x1b[32mok", plain(log))
    return re.sub(r"(?<=\s)FAILED(?=\s|$)", "\x1b[31mFAILED", log)


def _without_late_oks(log: str) -> str:
    return "\n".join(line for line in plain(log).split("\n") if not line.strip().startswith("ok"))


_STATUS = re.compile(r"(PASSED|FAILED|ERROR|XFAIL|SKIPPED|XPASS)")


def _in_verbose_line(case: Case) -> bool:
    lines = plain(case.log).split("\n")
    return any(line.startswith(f"{case.test} ") and _STATUS.search(line) for line in lines)


def _with_text_behind(case: Case) -> bool:
    """A summary line in which text follows the id, or which has no id: then a word of it is swebench's."""
    log = plain(case.log)
    if parser_named(case.parser) == "pytest-options":
        log = re.sub(r"\[/.*/", "[/", log)
    lines = [line.rstrip() for line in log.split("\n") if _STATUS.match(line)]
    behind = any(f"{case.test} " in line and not line.endswith(f" {case.test}") for line in lines)
    return behind or not re.search(r"::|\.py", case.test)


def _expected_failure(case: Case) -> bool:
    return bool(re.search(rf"^\s*{re.escape(case.test)} f", plain(case.log), re.MULTILINE))


def _unconfirmed(case: Case) -> bool:
    return not any(case.ours) and all(case.in_swebench(plain(case.log)))


def _no_result_in_swebench(case: Case) -> bool:
    return not any(map(any, by_swebench(case.parser, plain(case.log), case.named).values()))


_PYTEST = ("pytest", "pytest-last", "pytest-options", "pytest-matplotlib")
DIFFERENCES = [
    Difference("Orchard removes colors and carriage returns first", (), reads_the_same(plain)),
    Difference(
        "swebench takes only colored words of Deno for results; Orchard reads logs without color too",
        ("deno",),
        reads_the_same(_deno_colors),
    ),
    Difference("Orchard reads pytest's verbose lines, too", _PYTEST, _in_verbose_line),
    Difference(
        "swebench's two readings of pytest's summary cut each line at its second blank, or keep it whole; "
        "Orchard ends an id where its brackets close, and knows the whole line only of XFAIL and ERROR",
        _PYTEST,
        _with_text_behind,
    ),
    Difference("swebench does not read SymPy's expected failures (`f`)", ("sympy",), _expected_failure),
    Difference(
        "for swebench a line that starts with `ok` is the result of the last test named before it, even of "
        "one that has failed or was skipped",
        ("unittest",),
        reads_the_same(_without_late_oks),
    ),
    Difference(
        "a test that no list of failures names has passed for swebench; Orchard wants that the run came to "
        "its end, and that its counts agree with the failures named",
        tuple(FAILURE_LISTS),
        _unconfirmed,
    ),
    Difference(
        "a report that is no whole JSON, or a mark without a name, costs swebench the whole log; Orchard "
        "reads the rest",
        ("mocha-json", "jest-tree"),
        _no_result_in_swebench,
    ),
]


def explained(case: Case) -> Difference | None:
    name = parser_named(case.parser)
    mine = (each for each in DIFFERENCES if not each.parsers or name in each.parsers)
    return next((each for each in mine if each.explains(case)), None)


@pytest.fixture(scope="module")
def found() -> dict[str, list[Difference | Case]]:
    """Of each parser of swebench, each difference: the listed one, or the case without one."""
    share = -(-LOGS // len(PARSER_REGISTRY))
    differences: dict[str, list[Difference | Case]] = {}
    for parser in PARSER_REGISTRY:
        differences[parser] = []
        seeds = logs_of(parser)
        for seed in seeds:
            rows = list(by_swebench(parser, seed, []))
            for log in mutations(seed, -(-share // len(seeds)), parser):
                theirs = by_swebench(parser, log, rows)
                ours = by_orchard(parser, log, list(theirs))
                cases = (
                    Case(parser, log, test, list(theirs), ours[test])
                    for test in theirs
                    if ours[test] != theirs[test]
                )
                differences[parser] += [explained(case) or case for case in cases]
    return differences


@pytest.mark.parametrize("parser", PARSER_REGISTRY)
def test_each_difference_is_listed_with_its_reason(parser: str, found: dict[str, list[object]]) -> None:
    assert logs_of(parser)
    assert [each for each in found[parser] if not isinstance(each, Difference)] == []


def test_no_listed_difference_is_gone(found: dict[str, list[object]]) -> None:
    seen = [each for several in found.values() for each in several]
    assert [each.reason for each in DIFFERENCES if each not in seen] == []

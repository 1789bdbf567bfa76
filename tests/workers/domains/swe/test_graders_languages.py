"""Logs of test runners of other languages are read with the ids that SWE-bench has for them."""

import re
import tomllib
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from orchard.workers.domains.swe.logs.parsers import PARSERS, SEVERITY, parse, parse_run

LOGS: list[dict[str, Any]] = tomllib.loads(
    Path(__file__).with_name("runner_logs.toml").read_text(encoding="utf-8")
)["log"]


def _statuses(log: dict[str, Any]) -> dict[str, str]:
    return {
        test: word.upper() for word in ("passed", "failed", "skipped", "error") for test in log.get(word, [])
    }


@pytest.mark.parametrize("log", LOGS, ids=[f"{number}-{log['parser']}" for number, log in enumerate(LOGS)])
def test_logs_are_read(log: dict[str, Any]) -> None:
    assert parse(log["parser"], log["text"]) == _statuses(log)
    assert parse(log["parser"], log["text"].replace("\n", "\r\n")) == _statuses(log)


def test_every_parser_of_another_language_has_a_log() -> None:
    assert set(PARSERS) - {log["parser"] for log in LOGS} == {
        "pytest",
        "pytest-options",
        "pytest-matplotlib",
        "junit",
        "unittest",
    }


NAMED = ("ol.Map fits: Type", "ol.Map zooms: Type")
KARMA = "HeadlessChrome 90.0.1 (Linux 0.0.0)"
OTHER = f"{KARMA} other FAILED\n"
HOOK = '  0 passing (3ms)\n  1 failing\n\n  1) "before all" hook in "{root}":\n     TypeError: x\n'
TWO = """
  10 passing (1s)
  2 failing

  1) rule a
       valid:
     the string "x" was thrown

  2) rule b
       valid:
     AssertionError: no
"""
SUITE_HOOK = """
  40 passing
  1 failing

  1) ol.Map
       "before each" hook for "fits":
     TypeError: x
"""


@pytest.mark.parametrize(
    ("parser", "said"),
    [
        ("karma-failures", f"{KARMA}: Executed 12 of 12 SUCCESS (0.1 secs / 0.1 secs)"),
        (
            "karma-failures",
            f"{KARMA}: Executed 3 of 12 (skipped 1)\n{KARMA}: Executed 11 of 12 (skipped 1) SUCCESS",
        ),
        (
            "karma-failures",
            f"{OTHER}{KARMA}: Executed 9 of 9 (1 FAILED) (1 secs / 1 secs)\nTOTAL: 1 FAILED, 8 SUCCESS",
        ),
        ("chart-failures", "TOTAL: 3 SUCCESS\nTOTAL: 3 SUCCESS"),
        (
            "chart-failures",
            2 * "Chrome 9.0 (Linux x86_64) a FAILED\n"
            + "Chrome 9.0 (Linux x86_64): Executed 9 of 9 (1 FAILED)",
        ),
        ("eslint-failures", "  42 passing (3s)"),
        ("eslint-failures", TWO.replace("the string", "Error: the string")),
        (
            "p5-failures",
            "  2 passing (3s)\n\n  40 passing (3s)\n  1 failing\n\n  1) Color\n       parses:\n     Error",
        ),
        (
            "p5-failures",
            "    1) parses\n\n  40 passing (3s)\n  1 failing\n\n  1) Color\n       parses:\n     Error",
        ),
        ("jasmine-failures", "1013 specs, 0 failures"),
        ("jasmine-failures", "1) a\n\n2) b\n\nPending:\n\n1) c\n\n9 specs, 2 failures, 1 pending spec"),
        (
            "openlayers-failures",
            "Chrome 90.0 (Linux x86_64): Executed 9 of 9 SUCCESS\ncase 'icon': mismatch 0.2",
        ),
        ("openlayers-failures", SUITE_HOOK.replace("ol.Map", "ol.View")),
    ],
)
def test_what_a_whole_list_of_failures_does_not_name_has_passed(parser: str, said: str) -> None:
    found = parse_run(parser, f"noise\n{said}\n", NAMED)
    assert found == parse(parser, f"noise\n{said}\n") | dict.fromkeys(NAMED, "PASSED")


def test_a_blank_behind_the_name_of_a_failure_does_not_hide_it() -> None:
    log = "Chrome 98.0.4 (Linux 0.0.0) a bar FAILED\nTOTAL: 1 FAILED, 8 SUCCESS\n"
    assert parse("chart-failures", log) == {"a bar ": "FAILED"}, "as SWE-bench reads it"
    assert parse_run("chart-failures", log, ["a bar", "b"]) == {
        "a bar ": "FAILED",
        "a bar": "FAILED",
        "b": "PASSED",
    }


@pytest.mark.parametrize(
    ("parser", "said"),
    [
        ("karma-failures", f"{OTHER}{KARMA}: Executed 500 of 900 (1 FAILED)\n{KARMA} ERROR\n  Disconnected"),
        ("karma-failures", f"{KARMA}: Executed 900 of 900 DISCONNECTED (1 secs / 1 secs)"),
        ("karma-failures", f"{KARMA}: Executed 1 of 900 (skipped 899) SUCCESS\nTOTAL: 1 SUCCESS"),
        ("karma-failures", f"{OTHER}Chrome Headless 1 (Linux aarch64) a FAILED\nTOTAL: 2 FAILED, 7 SUCCESS"),
        ("karma-failures", "12 passing"),
        ("chart-failures", "Chrome 90.0 (Linux x86_64) ERROR FAILED"),
        ("eslint-failures", HOOK),
        ("eslint-failures", TWO),
        ("eslint-failures", "12 passing arguments are ignored"),
        ("eslint-failures", "npm ERR! list\n  1) cannot load\n  ReferenceError: x"),
        ("p5-failures", HOOK),
        ("openlayers-failures", HOOK),
        ("openlayers-failures", SUITE_HOOK),
        ("openlayers-failures", "Cannot start ChromeHeadless\ncase 'icon': ok"),
        ("openlayers-failures", "Cannot start ChromeHeadless\ncase 'icon': mismatch 0.2"),
        ("jasmine-failures", "Failures:\n1) Hooks afterAll\n\n0 specs, 1 failure"),
        ("jasmine-failures", "1) a\nSuite error: Hooks\n40 specs, 1 failure"),
        ("jasmine-failures", "1) step one of install\nnpm ERR! cannot find module"),
        ("jasmine-failures", "Ran 40 of 900 specs\n40 specs, 0 failures\nIncomplete: fit() was found"),
    ],
)
def test_of_a_run_that_is_not_whole_nothing_is_known(parser: str, said: str) -> None:
    assert parse_run(parser, f"noise\n{said}\n", NAMED) == {}


def test_of_a_run_that_is_not_whole_the_named_failures_are_known() -> None:
    lost = f"{OTHER}{KARMA} ol.Map fits FAILED\n{KARMA}: Executed 5 of 900 (2 FAILED)\n"
    assert parse_run("karma-failures", lost, ("ol.Map fits ", "b")) == {"ol.Map fits ": "FAILED"}


def test_pictures_are_known_by_their_own_lines() -> None:
    log = "case cases/a/main.js': ok\ncase cases/b/main.js': mismatch 0.2\n"
    assert parse_run("openlayers-failures", log, ("cases/a/main.js'",)) == {
        "cases/a/main.js'": "PASSED",
        "cases/b/main.js'": "FAILED",
    }


def test_the_list_of_eslint_is_read_as_swe_bench_reads_it() -> None:
    theirs = re.compile(r"(\s{2}\d+\))([\s\S]*?)\s+(?:(.*)Error)")
    for parts in product(("  1)", " ", "\n", "x", "Error"), repeat=6):
        log = "".join(parts)
        names = [re.sub(r"\s+", " ", each[1]).strip() for each in theirs.findall(log)]
        assert list(parse("eslint-failures", log)) == list(dict.fromkeys(names)), log


HOSTILE = (
    "x " * 10_000 + "\n" + "[ " * 5_000 + "\n" + ". " * 5_000 + "= " * 100,
    "  1) " * 4_000,
    "\n  1) a" * 4_000,
    "<div>" * 4_000,
    "<testcase>" * 4_000,
    "test" + " " * 20_000 + "x",
    "\n" * 20_000,
    "  1) x" + " " * 20_000 + "y\n Error\n",
    "\n" * 200_000 + "1",
    "1" * 200_000,
    "1)\n" * 200_000 + ":",
    "<a></a>" * 200_000,
    "".join(f"<a{number}>" for number in range(100_000)),
    "<testsuite " * 100_000,
    "a" * 200_000 + "<testcase " + "a" * 200_000,
    "PASSED " + "[" * 20_000,
    "HeadlessChrome 1 (Linux 1) " * 20_000 + "\n",
    ("Chrome Headless (Linux x86_64) " * 60 + "\n") * 20,
    "a::b PASSED (" * 20_000 + "\n" + "x ... ok" * 20_000,
    "Running:)" * 50_000 + "\nx" + " (" * 100_000 + "\n",
    '"fullTitle": "' * 50_000 + "\n  }../..",
    ("[OK]  (" * 280 + "\n") * 20 + " - " + " " * 1_900 + "x",
)
"""What tested code may print so that a form takes hours."""


@pytest.mark.long
@pytest.mark.parametrize("parser", PARSERS)
def test_every_parser_reads_any_log(parser: str) -> None:
    whole = "\n".join(log["text"] for log in LOGS)
    assert parse(parser, "") == {}
    for log in (whole, whole[: len(whole) // 2], *HOSTILE):
        assert set(parse_run(parser, log, NAMED).values()) <= set(SEVERITY)

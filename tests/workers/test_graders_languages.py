"""Logs of test runners of other languages are read with the ids that SWE-bench has for them."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from orchard.workers.graders.parsers import PARSERS, SEVERITY, parse, parse_run

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


@pytest.mark.parametrize(
    "said",
    [
        "Executed 12 of 12 SUCCESS (0.1 secs)",
        "TOTAL: 3 SUCCESS",
        "  42 passing (3s)",
        "# tests 7",
        "1013 specs, 0 failures",
        "case 'cases/icon': ok",
    ],
)
def test_runs_without_failures_say_that_they_ran(said: str) -> None:
    named = ("a", "b")
    assert parse_run("karma-failures", f"noise\n{said}\n", named) == dict.fromkeys(named, "PASSED")
    assert parse_run("jest", f"noise\n{said}\n", named) == {}


HOSTILE = (
    "x " * 10_000 + "\n" + "[ " * 5_000 + "\n" + ". " * 5_000 + "= " * 100,
    "  1) " * 4_000,
    "\n  1) a" * 4_000,
    "<div>" * 4_000,
    "<testcase>" * 4_000,
    "test" + " " * 20_000 + "x",
    "\n" * 20_000,
)
"""What tested code may print so that a form takes hours."""


@pytest.mark.parametrize("parser", PARSERS)
def test_every_parser_reads_any_log(parser: str) -> None:
    whole = "\n".join(log["text"] for log in LOGS)
    assert parse(parser, "") == {}
    for log in (whole, whole[: len(whole) // 2], *HOSTILE):
        assert set(parse(parser, log).values()) <= set(SEVERITY)

"""Logs of each runner that swebench reads, and mutations of them."""

import random
import tomllib
from collections.abc import Iterator
from pathlib import Path

from orchard.pipelines.domains.swe.benchmark_repositories import parser_named

_PYTEST = """\
============================= test session starts ==============================
tests/test_a.py::test_ok PASSED                                          [ 10%]
tests/test_a.py::TestB::test_skip SKIPPED (no network)                   [ 20%]
PASSED                                                                  [100%]
=========================== short test summary info ============================
PASSED tests/test_a.py::test_ok
PASSED tests/test_a.py::test_dash[a - b]
PASSED tests/test_a.py::test_path[/home/me/cert.pem]
PASSED tests/test_a.py::test_blank[two words]
PASSED tests/test_a.py::test_drag[MouseButton.LEFT-on]
SKIPPED [2] tests/test_a.py:12: no network
XFAIL tests/test_a.py::test_known - bug 1
XFAIL tests/test_a.py::test_bare
ERROR tests/test_broken.py - SyntaxError: invalid syntax
FAILED tests/test_a.py::test_bad - assert [1] == [2] - really
FAILED tests/test_a.py::test_url[http://host/path] - KeyError
2 failed, 6 passed, 1 skipped in 0.10s
"""
_DJANGO = """\
Testing against Django installed in '/testbed/django'
test_ok (forms.tests.FormTests) ... ok
test_bad (forms.tests.FormTests) ... FAIL
test_error (forms.tests.FormTests) ... ERROR
test_skip (forms.tests.FormTests) ... skipped 'no database'
test_late (forms.tests.FormTests) ... System check identified no issues (0 silenced)
ok
A docstring says what is tested. ... ok
test_known (forms.tests.FormTests) ... expected failure
======================================================================
FAIL: test_bad (forms.tests.FormTests)
----------------------------------------------------------------------
Ran 6 tests in 0.010s
"""
_FAILURES = {
    "eslint-failures": """\

  1200 passing (3s)
  2 failing

  1) rules no-undef
       invalid code:

      AssertionError [ERR_ASSERTION]: Should have 1 error but had 0
      at tests/a.js:1:2

  2) rules semi reports:
     Error: Timeout of 2000ms exceeded
""",
    "karma-failures": """\
HeadlessChrome 90.0.4 (Linux 0.0.0) features drag moves a shape FAILED
\tError: expected 1 to equal 2
HeadlessChrome 90.0.4 (Linux 0.0.0) features zoom FAILED
HeadlessChrome 90.0.4 (Linux 0.0.0): Executed 9 of 9 (2 FAILED) (1.2 secs / 0.9 secs)
TOTAL: 2 FAILED, 7 SUCCESS
""",
    "chart-failures": """\
Chrome 90.0.4 (Linux x86_64) Bar draws labels FAILED
\tExpected 1 to be 2.
Chrome 90.0.4 (Linux x86_64) Line has points FAILED
Chrome 90.0.4 (Linux x86_64): Executed 9 of 9 (2 FAILED) (1.2 secs / 0.9 secs)
TOTAL: 2 FAILED, 7 SUCCESS
""",
    "openlayers-failures": """\
Chrome Headless 90.0.4 (Linux x86_64) ol/Map renders FAILED
Chrome Headless 90.0.4 (Linux x86_64): Executed 9 of 9 (1 FAILED) (1.2 secs / 0.9 secs)

  12 passing (1s)
  1 failing

  1) ol/format/GML
       reads:
     Error: no
""",
    "jasmine-failures": """\
Failures:
1) Hooks should process tokens
  Message:
    Expected 1 to be 2.
2) CLI reads a file
12 specs, 2 failures
Finished in 0.5 seconds
""",
    "p5-failures": """\

  Color
    ok

  12 passing (1s)
  2 failing

  1) Color
       has a value:
     Error: no
      at a.js:1:2

  2) Image
       loads
         twice:
     AssertionError: expected 1
""",
}
"""Whole runs of runners whose failures alone swebench reads."""
_FILE = Path(__file__).parents[1] / "workers" / "domains" / "swe" / "runner_logs.toml"


def logs_of(parser: str) -> list[str]:
    """Whole logs that the parser of that name in swebench reads."""
    ours = parser_named(parser) or ""
    if ours.startswith("pytest"):
        return [_PYTEST]
    if ours == "unittest":
        return [_DJANGO]
    found = [log["text"] for log in tomllib.loads(_FILE.read_text("utf-8"))["log"] if log["parser"] == ours]
    return [*found, _FAILURES[ours]] if ours in _FAILURES else found


def mutations(log: str, number: int, seed: str) -> Iterator[str]:
    """So many logs with one to four changes of lines, always the same ones for a seed."""
    chance = random.Random(seed)
    for _ in range(number):
        lines = log.split("\n")
        for _ in range(chance.randint(1, 4)):
            at = chance.randrange(len(lines))
            lines[at : at + 1] = _changed(lines[at], chance.choice(lines), chance) or [""]
        yield "\n".join(lines)


_WORDS = (
    "PASSED",
    "FAILED",
    "ERROR",
    "XFAIL",
    "SKIPPED",
    "ok",
    "not ok",
    "FAIL",
    "PASS",
    "✓",
    "✕",
    "✔",
    "1)",
)


def _changed(line: str, other: str, chance: random.Random) -> list[str]:
    words = line.split(" ")
    at = chance.randrange(len(words))
    match chance.randrange(12):
        case 0:
            return []
        case 1:
            return [line, line]
        case 2:
            return [line, other]
        case 3:
            return [other]
        case 4:
            return [line[: chance.randrange(len(line) + 1)]]
        case 5:
            return [" " * chance.randint(1, 6) + line]
        case 6:
            return [line.lstrip()]
        case 7:
            return [line + chance.choice((" - a reason", " (3 ms)", " [100%]", "  ", ":", " x"))]
        case 8:
            return [" ".join([*words[:at], chance.choice(_WORDS), *words[at + 1 :]])]
        case 9:
            return [" ".join([*words[:at], f"\x1b[32m{words[at]}\x1b[0m", *words[at + 1 :]])]
        case 10:
            return [line + "\r"]
        case _:
            return [
                line,
                chance.choice(("", "some output", "Traceback (most recent call last):", "  deeper")),
            ]

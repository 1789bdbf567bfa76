"""Parses output as SWE-rebench V2 does, where that differs from SWE-bench.

A test with conflicting reports has not passed: a pass replaces no earlier report.
"""

import re
from collections.abc import Callable, Mapping

from orchard.workers.domains.swe.logs.lines import Parser, lines_of
from orchard.workers.domains.swe.logs.rebench_runs import RUN_PARSERS
from orchard.workers.domains.swe.logs.reports import REPORT_PARSERS

_PYTEST = ("PASSED", "FAILED", "SKIPPED", "ERROR")
_DURATION = re.compile(r"\s*(?:\(\s*)?\d+(?:\.\d+)?\s*m?s\s*\)?\s*$", re.IGNORECASE)


def _without_duration(name: str) -> str:
    return _DURATION.sub("", name).strip()


def _by_forms(*forms: tuple[str, str], clean: Callable[[str], str] = str.strip, last: bool = False) -> Parser:
    """Makes a parser from pairs (status, pattern). The first pattern that matches a line decides; its first
    group, cleaned by `clean`, is the name. With `last` a pass replaces earlier reports, too."""
    patterns = [(status, re.compile(form)) for status, form in forms]

    def parse(log: str) -> dict[str, str]:
        found: dict[str, str] = {}
        for line in lines_of(log):
            for status, pattern in patterns:
                if match := pattern.fullmatch(line):
                    name = clean(match[1])
                    if name and (last or status != "PASSED" or name not in found):
                        found[name] = status
                    break
        return found

    return parse


_TAP = re.compile(r"(?P<not>not )?ok\s+\d+\s+-\s+(?P<name>.*?)(?:\s+#.*?)?(?P<opens>\s*\{)?")


def _tap_nested(log: str) -> dict[str, str]:
    """TAP whose suites are blocks, `ok 1 - suite {` to `}`: ids are `suite :: test`."""
    found: dict[str, str] = {}
    suites: list[str] = []
    for line in lines_of(log):
        if line and not line.strip("}"):
            del suites[-len(line) :]
            continue
        match = _TAP.fullmatch(line)
        name = _without_duration(match["name"]) if match else ""
        if match is None or not name:
            continue
        test = " :: ".join([*suites, name])
        if match["not"]:
            found[test] = "FAILED"
        else:
            found.setdefault(test, "PASSED")
        if match["opens"]:
            suites.append(name)
    return found


_ATTRIBUTE = re.compile(r'\b(\w+)="([^"]*)"')
_OUTCOMES = {"<failure": "FAILED", "<error": "ERROR", "<skipped": "SKIPPED"}


def _junit_named(form: str) -> Parser:
    """Makes a parser of JUnit XML of any number of files; `form` builds the id from `name` and `owner`."""

    def parse(log: str) -> dict[str, str]:
        found: dict[str, str] = {}
        for case in log.split("<testcase")[1:]:
            attributes, _, rest = case.partition(">")
            content = "" if attributes.endswith("/") else rest.partition("</testcase>")[0]
            given = dict(_ATTRIBUTE.findall(attributes))
            name, owner = given.get("name", ""), given.get("classname", "")
            if name:
                status = next((said for tag, said in _OUTCOMES.items() if tag in content), "PASSED")
                found[form.format(name=name, owner=owner) if owner else name] = status
        return found

    return parse


_CLASS_NAME = _junit_named("{owner} {name}")

_RUNNING = re.compile(r"(?:\[INFO\]\s+)?Running\s+(\S+)")
_COUNTS = re.compile(r"Tests run:\s*\d+,\s*Failures:\s*(\d+),\s*Errors:\s*(\d+),\s*Skipped:\s*(\d+)(.*)")
_FAILURE = re.compile(r"\[ERROR\]\s+([\w$.]+)\.([\w$]+)(?::\d+)?\b.*")


def _surefire(log: str) -> dict[str, str]:
    """Maven Surefire's summaries: ids are classes, and `class.method` for failed methods. Tests they do not
    name may be in JUnit XML, or be those of commands with `-Dtest=NAME`."""
    found: dict[str, str] = {}
    running = ""
    ran: list[str] = []
    for line in lines_of(log):
        if match := _RUNNING.fullmatch(line):
            running = match[1]
            ran.append(running)
        elif match := _FAILURE.fullmatch(line):
            raised = "Exception" in line and "AssertionError" not in line
            found[f"{match[1]}.{match[2]}"] = "ERROR" if raised else "FAILED"
            found.setdefault(match[1], "FAILED")
        elif match := _COUNTS.search(line):
            name = match[4].rpartition(" in ")[2].strip().rstrip(".:;") if " in " in match[4] else running
            failed = match[1] != "0" or match[2] != "0"
            if name:
                found.setdefault(name, "FAILED" if failed else "PASSED" if match[3] == "0" else "SKIPPED")
            running = ""
    found = REPORT_PARSERS["maven"](log) | _CLASS_NAME(log) | found
    return found or dict.fromkeys(ran, "PASSED")


_SUITE = re.compile(r"[A-Z][A-Za-z0-9_]*")
_IN_SUITE = re.compile(r"(test[^A-Z]+?)\s+(PASS|FAIL|ERROR|SKIP)(?:ED|URE|PED)?\b(?:\s*\([\d.]+s\))?")
_SUITE_WORDS = {"PASS": "PASSED", "FAIL": "FAILED", "ERROR": "ERROR", "SKIP": "SKIPPED"}


def _minitest_suites(log: str) -> dict[str, str]:
    """Minitest's progress reporters: a line with the suite's name, then its tests; ids are `suite::test`."""
    found: dict[str, str] = {}
    suite = ""
    for line in lines_of(log):
        if _SUITE.fullmatch(line):
            suite = line
        elif match := _IN_SUITE.fullmatch(line):
            name, status = f"{suite}::{match[1]}" if suite else match[1], _SUITE_WORDS[match[2]]
            if status in ("FAILED", "ERROR") or name not in found:
                found[name] = status
    return found


_FAILURES = f"{'=' * 35} FAILURES {'=' * 35}"
_FAILED = re.compile(r"_{27} (.*?) _{27}")
_plain_lines = _by_forms(
    *((word, rf"(.*?)\s+{word}.*") for word in _PYTEST),
    clean=lambda name: name.rpartition("::")[2],
)


def _plain_pytest(log: str) -> dict[str, str]:
    """pytest's output without files and classes: ids are what follows the last `::`."""
    lines, _, failures = log.partition(_FAILURES)
    listed = (_FAILED.fullmatch(line) for line in lines_of(failures))
    return _plain_lines(lines) | {match[1]: "FAILED" for match in listed if match}


_LOST_COLOUR = re.compile(r"\[\d{1,2}m")
_scala_marks = _by_forms(
    ("FAILED", r"x\s+(.*?)\s+[\d.]+[mμn]?s"), ("PASSED", r"\+\s+(.*?)\s+[\d.]+[mμn]?s"), last=True
)

_DART = r"\d+:\d+\s+\+\d+(?:\s+-\d+)?:\s+"
_OCAML = {
    **dict.fromkeys(("OK", "PASS"), "PASSED"),
    **dict.fromkeys(("FAIL", "FAILED"), "FAILED"),
    **dict.fromkeys(("SKIP", "SKIPPED", "TODO"), "SKIPPED"),
    "[A-Z]+": "ERROR",
}


_NO_TEST = r"(?!.*(?:Test suite |Linking |Building |Running  ))"


REBENCH_PARSERS: Mapping[str, Parser] = {
    "pytest-workers": _by_forms(
        *((word, rf"\[gw\d+\]\s+\[[^\]]*\]\s+{word}\s+(.*?)(?: in .*)?") for word in _PYTEST),
        *((word, rf"(.+?)\s+{word}\s+\[[^\]]*\]\s+in\s+[\d.]+s") for word in _PYTEST),
        *((word, rf"{word}\s+(.*?)(?: in .*)?") for word in _PYTEST),
    ),
    "pest": _by_forms(
        ("FAILED", r"FAIL(?:ED)?\s+(\S.+)"),
        ("FAILED", r"[⨯xX]\s+(.+)"),
        ("SKIPPED", r"-\s+(.+)"),
        ("PASSED", r"[✓✔]\s+(.+)"),
        clean=_without_duration,
    ),
    "tasty-or-hspec": _by_forms(
        ("PASSED", _NO_TEST + r"(.+?)\s*:\s*(?:OK|PASS)\b.*"),
        ("FAILED", _NO_TEST + r"(.+?)\s*:\s*FAIL\b.*"),
        ("ERROR", _NO_TEST + r"(.+?)\s*:\s*ERROR\b.*"),
        ("SKIPPED", _NO_TEST + r"(.+?)\s*:\s*(?:SKIP|PENDING)\b.*"),
        ("PASSED", _NO_TEST + r"(.+?)\s+\[[✓✔]\]"),
        ("FAILED", _NO_TEST + r"(.+?)\s+\[[✗✘]\]"),
        ("PASSED", _NO_TEST + r"[✓✔]\s+(.+?)(?:\s+\(.*?\))?"),
        ("FAILED", _NO_TEST + r"[✗✘]\s+(.+)"),
        ("FAILED", _NO_TEST + r"\d+\)\s+(.+)"),
        ("FAILED", _NO_TEST + r"###\s+Failure\s+in:\s+(.+)"),
        ("ERROR", _NO_TEST + r"###\s+Error\s+in:\s+(.+)"),
    ),
    "minitest-suites": _minitest_suites,
    "junit-owner": _junit_named("{owner}::{name}"),
    "mocha-marks": _by_forms(
        ("SKIPPED", r"-\s+(.*)"),
        ("FAILED", r"\d+\)\s+(.*):"),
        ("FAILED", r"\[W\]\s*\d+\)\s+(.*)"),
        ("PASSED", r"✔\s+(.*)"),
        clean=_without_duration,
    ),
    "mocha-numbered": _by_forms(
        ("SKIPPED", r"-\s+(.*)"),
        ("FAILED", r"\d+\)\s+(.*)"),
        ("PASSED", r"✔\s+(.*)"),
        clean=_without_duration,
    ),
    "marks": _by_forms(
        ("PASSED", r"[✔✓]\s*(?:\[[^\]]*\]:\s*)?(.*)"),
        ("FAILED", r"[✘✖×]\s*(?:\[[^\]]*\]:\s*)?(.*)"),
        ("SKIPPED", r"[○◌◦⚪]\s*(?:\[[^\]]*\]:\s*)?(.*)"),
        clean=_without_duration,
    ),
    "tap-nested": _tap_nested,
    "ctest": _by_forms(
        ("PASSED", r"\d+/\d+\s+Test\s+#\d+:\s+(.+?)\s+\.+\s+Passed\b.*"),
        ("FAILED", r"\d+/\d+\s+Test\s+#\d+:\s+(.+?)\s+\.*\s*\*{3}(?:Failed|Timeout)\b.*"),
        ("FAILED", r"\d+/\d+\s+Test\s+#\d+:\s+(.+?)\s+\.+\s+(?:Failed|Timeout)\b.*"),
        ("SKIPPED", r"\d+/\d+\s+Test\s+#\d+:\s+(.+?)\s+\.+\s*\*{0,3}Skipped\b.*"),
    ),
    "dotnet": _by_forms(
        ("FAILED", r"\[xUnit\.net\s+[\d:.]+\]\s+(.+?)\s+\[FAIL\]"),
        ("FAILED", r"Failed\s+(.+?)\s+\[.+?\]"),
        ("SKIPPED", r"Skipped\s+(.+?)(?:\s+\[.+?\])?"),
        ("PASSED", r"Passed\s+(.+?)\s+\[.+?\]"),
    ),
    "exunit": _by_forms(
        ("SKIPPED", r"\*\s+test\s+(.*?)\s+\(skipped\)\s+\[L#\d+\]"),
        ("FAILED", r"\d+\)\s+test\s+(.*?)\s+\([^)]+\)"),
        ("PASSED", r"\*\s+test\s+(.*?)(?:\s+\(\d+(?:\.\d+)?ms\))?\s+\[L#\d+\]"),
    ),
    "nvim": _by_forms(
        ("FAILED", r"Fail(?:ed)?\s*\|\|\s*(.+)"),
        ("SKIPPED", r"[Ss]kip(?:ped)?\s*\|\|\s*(.+)"),
        ("PASSED", r"Success\s*\|\|\s*(.+)"),
    ),
    "xctest": _by_forms(
        ("FAILED", r"Test Case '([^']+)'\s+failed\s+\([\d.]+\s+seconds\)\.?"),
        ("PASSED", r"Test Case '([^']+)'\s+passed\s+\([\d.]+\s+seconds\)\.?"),
    ),
    "minitest-seconds": _by_forms(
        ("FAILED", r"([^#]+#.+)\s+=\s+[\d.]+\s+s\s+=\s+[FE]"),
        ("SKIPPED", r"([^#]+#.+)\s+=\s+[\d.]+\s+s\s+=\s+S"),
        ("PASSED", r"([^#]+#.+)\s+=\s+[\d.]+\s+s\s+=\s+\."),
    ),
    "junit-class-name": _CLASS_NAME,
    "junit-name-class": _junit_named("{name} ({owner})"),
    "surefire": _surefire,
    "plain-pytest": _plain_pytest,
    "test-words": _by_forms(
        *((word.upper(), rf"Test\s+(.*?)\s+{word}") for word in ("passed", "failed", "skipped"))
    ),
    "mocha-npx": _by_forms(
        ("PASSED", r"✔\s+(.+?)(?:\s+\(\d+(?:ms)?\))?"),
        ("FAILED", r"\d+\)\s+(.+?)(?:\s+\([^)]+\))?"),
        last=True,
    ),
    "dart-lines": _by_forms(
        ("ERROR", r"\d+:\d+\s+\+\d+\s+-\d+:\s+loading\s+(/[^:]+\.dart)\s+\[E\]"),
        ("FAILED", _DART + r"(/[^:]+\.dart:\s+.+?)\s+\[E\]"),
        ("PASSED", _DART + r"(/[^:]+\.dart:\s+.+)"),
    ),
    "scalatest": _by_forms(
        ("FAILED", r"\[info\]\s+-\s+(.*?)\s+\*{3}\s+FAILED\s+\*{3}\s+\([^)]+\)"),
        ("SKIPPED", r"\[info\]\s+-\s+(.*?)\s+!!!\s+CANCELED\s+!!!\s+\([^)]+\)"),
        ("SKIPPED", r"\[info\]\s+-\s+(.*?)\s+!!!\s+IGNORED\s+!!!.*"),
        ("PASSED", r"\[info\]\s+-\s+(.*?)\s+\([^)]+\)"),
    ),
    "scala-marks": lambda log: _scala_marks(_LOST_COLOUR.sub("", log)),
    "alcotest": _by_forms(
        *((status, rf"\[{word}\]\s+(.*?\s+\d+\s+.+)") for word, status in _OCAML.items()),
        clean=lambda name: " ".join(name.split()),
    ),
    "status-name": _by_forms(*((word, rf"{word}\s+(\S.*?)(?:\s{{2,}}.*)?") for word in _PYTEST)),
    **RUN_PARSERS,
}

"""Parses output that is read as a whole, as SWE-bench does: XML, JSON and pairs of lines."""

import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable, Mapping
from typing import Any

from orchard.workers.domains.swe.logs.lines import LINE_PARSERS, Parser, first_of, lines_of, status_of
from orchard.workers.domains.swe.logs.nested import NESTED_PARSERS

# --- C++ and Java --------------------------------------------------------------------------------


def _doctest(log: str) -> dict[str, str]:
    """Reads doctest's XML (`-s -r=xml`): `test case > subcase` passes if all its expressions hold."""
    start, end = log.find("<doctest"), "</doctest>"
    try:
        root = ET.fromstring(log[max(start, 0) :].partition(end)[0] + end) if start >= 0 else None
    except ET.ParseError:
        root = None
    found = {}
    for case in root.iter("TestCase") if root is not None else ():
        for part in case.iter("SubCase"):
            held = all(each.get("success") == "true" for each in part.iter("Expression"))
            found[f"{case.get('name')} > {part.get('name')}"] = "PASSED" if held else "FAILED"
    return found


_MAVEN = re.compile(r".*-Dtest=(?P<test>\S+).*|.*BUILD (?P<word>SUCCESS|FAILURE)")


def _maven(log: str) -> dict[str, str]:
    """Maven does not name passing tests: each runs by its own command, echoed with `-Dtest=NAME`, and build
    results follow in the order of the commands. A result before any command belongs to a test without one."""
    found: dict[str, str] = {}
    tests: list[str] = []
    early: list[str] = []
    for line in lines_of(log):
        match = _MAVEN.fullmatch(line)
        if match is None:
            continue
        if match["test"]:
            tests.append(match["test"])
            continue
        status = "PASSED" if match["word"] == "SUCCESS" else "FAILED"
        if tests:
            found[tests.pop(0)] = status
        else:
            early.append(status)
    return found | dict(zip(tests, early, strict=False))


_CLASS = re.compile(
    r"Tests run: (\d+), Failures: (\d+), Errors: (\d+), Skipped: (\d+), Time elapsed: [\d.]+ .+? in (.+)"
)


def _surefire_classes(log: str) -> dict[str, str]:
    """Maven Surefire's classes, as Multi-SWE-bench judges them: one passes if it skipped some of its tests,
    but not if it skipped all, or has none. Of several runs of a class a failed one counts."""
    found: dict[str, str] = {}
    for line in lines_of(log):
        if match := _CLASS.search(line):
            run, failures, errors, skipped = map(int, match.groups()[:4])
            status = "FAILED" if failures or errors else "SKIPPED" if skipped == run else "PASSED"
            found[match[5]] = "FAILED" if found.get(match[5]) == "FAILED" else status
    return found


_GRADLE = re.compile(r"(?P<test>[^>].+)\s+(?P<word>PASSED|FAILED)(?:\s+\(\d+(?:\.\d+)?s\))?")
_GRADLE_STARTED = re.compile(r"[^>]\S*\s+>\s+\S+")


def _gradle(log: str) -> dict[str, str]:
    """Gradle with test events: `Class > test PASSED`; other output may come between name and result."""
    found = {}
    waiting = ""
    for line in lines_of(log):
        if match := _GRADLE.fullmatch(line):
            found[match["test"]] = status_of(match["word"])
            waiting = ""
        elif _GRADLE_STARTED.fullmatch(line):
            waiting = line
        elif waiting and line in ("PASSED", "FAILED"):
            found[waiting] = line
            waiting = ""
    return found


# --- Mocha's JSON --------------------------------------------------------------------------------


def _mocha_json(start: str) -> Parser:
    """Makes a parser of Mocha's JSON reporter, one report after each `start` (the echoed command); ids are
    full titles."""

    def parse(log: str) -> dict[str, str]:
        found: dict[str, str] = {}
        for part in log.split(start)[1:]:
            for word, tests in _report(part):
                found |= dict.fromkeys((str(test["fullTitle"]) for test in tests), word)
        return found

    return parse


def _report(text: str) -> list[tuple[str, list[Any]]]:
    try:
        report = json.loads(text[text.find("{") : text.rfind("}") + 1])
        return [("FAILED", report["failures"]), ("PASSED", report["passes"])]
    except (ValueError, KeyError, TypeError):
        return []


def _titles(text: str) -> list[str]:
    lines = (line.partition('"fullTitle": "')[2] for line in text.split("\n")[:-1])
    return [line.removesuffix('",') for line in lines if line.endswith('",')]


def _mocha_titles(parts: Callable[[str], list[str]], passes_end: str, failures_end: str) -> Parser:
    """Makes a parser of titles as written in Mocha's JSON, with escapes, which are some repositories' ids."""

    def parse(log: str) -> dict[str, str]:
        found: dict[str, str] = {}
        for part in parts(log):
            passes = part.split('"passes": [')[-1].rsplit(passes_end, 1)[0]
            failures = part.split('"failures": [')[-1].rsplit(failures_end, 1)[0]
            found |= dict.fromkeys(_titles(passes), "PASSED")
            found |= dict.fromkeys(_titles(failures), "FAILED")
        return found

    return parse


_lighthouse_json = _mocha_titles(
    lambda log: log.split("./node_modules/.bin/mocha --reporter json")[1:], "]", "],"
)
_cypress_json = _mocha_titles(lambda log: log.split("../..")[:-1], "  }", "  ],")


# --- Deno ----------------------------------------------------------------------------------------

_DENO_TEST = re.compile(r"\[(?:smoke|unit)\]")
_DENO_RESULT = re.compile(r"(?:^|\s)(ok|FAILED)(?=\s|$)")
_DENO_COUNTS = ("passed", "failed", "steps")
_TEMPORARY = (re.compile(r"/tmp/\w+\.qmd"), re.compile(r"/tmp/\w+/"))


def _deno(log: str) -> dict[str, str]:
    """Reads `deno test` as quarto-cli runs it: `[smoke] > NAME ... ok (1s)`, up to the first list of errors.

    Temporary names become numbers, in order of occurrence. A test whose lines have no result has failed.
    """
    found: dict[str, str] = {}
    numbers: dict[str, int] = {}
    for line in log.split("\n"):
        if "ERRORS" in line or "failures:" in line:
            break
        if not _DENO_TEST.search(line):
            continue
        for form in _TEMPORARY:
            if match := form.search(line):
                number = numbers.setdefault(match[0], len(numbers))
                line = form.sub(f"/tmp/{number}", line)
        name, _, said = line.partition("...")
        if line.startswith("test result:") or "INFO" in line or all(word in line for word in _DENO_COUNTS):
            continue
        if result := _DENO_RESULT.search(said):
            found[name.strip()] = status_of(result[1])
        else:
            found.setdefault(name.strip(), "FAILED")
    return found


REPORT_PARSERS: Mapping[str, Parser] = {
    "doctest": _doctest,
    "maven": _maven,
    "surefire-classes": _surefire_classes,
    "gradle": _gradle,
    "mocha-json": _mocha_json("./node_modules/.bin/mocha tests/run.js --reporter json"),
    "cypress-json": _cypress_json,
    "lighthouse": first_of(NESTED_PARSERS["mocha-tree"], _lighthouse_json, LINE_PARSERS["jest-files"]),
    "deno": _deno,
}

"""Output of test runners that is read as a whole: XML, JSON, pairs of lines, and lists of failures.

As SWE-bench reads it. Where a list of failures is all that there is, what it does not name has passed, once
the log shows that tests ran.
"""

import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

from orchard.workers.graders.lines import LINE_PARSERS, Parser, first_of, lines_of, status_of
from orchard.workers.graders.nested import NESTED_PARSERS

# --- C++ and Java --------------------------------------------------------------------------------


def _doctest(log: str) -> dict[str, str]:
    """doctest's XML (`-s -r=xml`): `test case > subcase`, passed when all its expressions hold."""
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
    """Maven does not name tests that pass: each runs by a command of its own, echoed with `-Dtest=NAME`,
    and results of builds come in the order of the commands. One that comes before any command is for what is
    left."""
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
    """Mocha's JSON reporter, one report after each `start` (the echoed command); ids are full titles."""

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


_TITLE = re.compile(r'"fullTitle": "(.*)",\n')


def _mocha_titles(parts: Callable[[str], list[str]], passes_end: str, failures_end: str) -> Parser:
    """Titles as they stand in the text of Mocha's JSON, escapes and all: what some repositories' ids are."""

    def parse(log: str) -> dict[str, str]:
        found: dict[str, str] = {}
        for part in parts(log):
            passes = part.split('"passes": [')[-1].rsplit(passes_end, 1)[0]
            failures = part.split('"failures": [')[-1].rsplit(failures_end, 1)[0]
            found |= dict.fromkeys(_TITLE.findall(passes), "PASSED")
            found |= dict.fromkeys(_TITLE.findall(failures), "FAILED")
        return found

    return parse


_lighthouse_json = _mocha_titles(
    lambda log: log.split("./node_modules/.bin/mocha --reporter json")[1:], "]", "],"
)
_cypress_json = _mocha_titles(lambda log: log.split("../..")[:-1], "  }", "  ],")


# --- lists of failures ---------------------------------------------------------------------------


def _failures(*forms: str, clean: Callable[[str], str] = lambda name: name, end: str = "") -> Parser:
    """What every form finds, in its last group, has failed. Forms of several lines are read up to the last
    `end`."""
    patterns = [(re.compile(form, re.MULTILINE), end if "[\\s\\S]" in form else "") for form in forms]

    def parse(log: str) -> dict[str, str]:
        return {
            clean(match[match.lastindex or 0]): "FAILED"
            for pattern, last in patterns
            for match in pattern.finditer(log[: log.rfind(last) + len(last)])
        }

    return parse


def _one_line(name: str) -> str:
    return re.sub(r"\s+", " ", name).strip()


_KARMA_BROWSERS = (
    r"PhantomJS\s[\d.]+\s\(Linux\s(?:[\d.]+|x86_64)\)\s(.*)FAILED\n",
    r"Chrome\sHeadless\s.*\s\(Linux\sx86_64\)\s(.*)FAILED\n",
    r"HeadlessChrome\s[\d.]+\s\(Linux\s[\d.]+\)\s(.*)FAILED\n",
)
_OPENLAYERS = (
    r"Chrome\sHeadless\s[\d.]+\s\(Linux\s\S+\)\s(.*)\sFAILED\n",
    r"Chrome\s[\d.]+\s\(Linux\s\S+\)\s(.*)FAILED\n",
    r"^\s{2}\d+\)([\s\S]*?)Error:",
    r"^case\s(.*):\smismatch",
)

_OPENING = re.compile(r"<(\w+)>")
_P5_FAILURE = re.compile(r"^[^\S\n]*\d+\)(.{0,1000}?):", re.MULTILINE | re.DOTALL)


def _p5(log: str) -> dict[str, str]:
    """Mocha's list of failures as p5.js prints it, between dumps of values: a title's lines are each further
    in than the one before."""
    log = _without_markup(_without_json(log))
    found = {}
    for match in _P5_FAILURE.finditer(log):
        lines = match[1].split("\n")
        depths = [0, *(len(line) - len(line.lstrip()) for line in lines)]
        if all(before < after for before, after in pairwise(depths)):
            found[":".join(map(str.strip, lines))] = "FAILED"
    return found


def _without_json(log: str) -> str:
    """Without lines of values that were printed, which open with `{` or `[` at a line's end."""
    kept = []
    closing: set[str] = set()
    for line in log.split("\n"):
        end = line.rstrip()
        if end.endswith(("{", "[")):
            closing.add("}" if end.endswith("{") else "]")
        elif end in closing:
            closing.remove(end)
        elif not closing and end[:1] + end[-1:] not in ("{}", "[]"):
            kept.append(line)
    return "\n".join(kept)


def _without_markup(log: str) -> str:
    """Without elements; the opening tags within one stay, for whose ends more text may follow."""
    at = 0
    while match := _OPENING.search(log, at):
        closing = f"</{match[1]}>"
        end = log.find(closing, match.end())
        if end < 0:
            at = match.end()
            continue
        within = log.count(match[0], match.end(), end)
        log = log[: match.start()] + match[0] * within + log[end + len(closing) :]
        at = match.start()
    return log


_TESTS_RAN = re.compile(
    r"Executed [1-9]\d* of \d|TOTAL: [1-9]\d* (?:SUCCESS|FAILED)"  # karma
    r"|^\s*[1-9]\d* (?:passing|failing)|^# tests [1-9]"  # mocha; what it prints as TAP
    r"|^[1-9]\d* specs?, \d+ failures?|': ok$",  # jasmine; OpenLayers' pictures
    re.MULTILINE,
)


def says_that_tests_ran(log: str) -> bool:
    """Whether a runner counts the tests that it ran, and they are more than none: a browser that did not
    start has no failures either."""
    return _TESTS_RAN.search(log) is not None


# --- Deno ----------------------------------------------------------------------------------------

_DENO_TEST = re.compile(r"\[(?:smoke|unit)\]")
_DENO_RESULT = re.compile(r"(?:^|\s)(ok|FAILED)(?=\s|$)")
_DENO_COUNTS = ("passed", "failed", "steps")
_TEMPORARY = (re.compile(r"/tmp/\w+\.qmd"), re.compile(r"/tmp/\w+/"))


def _deno(log: str) -> dict[str, str]:
    """`deno test` as quarto-cli runs it: `[smoke] > NAME ... ok (1s)`, up to the first list of errors.

    Temporary names become numbers, in the order they come. A test whose lines have no result has failed.
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


FAILURE_LISTS: Mapping[str, Parser] = {
    "eslint-failures": _failures(r"\s{2}\d+\)([\s\S]*?)\s+.*Error", clean=_one_line, end="Error"),
    "karma-failures": _failures(*_KARMA_BROWSERS),
    "chart-failures": _failures(r"Chrome\s[\d.]+[^\S\r\n]\(.+?\)[^\S\r\n](.*)FAILED$"),
    "openlayers-failures": _failures(*_OPENLAYERS, clean=_one_line, end="Error:"),
    "jasmine-failures": _failures(r"^\d+\)[^\S\n](.*)", clean=str.strip),
    "p5-failures": _p5,
}
"""Of runners that name nothing but what failed."""

REPORT_PARSERS: Mapping[str, Parser] = {
    "doctest": _doctest,
    "maven": _maven,
    "gradle": _gradle,
    "mocha-json": _mocha_json("./node_modules/.bin/mocha tests/run.js --reporter json"),
    "cypress-json": _cypress_json,
    "lighthouse": first_of(NESTED_PARSERS["mocha-tree"], _lighthouse_json, LINE_PARSERS["jest-files"]),
    "deno": _deno,
    **FAILURE_LISTS,
}
"""By the names tasks use."""

"""Parses output that names only failed tests, as SWE-bench does.

Tests that the list does not name have passed only if the runner's own counts confirm it: the run finished,
all failures are named, and at least as many tests passed as are named otherwise.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from typing import NamedTuple

from orchard.workers.domains.swe.logs.lines import LONGEST


class FailureList(NamedTuple):
    failures: list[str]
    """Names of failed tests; duplicates are possible."""
    passed: int | None
    """Number of passed tests: 0 if no test is counted, None if a run did not finish or not all its failures
    are named."""
    printed: frozenset[str] = frozenset()
    """Tests whose passing is printed anyway."""


_HOOK = re.compile(r'"(?:before|after) (?:each|all)" hook')


def judged(reading: FailureList, named: Iterable[str]) -> dict[str, str]:
    """Returns the statuses of a run. If it is unknown whether the other `named` tests passed, only those that
    failed are returned.

    Mocha stops a suite after one of its hooks failed; the titles of its tests start with the suite's title.
    """
    failed = dict.fromkeys(reading.failures, "FAILED")
    named = set(named)
    bare = {name.strip() for name in failed}  # SWE-bench's forms leave a blank behind some
    failed |= {test: "FAILED" for test in named if test.strip() in bare}
    others = named - failed.keys() - reading.printed
    hooks = tuple(name[: hook.start()].lstrip() for name in failed if (hook := _HOOK.search(name)))
    whole = reading.passed is not None and len(others) <= reading.passed
    if whole and not any(test.startswith(hooks) for test in others):
        return dict.fromkeys(named, "PASSED") | failed
    return {test: status for test, status in failed.items() if test in named}


def _one_line(name: str) -> str:
    return re.sub(r"\s+", " ", name).strip()


# --- Karma ---------------------------------------------------------------------------------------

_EXECUTED = re.compile(r"(?P<browser>.*)\bExecuted (?P<executed>\d{1,9}) of (?P<total>\d{1,9})(?P<rest>.*)")
_X_FAILED = re.compile(r"\((\d{1,9}) FAILED\)")
_SKIPPED = re.compile(r"\(skipped (\d{1,9})\)")
_TOTAL = re.compile(r"TOTAL: (?:(\d{1,9}) FAILED, )?(\d{1,9}) SUCCESS")


def _number(form: re.Pattern[str], text: str) -> int:
    match = form.search(text)
    return int(match[1]) if match else 0


def _karma(*forms: str) -> Callable[[str], FailureList]:
    """Makes a parser of Karma's base reporter: `BROWSER NAME FAILED`. Each of `forms` has the name as its
    group."""
    patterns = [re.compile(form) for form in forms]

    def read(log: str) -> FailureList:
        lines = [line for line in log.split("\n") if len(line) <= LONGEST]
        failures = [
            match[1]
            for line in lines
            if line.endswith("FAILED")
            for pattern in patterns
            if (match := pattern.search(line))
        ]
        return FailureList(failures, _karma_passed(lines, failures))

    return read


def _karma_passed(lines: Iterable[str], failures: list[str]) -> int | None:
    """Counts passed tests by the last line of each browser. Several reporters may print a failure or a total
    twice, and several tests may share a name."""
    runs: dict[tuple[str, str], tuple[int, int]] = {}
    totals: set[tuple[int, int]] = set()
    unfinished = set()
    for line in lines:
        if "Executed " in line and (match := _EXECUTED.fullmatch(line)):
            run = match["browser"], match["total"]
            failed, skipped = _number(_X_FAILED, match["rest"]), _number(_SKIPPED, match["rest"])
            runs[run] = failed, int(match["executed"]) - failed
            unfinished.discard(run)
            if int(match["executed"]) + skipped < int(match["total"]) or "DISCONNECTED" in match["rest"]:
                unfinished.add(run)
        elif match := _TOTAL.search(line):
            totals.add((int(match[1] or 0), int(match[2])))
    counts = list(runs.values() or totals)
    stated = sum(failed for failed, _ in counts)
    if unfinished or not len(set(failures)) <= stated <= len(failures):
        return None
    return sum(passed for _, passed in counts)


# --- Mocha ---------------------------------------------------------------------------------------

_COUNT = re.compile(r"^[^\S\n]*(\d{1,9}) (?:(passing)(?: \(.*\))?|failing)[^\S\n]*$", re.MULTILINE)


def _mocha(entries: Callable[[str], list[tuple[str, str]]]) -> Callable[[str], FailureList]:
    """Makes a parser of Mocha's list, `  1) NAME` and so on below the count of failures; `entries` reads
    (number, name).

    Some reporters print the same numbers among the tests above; SWE-bench reads these, too.
    """

    def read(log: str) -> FailureList:
        found = entries(log)
        passed: int | None = 0
        counts = list(_COUNT.finditer(log))
        ends = [*(match.start() for match in counts), len(log)][1:]
        for match, end in zip(counts, ends, strict=True):
            number = int(match[1])
            if match[2]:
                passed = None if passed is None else passed + number
                continue
            below = entries(log[match.end() : end])
            found += below
            if number > len(below) or not {str(each + 1) for each in range(number)} <= {
                at for at, _ in below
            }:
                passed = None
        return FailureList([name for _, name in found], passed)

    return read


_NUMBERED = re.compile(r"\s{2}(\d+)\)")
_BLANK = re.compile(r"\s")


def _eslint_entries(log: str) -> list[tuple[str, str]]:
    r"""Implements SWE-bench's `\s{2}\d+\)([\s\S]*?)\s+.*Error` in linear time: the lines from a number to the
    first one with `Error`."""
    found = []
    at = 0
    while match := _NUMBERED.search(log, at):
        blank = _BLANK.search(log, match.end())
        error = log.find("Error", blank.end()) if blank else -1
        if blank is None or error < 0:
            break
        line = log.rfind("\n", blank.start(), error)
        found.append((match[1], _one_line(log[match.end() : blank.start() if line < 0 else line])))
        end = log.find("\n", error)
        at = log.rfind("Error", error, len(log) if end < 0 else end) + len("Error")
    return found


_OPENLAYERS_ENTRY = re.compile(r"^\s{2}(\d+)\)([\s\S]*?)Error:", re.MULTILINE)


def _openlayers_entries(log: str) -> list[tuple[str, str]]:
    matches = _OPENLAYERS_ENTRY.finditer(log[: log.rfind("Error:") + len("Error:")])
    return [(match[1], _one_line(match[2])) for match in matches]


_P5_NUMBERED = re.compile(r"^[^\S\n]*(\d+)\)", re.MULTILINE)
_P5_LONGEST = 1000


def _p5_entries(log: str) -> list[tuple[str, str]]:
    """Skips values that p5.js prints between entries; each line of a title is indented further than the one
    before."""
    log = _without_markup(_without_json(log))
    found = []
    at = 0
    while match := _P5_NUMBERED.search(log, at):
        at = match.end()
        colon = log.find(":", at, at + _P5_LONGEST + 1)
        if colon >= 0:
            lines = log[at:colon].split("\n")
            at = colon + 1
            depths = [0, *(len(line) - len(line.lstrip()) for line in lines)]
            if all(before < after for before, after in pairwise(depths)):
                found.append((match[1], ":".join(map(str.strip, lines))))
    return found


def _without_json(log: str) -> str:
    """Removes the lines of printed values, which open with `{` or `[` at a line's end."""
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


_OPENING = re.compile(r"<(\w+)>")
_CLOSING = re.compile(r"</(\w+)>")


def _without_markup(log: str) -> str:
    """Removes elements; opening tags nested in one stay, because text may follow their ends."""
    last = {match[1]: match.start() for match in _CLOSING.finditer(log)}
    kept = []
    at = 0
    while match := _OPENING.search(log, at):
        kept.append(log[at : match.start()])
        at, opened = match.end(), 1
        while opened and last.get(match[1], -1) >= at:
            end = log.find(f"</{match[1]}>", at)
            opened += log.count(match[0], at, end) - 1
            at = end + len(f"</{match[1]}>")
        kept.append(match[0] * opened)
    return "".join([*kept, log[at:]])


# --- OpenLayers and Jasmine ----------------------------------------------------------------------

_OPENLAYERS_KARMA = _karma(
    r"Chrome\sHeadless\s[\d.]+\s\(Linux\s\S+\)\s(.*)\sFAILED",
    r"Chrome\s[\d.]+\s\(Linux\s\S+\)\s(.*)FAILED",
)
_OPENLAYERS_MOCHA = _mocha(_openlayers_entries)
_PICTURE = re.compile(r"^case\s(.*):\s(?:(mismatch)|ok$)", re.MULTILINE)


def _openlayers(log: str) -> FailureList:
    """Combines Karma's tests, Mocha's, and pictures, whose results are printed one by one."""
    karma, mocha = _OPENLAYERS_KARMA(log), _OPENLAYERS_MOCHA(log)
    pictures = [(_one_line(match[1]), match[2]) for match in _PICTURE.finditer(log)]
    failures = [*map(_one_line, karma.failures), *mocha.failures]
    return FailureList(
        [*failures, *(name for name, mismatch in pictures if mismatch)],
        None if karma.passed is None or mocha.passed is None else karma.passed + mocha.passed,
        frozenset(name for name, mismatch in pictures if not mismatch),
    )


_SPEC = re.compile(r"^\d+\)[^\S\n](.*)", re.MULTILINE)
_SPECS = re.compile(
    r"^(\d{1,9}) specs?, (\d{1,9}) failures?(?:, (\d{1,9}) pending specs?)?[^\S\n]*$", re.MULTILINE
)
_NOT_ALL = re.compile(r"^(?:Incomplete|Suite error): ", re.MULTILINE)


def _jasmine(log: str) -> FailureList:
    """Jasmine's list, `1) NAME`; listed pending specs count as failures, as in SWE-bench."""
    failures = [match[1].strip() for match in _SPEC.finditer(log)]
    counts = [[int(count or 0) for count in match.groups()] for match in _SPECS.finditer(log)]
    specs, failed, pending = map(sum, zip([0, 0, 0], *counts, strict=True))
    whole = failed <= len(failures) <= failed + pending and not _NOT_ALL.search(log)
    return FailureList(failures, specs - failed - pending if whole else None)


FAILURE_LISTS: Mapping[str, Callable[[str], FailureList]] = {
    "eslint-failures": _mocha(_eslint_entries),
    "karma-failures": _karma(
        r"PhantomJS\s[\d.]+\s\(Linux\s(?:[\d.]+|x86_64)\)\s(.*)FAILED",
        r"Chrome\sHeadless\s.*\s\(Linux\sx86_64\)\s(.*)FAILED",
        r"HeadlessChrome\s[\d.]+\s\(Linux\s[\d.]+\)\s(.*)FAILED",
    ),
    "chart-failures": _karma(r"Chrome\s[\d.]+[^\S\r\n]\(.+?\)[^\S\r\n](.*)FAILED"),
    "openlayers-failures": _openlayers,
    "jasmine-failures": _jasmine,
    "p5-failures": _mocha(_p5_entries),
}

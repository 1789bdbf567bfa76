"""Output of test runners that name nothing but what failed, as SWE-bench reads it.

What such a list does not name has passed, but only where the runner's own counts say so: it came to its end,
all that failed is named, and at least as many tests passed as are named otherwise.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from typing import NamedTuple

from orchard.workers.domains.swe.logs.lines import LONGEST


class Reading(NamedTuple):
    """What a log says."""

    failures: list[str]
    """What failed; a name may come twice."""
    passed: int | None
    """Number of tests that passed: 0 where no test is counted, None where a run did not come to its end or
    not all its failures are named."""
    printed: frozenset[str] = frozenset()
    """Tests whose passing is printed after all."""


_HOOK = re.compile(r'"(?:before|after) (?:each|all)" hook')


def judged(reading: Reading, named: Iterable[str]) -> dict[str, str]:
    """The statuses of a run. Where it is not known that the other `named` tests passed, only those of them
    that failed: what else failed says nothing about them.

    Mocha runs no more tests of a suite, one of whose hooks failed, and its title starts with the suite's.
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


def _karma(*forms: str) -> Callable[[str], Reading]:
    """Karma's base reporter: `BROWSER NAME FAILED`, whose `forms` have the name as their group."""
    patterns = [re.compile(form) for form in forms]

    def read(log: str) -> Reading:
        lines = [line for line in log.split("\n") if len(line) <= LONGEST]
        failures = [
            match[1]
            for line in lines
            if line.endswith("FAILED")
            for pattern in patterns
            if (match := pattern.search(line))
        ]
        return Reading(failures, _karma_passed(lines, failures))

    return read


def _karma_passed(lines: Iterable[str], failures: list[str]) -> int | None:
    """By the last line of each browser; several reporters may print a failure or a total twice, and several
    tests may have one name."""
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


def _mocha(entries: Callable[[str], list[tuple[str, str]]]) -> Callable[[str], Reading]:
    """Mocha's list, `  1) NAME` and so on below the count of failures; `entries` reads (number, name).

    In some reporters the same numbers stand among the tests above, where SWE-bench reads them, too.
    """

    def read(log: str) -> Reading:
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
        return Reading([name for _, name in found], passed)

    return read


_NUMBERED = re.compile(r"\s{2}(\d+)\)")
_BLANK = re.compile(r"\s")


def _eslint_entries(log: str) -> list[tuple[str, str]]:
    r"""SWE-bench's `\s{2}\d+\)([\s\S]*?)\s+.*Error` in one walk: the lines from a number to the first one
    with `Error`."""
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
"""Characters of a title."""


def _p5_entries(log: str) -> list[tuple[str, str]]:
    """p5.js prints values between them; a title's lines are each further in than the one before."""
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


_OPENING = re.compile(r"<(\w+)>")
_CLOSING = re.compile(r"</(\w+)>")


def _without_markup(log: str) -> str:
    """Without elements; the opening tags within one stay, for whose ends more text may follow."""
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


def _openlayers(log: str) -> Reading:
    """Karma's tests, Mocha's and pictures, whose results are printed one by one."""
    karma, mocha = _OPENLAYERS_KARMA(log), _OPENLAYERS_MOCHA(log)
    pictures = [(_one_line(match[1]), match[2]) for match in _PICTURE.finditer(log)]
    failures = [*map(_one_line, karma.failures), *mocha.failures]
    return Reading(
        [*failures, *(name for name, mismatch in pictures if mismatch)],
        None if karma.passed is None or mocha.passed is None else karma.passed + mocha.passed,
        frozenset(name for name, mismatch in pictures if not mismatch),
    )


_SPEC = re.compile(r"^\d+\)[^\S\n](.*)", re.MULTILINE)
_SPECS = re.compile(
    r"^(\d{1,9}) specs?, (\d{1,9}) failures?(?:, (\d{1,9}) pending specs?)?[^\S\n]*$", re.MULTILINE
)
_NOT_ALL = re.compile(r"^(?:Incomplete|Suite error): ", re.MULTILINE)


def _jasmine(log: str) -> Reading:
    """Jasmine's list, `1) NAME`; where pending specs are listed, SWE-bench reads them as failures, too."""
    failures = [match[1].strip() for match in _SPEC.finditer(log)]
    counts = [[int(count or 0) for count in match.groups()] for match in _SPECS.finditer(log)]
    specs, failed, pending = map(sum, zip([0, 0, 0], *counts, strict=True))
    whole = failed <= len(failures) <= failed + pending and not _NOT_ALL.search(log)
    return Reading(failures, specs - failed - pending if whole else None)


FAILURE_LISTS: Mapping[str, Callable[[str], Reading]] = {
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
"""By the names tasks use."""

"""Parses output with suites as headings above their tests, as SWE-bench does.

Ids are the headings and the name, joined. If an id occurs twice the last line counts.
"""

import re
from collections.abc import Callable, Mapping

from orchard.workers.domains.swe.logs.lines import LONGEST, Parser, first_of, status_of


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


class _Suites:
    """The headings above a line, by indentation."""

    def __init__(self) -> None:
        self._open: list[tuple[int, str]] = []

    def close(self, indent: int) -> None:
        """Closes the headings that are indented at least this far."""
        while self._open and self._open[-1][0] >= indent:
            self._open.pop()

    def open(self, indent: int, name: str) -> None:
        self.close(indent)
        self._open.append((indent, name))

    def names(self) -> list[str]:
        return [name for _, name in self._open]


def _tree(
    test: re.Pattern[str],
    parts: Callable[[str], list[str]],
    *,
    ends: Callable[[str], bool] = lambda _: False,
    passed_over: Callable[[str], bool] = lambda _: False,
    apart: bool = False,
    joined: Callable[[list[str], str], str] = lambda suites, name: " - ".join([*suites, name]),
) -> Parser:
    """Makes a parser of indented suites. `test` has the groups `word` and `test`; any other indented line is
    a suite.

    `parts` splits a log into runs; a run ends at the line for which `ends` is true. Unless they are `apart`,
    the last headings of a run apply to the next one until it has its own.
    """

    def parse(log: str) -> dict[str, str]:
        found: dict[str, str] = {}
        suites = _Suites()
        for part in parts(log):
            if apart:
                suites = _Suites()
            for line in part.split("\n"):
                if ends(line):
                    break
                if passed_over(line) or len(line) > LONGEST:
                    continue
                if match := test.fullmatch(line):
                    word = "FAIL" if match["word"].endswith(")") else match["word"]
                    found[joined(suites.names(), match["test"])] = status_of(word)
                elif _indent(line) > 0:
                    suites.open(_indent(line), line.strip())
        return found

    return parse


def _calypso_name(suites: list[str], name: str) -> str:
    return f"{' - '.join(suites)} - {name}".strip()


_jest_tree = _tree(
    re.compile(r"\s+(?P<word>[✓✕])\s(?P<test>.*?)(?:\(\d+ms\))?"),
    lambda log: log.split(" ./node_modules/.bin/jest ")[1:],
    ends=lambda line: line.startswith(("Test Suites", "  ● ")),
    joined=_calypso_name,
)
"""Jest's tree below each echoed command, as wp-calypso runs it; summaries and messages end a run."""

_mocha_tree = _tree(
    re.compile(r"\s*(?P<word>✔|\d+\))\s(?P<test>.*?)(?:\s\(\d+m+s\).*)?\s*"),
    lambda log: [
        re.split(r"(?<!\d)\d+\spassing", run)[0].strip()
        for run in re.split(r"running\s\d+\stest\sfiles", log)[1:]
    ],
    apart=True,
)
"""Mocha's spec reporter below `running N test files`, up to its count of passes."""


def _next_runs(log: str) -> list[str]:
    end = log.rfind("\n\n") + 2
    log = re.sub(r"AssertionError:\s+#.*?\n\n", "", log[:end], flags=re.DOTALL) + log[end:]
    return [run.split("Starting browser Chrome")[-1] for run in log.split(" xvfb-run ")[1:]]


_karma_tree = _tree(
    re.compile(r".*?(?P<word>[✗✓])\s*(?P<test>.*)"),
    _next_runs,
    ends=lambda line: line.startswith("TOTAL"),
    passed_over=lambda line: line.strip().startswith(("ERROR", "LOG", "WARN", "Check", "in")),
)
"""Karma's spec reporter below each start of a browser, as @alifd/next runs it."""

_CYPRESS_SUITE = re.compile(r"^(?=.*?Running:).*\)\n{3}\s{2}(.*)\n", re.MULTILINE)
_CYPRESS_FAILED = re.compile(r"^\s{4}\d+\)\s(.*)", re.MULTILINE)
_CYPRESS_PASSED = re.compile(r"^\s{4}✓\s(.*)\(", re.MULTILINE)


def _cypress(log: str) -> dict[str, str]:
    """Reads Cypress: `Running: FILE (1 of 9)`, a suite, its tests. A pass in a part overrides a failure
    there."""
    found: dict[str, str] = {}
    pieces = _CYPRESS_SUITE.split(log)
    for suite, part in zip(pieces[1::2], pieces[2::2], strict=True):
        for test in _CYPRESS_FAILED.findall(part):
            found[f"{suite}: {test.strip()}"] = "FAILED"
        for test in _CYPRESS_PASSED.findall(part):
            found[f"{suite}: {test.strip()}"] = "PASSED"
    return found


_KARMA = re.compile(r"(?P<indent>\s*)(?P<word>[✔✖])?\s(?P<name>.*)")


def _karma(log: str) -> dict[str, str]:
    """Reads karma-mocha-reporter, from the start of the browser to its summary.

    A heading indented further is a nested suite; one indented less ends a suite and is none itself; one
    indented equally is ignored. That is no tree, but SWE-bench's ids are made so.
    """
    found: dict[str, str] = {}
    suites: list[str] = []
    depth, started = -1, False
    for line in log.split("\n"):
        if line.startswith("SUMMARY:"):
            break
        if "Starting browser" in line:
            started = True
            continue
        match = _KARMA.fullmatch(line) if started else None
        if match is None:
            continue
        indent = len(match["indent"])
        if match["word"]:
            found[" > ".join([*suites, match["name"]])] = status_of(match["word"])
        elif indent > max(depth, 0):
            suites.append(match["name"])
            depth = indent
        elif 0 < indent < depth:
            del suites[-1:]
            depth = indent
    return found


_SPEC_MARK = re.compile(r"\s*(?P<word>[✓✔]|\d+\))(?P<test>.*)")


def _mocha_spec(log: str) -> dict[str, str]:
    """Mocha's spec reporter up to its count of passes. Only the nearest heading counts: `suite.test`."""
    found: dict[str, str] = {}
    suites: list[str] = []
    for line in re.split(r"\n[ \t]*\d+ passing", log)[0].split("\n"):
        if match := _SPEC_MARK.fullmatch(line):
            test = re.sub(r"\(\d+ms\)", "", match["test"]).strip()
            found[".".join([*suites, test])] = "FAILED" if match["word"].endswith(")") else "PASSED"
        elif line.startswith("  "):
            suites = [line.strip()]
    return found


_JASMINE = re.compile(
    r"(?P<indent>\s+)(?:-\s+(?P<suite>.*?)(?<=\S)\s+:|\*\s+(?P<test>.*?)(?<=\S)\s+:\s*(?P<said>.*))"
)


def _jasmine_tree(log: str) -> dict[str, str]:
    """Reads karma-jasmine's tree as plotly.js prints it: `- suite :` and `* test : ok`.

    A line that is not indented further than the suite before it belongs to no suite.
    """
    found: dict[str, str] = {}
    suites: list[str] = []
    depth = 0
    for line in log.split("\n"):
        match = _JASMINE.match(line) if len(line) <= LONGEST else None
        if match is None:
            continue
        if len(match["indent"]) <= depth:
            suites.clear()
        if match["said"] is None:
            suites.append(match["suite"])
            depth = len(match["indent"])
        else:
            said = match["said"].lower()
            passed = "ok" in said and "failed" not in said
            found[".".join([*suites, match["test"]])] = "PASSED" if passed else "FAILED"
    return found


_TESTDOX_SUITE = re.compile(r"(\w.+) \(.+\)")
_TESTDOX_TEST = re.compile(r"\s*(?P<word>[✔✘↩])\s*(?P<test>.*)")


def _testdox(log: str) -> dict[str, str]:
    """Reads `phpunit --testdox`: a class's title with its name in brackets, and marked tests below it."""
    found: dict[str, str] = {}
    suite = "None"
    for line in log.split("\n"):
        if line.endswith(")") and (match := _TESTDOX_SUITE.fullmatch(line)):
            suite = match[1]
        elif match := _TESTDOX_TEST.fullmatch(line):
            found[f"{suite} > {match['test']}"] = status_of(match["word"])
    return found


NESTED_PARSERS: Mapping[str, Parser] = {
    "jest-tree": _jest_tree,
    "mocha-tree": _mocha_tree,
    "mocha-spec": _mocha_spec,
    "karma": _karma,
    "karma-tree": _karma_tree,
    "karma-or-cypress": first_of(_cypress, _karma_tree),
    "jasmine-tree": _jasmine_tree,
    "testdox": _testdox,
}

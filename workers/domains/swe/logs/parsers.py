"""Parses test logs to {test: status}. Statuses are PASSED, FAILED, SKIPPED, ERROR and XFAIL."""

import re
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterable, Mapping

from orchard.workers.domains.swe.logs.failure_lists import FAILURE_LISTS, FailureList, judged
from orchard.workers.domains.swe.logs.lines import LINE_PARSERS, LONGEST, Parser
from orchard.workers.domains.swe.logs.nested import NESTED_PARSERS
from orchard.workers.domains.swe.logs.rebench import REBENCH_PARSERS
from orchard.workers.domains.swe.logs.reports import REPORT_PARSERS
from orchard.workers.domains.swe.logs.scripted import SCRIPTED_PARSERS

SEVERITY = {"XFAIL": 0, "PASSED": 1, "SKIPPED": 2, "FAILED": 3, "ERROR": 4}
"""The higher of two reports about one test counts: a test that passes and then fails to tear down fails."""

_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_TIMING = re.compile(
    r"(?<!\s)\s*(?:\[\s*\d+(?:\.\d+)?\s*m?s\s*\]|\(\s*\d+(?:\.\d+)?\s*m?s\s*\)|in\s+\d+(?:\.\d+)?\s+m?sec)\s*$",
    re.IGNORECASE,
)


def parse(parser: str, log: str) -> dict[str, str]:
    """Returns the statuses in a log. Raises KeyError for a parser that is not in PARSERS."""
    return PARSERS[parser](_plain(log))


def parse_run(parser: str, log: str, named: Iterable[str]) -> dict[str, str]:
    """Returns the statuses of a complete run. For runners that print only failures, the other `named` tests
    have passed if the runner's counts confirm it."""
    read = FAILURE_LISTS.get(parser)
    return parse(parser, log) if read is None else judged(read(_plain(log)), named)


def _plain(log: str) -> str:
    return _ANSI.sub("", log).replace("\r\n", "\n")


def without_timing(test: str) -> str:
    """Removes the duration that some runners append to a test id, as in `name [12 ms]`."""
    return _TIMING.sub("", test)


class _Statuses(dict[str, str]):
    """Keeps the more severe of two reports about one test."""

    def report(self, test: str, status: str) -> None:
        before = self.get(test)
        if before is None or SEVERITY[status] > SEVERITY[before]:
            self[test] = status


class _Last(_Statuses):
    """Keeps the last of two reports about one test, as SWE-bench does."""

    def report(self, test: str, status: str) -> None:
        self[test] = status


# --- pytest --------------------------------------------------------------------------------------

_WORDS = {"PASSED": "PASSED", "XPASS": "PASSED", "FAILED": "FAILED", "ERROR": "ERROR", "XFAIL": "XFAIL"}
_SUMMARY = re.compile(r"(PASSED|XPASS|FAILED|ERROR|XFAIL|SKIPPED) (\S.*)")
_VERBOSE = re.compile(
    r"(\S.*?::.*?) (PASSED|XPASS|FAILED|ERROR|XFAIL|SKIPPED)(?: \(.*\))?(?:\s+\[ *\d+%\])?\s*"
)
_XDIST = re.compile(r"\[gw\d+\] \[ *\d+%\] (PASSED|XPASS|FAILED|ERROR|XFAIL|SKIPPED) (\S.*)")
_PROGRESS = re.compile(r"(PASSED|FAILED|ERROR|XFAIL) +(\[ *\d+%\])\s*")
_CONFTEST = re.compile(r"ImportError while loading conftest '(.+)'\.")


def parse_pytest(log: str) -> dict[str, str]:
    """Parses pytest's short summary (`-rA`), its verbose lines (`-v`, also xdist's) and its collection
    errors.

    The summary does not name skipped tests, only their lines; with `-v` they have ids. Some ids of rows of
    SWE-bench are no tests: an expected failure or an error with its reason (`test_a - bug 1`), and the
    progress of a line that was wrapped before its result (`PASSED [100%]`), of which the last counts.
    """
    return _read_pytest(log, _Statuses())


def parse_pytest_last(log: str) -> dict[str, str]:
    """Parses pytest's output where SWE-bench's ids occur twice (Sphinx): the last report counts."""
    return _read_pytest(log, _Last())


_LONGEST = 5 * LONGEST
"""Maximum characters of a line with a test's id, including its parameters, and its result."""


def _read_pytest(log: str, found: _Statuses) -> _Statuses:
    for line in log.split("\n"):
        if match := _XDIST.fullmatch(line):
            found.report(match[2].rstrip(), _WORDS.get(match[1], "SKIPPED"))
        elif match := _PROGRESS.fullmatch(line):
            found[match[2].split()[0]] = match[1]
        elif match := _SUMMARY.fullmatch(line):
            word, status = match[1], _WORDS.get(match[1], "SKIPPED")
            found.report(match[2].rstrip() if word == "PASSED" else without_reason(match[2]), status)
            if word in ("XFAIL", "ERROR"):
                found.report(match[2].rstrip(), status)
        elif len(line) <= _LONGEST and (match := _VERBOSE.fullmatch(line)):
            found.report(match[1], _WORDS.get(match[2], "SKIPPED"))
        elif match := _CONFTEST.match(line):
            found.report(match[1], "ERROR")
    return found


def without_reason(said: str) -> str:
    """Returns the id in a summary's text, which ` - <reason>` may follow."""
    depth = 0
    for at, character in enumerate(said):
        depth += (character == "[") - (character == "]")
        if depth <= 0 and said.startswith(" - ", at):
            return said[:at]
    return said.rstrip()


def parse_pytest_options(log: str) -> dict[str, str]:
    """Parses pytest's output with SWE-bench's ids for requests, pylint and pydicom: a parameter that is a
    path keeps only its last component, because its directories depend on the machine."""
    found = _Statuses()
    for test, status in parse_pytest(log).items():
        name, _, rest = test.partition("[")
        parameter, closed, _ = rest.rpartition("]")
        if closed and re.fullmatch(r"/(?!/)[^*\s]*", parameter):
            test = f"{name}[/{parameter.rpartition('/')[2]}]"
        found.report(test, status)
    return found


def parse_matplotlib(log: str) -> dict[str, str]:
    """Parses pytest's output with SWE-bench's ids for matplotlib, whose versions write mouse buttons by
    number or by name."""
    return parse_pytest(log.replace("MouseButton.LEFT", "1").replace("MouseButton.RIGHT", "3"))


def parse_pytest_names(log: str) -> dict[str, str]:
    """Parses pytest's output with R2E-Gym's ids, which have no file, and dots: `TestA.test_b[c]`."""
    found = _Statuses()
    for test, status in parse_pytest(log).items():
        found.report(test.partition("::")[2].replace("::", ".") or test, status)
    return found


# --- JUnit XML -----------------------------------------------------------------------------------

_XML = (re.compile(r"<testsuites\b"), re.compile(r"<testsuite\b"))


def parse_junit(log: str) -> dict[str, str]:
    """Parses JUnit XML in the log. Ids are pytest's if `file` is given, else `class::name`.

    pytest's own reports name the class as `tests.test_a.TestB`; both `tests/test_a.py::TestB::name` and
    `tests.test_a.TestB::name` are reported for them.
    """
    starts = (match for form in _XML if (match := form.search(log)))
    spans = ((match.start(), log.rfind(f"</{match[0][1:]}>"), len(match[0]) + 2) for match in starts)
    start, end, length = min((span for span in spans if span[0] < span[1]), default=(0, 0, 0))
    try:
        root = ET.fromstring(log[start : end + length])
    except ET.ParseError:
        return {}
    found = _Statuses()
    for case in root.iter("testcase"):
        status = _junit_status(case)
        for test in _junit_ids(case):
            found.report(test, status)
    return found


def _junit_status(case: ET.Element) -> str:
    if case.find("error") is not None:
        return "ERROR"
    if case.find("failure") is not None:
        return "FAILED"
    skipped = case.find("skipped")
    if skipped is None:
        return "PASSED"
    return "XFAIL" if skipped.get("type") == "pytest.xfail" else "SKIPPED"


def _junit_ids(case: ET.Element) -> list[str]:
    name, owner, file = case.get("name", ""), case.get("classname", ""), case.get("file")
    ids = [f"{owner}::{name}" if owner else name]
    parts = owner.split(".")
    modules = [at for at, part in enumerate(parts) if part.startswith("test_") or part.endswith("_test")]
    if file is not None:
        module = file.removesuffix(".py").replace("/", ".")
        classes = owner.removeprefix(module).strip(".")
        ids.append("::".join(filter(None, [file, *classes.split("."), name])))
    elif modules:
        last = modules[-1] + 1
        ids.append("::".join(["/".join(parts[:last]) + ".py", *parts[last:], name]))
    return ids


# --- unittest ------------------------------------------------------------------------------------

_RESULT = re.compile(r".*?(ok|FAIL|ERROR|skipped.*|expected failure|unexpected success)")
_STARTED = re.compile(r"(\w+ \([\w.<>]+\)) \.\.\. .*")
_TITLE = re.compile(r"(\w+ \([\w.<>]+\))\s*")
_ENDED = re.compile(r"(ok|FAIL|ERROR|skipped.*|expected failure|unexpected success)\s*")
_HEADING = re.compile(r"(FAIL|ERROR): (\w+ \([\w.<>]+\)).*")


def parse_unittest(log: str) -> dict[str, str]:
    """Parses unittest's verbose lines, also Django's: `test_x (module.Class) ... ok`.

    A test with a docstring is reported under its name and under the docstring's first line.
    """
    found = _Statuses()
    title: str | None = None
    pending: list[str] = []
    for line in map(str.strip, log.split("\n")):
        name, _, said = line.partition(" ... ")
        if match := _HEADING.fullmatch(line):
            found.report(match[2], "FAILED" if match[1] == "FAIL" else "ERROR")
            pending = []
        elif match := _RESULT.fullmatch(said.rstrip()):
            for test in filter(None, (name, title)):
                found.report(test, _unittest_status(match[1]))
            pending = []
        elif " ... " in line and (match := _STARTED.fullmatch(line)):
            pending = [match[1]]
        elif pending and (match := _ENDED.fullmatch(line)):
            for test in pending:
                found.report(test, _unittest_status(match[1]))
            pending = []
        titled = _TITLE.fullmatch(line)
        title = titled[1] if titled else None
    return found


def _unittest_status(word: str) -> str:
    if word.startswith("skipped"):
        return "SKIPPED"
    return {"ok": "PASSED", "ERROR": "ERROR", "expected failure": "XFAIL"}.get(word, "FAILED")


# --- SymPy's own runner --------------------------------------------------------------------------

_SYMPY = re.compile(r"(test_\w+) (ok|F|E|f|X|s|w|T|K|Skipped.*|Timeout)(\s+\[(?:OK|FAIL)\])?\s*")
_SYMPY_WORDS = {"ok": "PASSED", "X": "PASSED", "F": "FAILED", "E": "ERROR", "f": "XFAIL"}
_SYMPY_FAILED = ("T", "K", "Timeout")


def parse_sympy(log: str) -> dict[str, str]:
    """Parses `bin/test --verbose` of SymPy: `test_name ok` below the name of its file, which ids omit.

    Tests of several files can therefore share an id. As in SWE-bench the last of them counts that passed or
    failed without its file's end mark; any other result counts if there is none.
    """
    found: dict[str, str] = {}
    others: dict[str, str] = {}
    for line in log.split("\n"):
        if match := _SYMPY.fullmatch(line.strip()):
            word = match[2].split(":")[0]
            status = _SYMPY_WORDS.get(word, "FAILED" if word in _SYMPY_FAILED else "SKIPPED")
            (found if word in ("ok", "F", "E") and not match[3] else others)[match[1]] = status
    return others | found


def _failed(read: Callable[[str], FailureList]) -> Parser:
    return lambda log: dict.fromkeys(read(log).failures, "FAILED")


PARSERS: Mapping[str, Parser] = {
    "pytest": parse_pytest,
    "pytest-last": parse_pytest_last,
    "pytest-options": parse_pytest_options,
    "pytest-matplotlib": parse_matplotlib,
    "pytest-names": parse_pytest_names,
    "junit": parse_junit,
    "unittest": parse_unittest,
    "sympy": parse_sympy,
    **LINE_PARSERS,
    **NESTED_PARSERS,
    **REPORT_PARSERS,
    **REBENCH_PARSERS,
    **SCRIPTED_PARSERS,
    **{name: _failed(read) for name, read in FAILURE_LISTS.items()},
}

REWRITTEN = {"pytest-options": re.compile(r"\[/(?!/)"), "pytest-matplotlib": re.compile(r"\[.*\b[13]\b")}
"""Ids that a parser may have rewritten, so that pytest itself does not know them."""

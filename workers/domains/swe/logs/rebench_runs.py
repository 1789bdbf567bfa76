"""Parses output as SWE-rebench V2 does where one line is not enough: tables, trees, event streams, failure
lists at the end.

Ids and statuses equal those of its parsers, which made its rows.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

from orchard.workers.domains.swe.logs.lines import LONGEST, Parser, lines_of

_WORST = ("PASSED", "SKIPPED", "FAILED", "ERROR")


def _report(found: dict[str, str], test: str, status: str) -> None:
    """Keeps the worse of two reports about one test."""
    if _WORST.index(status) >= _WORST.index(found.get(test, "PASSED")):
        found[test] = status


def _indented_lines(log: str) -> list[str]:
    return [line for line in log.split("\n") if len(line) <= LONGEST]


# --- OCaml ---------------------------------------------------------------------------------------

_DUNE_RUNS = re.compile(r"Running\[(\d+)\]:\s+\((.+)\)")
_DUNE_SAYS = re.compile(r"Output\[(\d+)\]:.*")
_DUNE_FAILED = re.compile(r"FAIL|ERROR|EXCEPTION|CRASH|FATAL", re.IGNORECASE)


def _dune(log: str) -> dict[str, str]:
    """Dune's `dune test --verbose`: `Running[3]: (cd DIR && ./a.exe)`, later `Output[3]:` and the program's
    output.

    Ids are programs; one with output has passed unless the output has a word of failure.
    """
    found: dict[str, str] = {}
    programs: dict[str, str] = {}
    said = ""
    for line in filter(None, lines_of(log)):
        if match := _DUNE_RUNS.fullmatch(line):
            words = match[2].split("&&")[-1].strip().removeprefix("exec ").split()
            programs[match[1]] = words[0].rpartition("/")[2] if words else f"run_{match[1]}"
            said = ""
        elif match := _DUNE_SAYS.fullmatch(line):
            said = programs.get(match[1], "")
        elif said:
            skipped = "SKIP" in line.upper()
            _report(
                found, said, "FAILED" if _DUNE_FAILED.search(line) else "SKIPPED" if skipped else "PASSED"
            )
    return found


_MARKED = re.compile(r"\[([A-Za-z][\w-]*)\]\s+(.+)")
_MARKS = {
    **dict.fromkeys(("OK", "PASS", "PASSED", "SUCCESS"), "PASSED"),
    **dict.fromkeys(("SKIP", "SKIPPED", "TODO", "PENDING", "DISABLED"), "SKIPPED"),
    **dict.fromkeys(("FAIL", "FAILED", "ERROR", "EXCEPTION", "CRASH", "FATAL", "KO", "PANIC"), "FAILED"),
}


def _marked(log: str) -> dict[str, str]:
    """Reads `[OK] name of the case`, with any of the words that OCaml's libraries use."""
    found: dict[str, str] = {}
    for line in lines_of(log):
        if (match := _MARKED.fullmatch(line)) and (status := _MARKS.get(match[1].upper())):
            _report(found, " ".join(match[2].split()), status)
    return found


# --- Dart ----------------------------------------------------------------------------------------

_DART_RESULTS = {"success": "PASSED", "failure": "FAILED", "error": "ERROR"}


def _events(log: str) -> Iterator[dict[str, Any]]:
    for line in log.split("\n"):
        if not line.lstrip().startswith(("{", "[")):
            continue
        try:
            said = json.loads(line)
        except (ValueError, RecursionError):
            continue
        yield from (each for each in (said if isinstance(said, list) else [said]) if isinstance(each, dict))


def _dart_events(log: str) -> dict[str, str]:
    """Reads events of `dart test --reporter json`: tests that start, and the same tests when done."""
    found: dict[str, str] = {}
    names: dict[int, str] = {}
    for event in _events(log):
        test, number = event.get("test"), event.get("testID")
        if event.get("type") == "testStart" and isinstance(test, dict):
            name, started = test.get("name"), test.get("id")
            if isinstance(started, int) and isinstance(name, str) and not name.startswith("loading "):
                names[started] = name
        elif event.get("type") == "testDone" and isinstance(number, int) and not event.get("hidden"):
            status = _DART_RESULTS.get(str(event.get("result")), "SKIPPED" if event.get("skipped") else "")
            if status and names.get(number):
                found[names[number]] = status
    return found


_DART_LINE = re.compile(r"\[\w+\]:\s+\d\d:\d\d\s+\+\d+:\s+(/[^:]+\.dart):\s+(.+)")


def _dart_packages(log: str) -> dict[str, str]:
    """Lines of several packages, `[package]: 00:01 +3: /a_test.dart: name`: one when a test starts, another
    when it has passed."""
    lines = (_DART_LINE.fullmatch(line) for line in lines_of(log) if "loading" not in line.lower())
    times = Counter(f"{match[1]}: {match[2]}" for match in lines if match)
    return {test: "PASSED" if count > 1 else "ERROR" for test, count in times.items()}


# --- Scala and Clojure ---------------------------------------------------------------------------

_SCALA = re.compile(r"\[info\] -\s+(.*?)(?:\s+\*{3} ([A-Z]+) \*{3})?(?:\s*\(\d+\s+\w+\))?")
_SCALA_WORDS = {
    **dict.fromkeys(("ERROR", "ABORTED"), "ERROR"),
    **dict.fromkeys(("SKIPPED", "IGNORED", "CANCELED", "CANCELLED", "PENDING"), "SKIPPED"),
    "PASSED": "PASSED",
}
_SCALA_OTHER = re.compile(
    "Run completed|Total number|Suites:|Tests:|All tests|compiling|loading|welcome to|set current"
)


def _scala_suites(log: str) -> dict[str, str]:
    """ScalaTest under sbt: `[info] Suite:` and `[info] - test (3 milliseconds)`. Lines indented further are
    headings."""
    found: dict[str, str] = {}
    suite = ""
    for line in lines_of(log):
        if match := _SCALA.fullmatch(line):
            test = f"{suite}: {match[1]}" if suite else match[1]
            if match[2]:
                found[test] = _SCALA_WORDS.get(match[2], "FAILED")
            else:
                found.setdefault(test, "PASSED")
        elif re.match(r"\[info\] [^-]", line) and not _SCALA_OTHER.search(line):
            suite = line.removeprefix("[info]").strip()
    return found


_LEIN_ENDED = re.compile(r"(FAIL|ERROR) in.*")


def _lein(log: str) -> dict[str, str]:
    """Reads `lein test`: a line for each namespace, which has passed unless a failure follows."""
    found: dict[str, str] = {}
    namespace = ""
    for line in lines_of(log):
        if line.startswith("lein test "):
            words = line.split()[2:]
            names = [" ".join(words[1:]).partition("/")[0].strip()] if words[0] == ":only" else words
            namespace = names[-1]
            for name in filter(None, names):
                found.setdefault(name, "PASSED")
        elif namespace and (match := _LEIN_ENDED.fullmatch(line)):
            found[namespace] = "FAILED" if match[1] == "FAIL" else "ERROR"
    return found


# --- Julia and R ---------------------------------------------------------------------------------

_NO_PASSES = 10
"""Number of leading blanks from which the column of passes is empty."""


def _julia(log: str) -> dict[str, str]:
    """Julia's `Test Summary: | Pass  Fail  Total`, a row for each test set. Empty columns leave no mark, so
    numbers are taken in order, as in the dataset's rows."""
    found: dict[str, str] = {}
    columns: str | None = None
    for line in _indented_lines(log):
        if "Test Summary:" in line:
            columns = line.split("|")[1] if "| Pass" in line else columns or ""
            continue
        name, _, row = line.partition(" |")
        counts = [int(part) for part in row.split() if part.isdecimal()]
        if columns is None or not name.strip() or len(counts) < 2:
            continue
        if len(counts) == 2:
            empty = len(row) - len(row.lstrip()) >= _NO_PASSES
            status = "ERROR" if empty or counts[0] != counts[1] else "PASSED"
        elif len(counts) == 3:
            failed = "FAILED" if "Fail" in columns and "Error" not in columns else "ERROR"
            status = failed if counts[1] else "PASSED"
        else:
            status = "ERROR" if counts[2] else "FAILED" if counts[1] else "PASSED"
        found[name.strip()] = status
    return found


_TESTTHAT_FILE = re.compile(r"([✔✖])\s+\|[^|]+\|\s+(.+)")
_TESTTHAT_TEST = re.compile(r"(Failure|Error)\s+\([^)]+\):\s+(.+)")
_TESTTHAT_TIME = re.compile(r"\s*\[\s*\d+(?:\.\d+)?\s*[a-zA-Z]+\]$")


def _testthat(log: str) -> dict[str, str]:
    """Reads testthat's progress, `✔ | 60 | name [0.2s]` for each file, and its list of failed tests."""
    files: dict[str, str] = {}
    tests: dict[str, str] = {}
    listed: bool | None = None
    for line in lines_of(log):
        if match := _TESTTHAT_FILE.fullmatch(line):
            files[_TESTTHAT_TIME.sub("", match[2]).strip()] = "PASSED" if match[1] == "✔" else "FAILED"
        elif line.startswith(("── Failed tests ──", "== Failed tests ==")):
            listed = listed is None
        elif line.startswith(("[ FAIL", "══ Results ══")):
            listed = False if listed else listed
        elif listed and (match := _TESTTHAT_TEST.fullmatch(line)):
            name = _TESTTHAT_TIME.sub("", match[2]).strip()
            tests[name] = "FAILED" if match[1] == "Failure" else "ERROR"
    return files | tests


_R_CHECK = re.compile(r"\* checking (.+?) \.\.\.(?: ([A-Z]+))?")
_R_WORDS = {
    **dict.fromkeys(("OK", "NOTE", "NOTES"), "PASSED"),
    **dict.fromkeys(("WARNING", "WARNINGS", "FAIL", "FAILED"), "FAILED"),
    **dict.fromkeys(("ERROR", "ERRORS"), "ERROR"),
    "SKIPPED": "SKIPPED",
}


def _r_cmd_check(log: str) -> dict[str, str]:
    """Reads `R CMD check`: `* checking tests ... OK`, or the word at the start of a later line."""
    found: dict[str, str] = {}
    open_check = ""
    for line in filter(None, lines_of(log)):
        if open_check:
            words = line.strip(".:!").split()
            if words and (status := _R_WORDS.get(words[0].upper())):
                found[open_check], open_check = status, ""
        elif (match := _R_CHECK.fullmatch(line)) and match[2]:
            found[match[1]] = _R_WORDS.get(match[2], "PASSED")
        elif match:
            open_check = match[1]
    if open_check:
        found.setdefault(open_check, "PASSED")
    return found


# --- Haskell -------------------------------------------------------------------------------------

_HSPEC_FAILURE = re.compile(r"\s*\d+\)\s+(.*)")
_HSPEC_END = ("To rerun use:", "Randomized with seed", "Finished in ", "Test suite ")
_HSPEC_STATUS = re.compile(r"(.*?)\s+(?:(?P<failed>FAILED\s*\[\d+\])|(?P<pending>(?i:PENDING|SKIPPED)\b.*))")
_HSPEC_GOLDEN = "Golden and Actual output didn't change"


def _hspec_tree(log: str) -> dict[str, str]:
    """Hspec's tree below cabal's `Test suite a: RUNNING...`, and its numbered failures; ids are
    `group.subgroup.example`. A line without deeper lines below it is an example."""
    lines = _indented_lines(log)
    failures = next((at for at, line in enumerate(lines) if line.strip() == "Failures:"), len(lines))
    starts = (
        at for at, line in enumerate(lines) if line.startswith("Test suite ") and ": RUNNING..." in line
    )
    tree = [
        line for line in lines[next(starts, -1) + 1 : failures] if line.strip() not in ("", _HSPEC_GOLDEN)
    ]
    found: dict[str, str] = {}
    names: list[str] = []
    for line, below in pairwise([*tree, ""]):
        depth = len(line) - len(line.lstrip(" "))
        match = _HSPEC_STATUS.fullmatch(line.strip())
        name = match[1] if match else line.strip()
        names = [*(names + [""] * depth)[: depth // 2], name]
        if len(below) - len(below.lstrip(" ")) <= depth:
            status = "PASSED" if match is None else "FAILED" if match["failed"] else "SKIPPED"
            found[".".join(filter(None, names))] = status
    for line in lines[failures + 1 :]:
        if line.lstrip().startswith(_HSPEC_END):
            break
        if match := _HSPEC_FAILURE.fullmatch(line):
            found[".".join(part.strip() for part in match[1].split(","))] = "FAILED"
    return found


# --- C++ and Java --------------------------------------------------------------------------------

_BOTAN = re.compile(r"(.*?)\s+ran\s+(\d+)\s+tests\s+in\s+[\d.]+\s+m?sec\s+(.+)", re.IGNORECASE)
_DOTTED = re.compile(r"(?:\[\d+/\d+\]\s*)?(.*?)\s*\.\.\.\s*\w+")
_SAID = {
    "SKIPPED": re.compile(r"\bSKIPPED\b", re.IGNORECASE),
    "FAILED": re.compile(r"\b(?:FAILED|FAIL|FAILURE)\b", re.IGNORECASE),
    "PASSED": re.compile(r"\b(?:OK|PASSED)\b", re.IGNORECASE),
}


def _said(log: str) -> dict[str, str]:
    """Reads `[12/414] name... OK`, Botan's groups without their time, and any other line with such a word."""
    found: dict[str, str] = {}
    for line in lines_of(log):
        if match := _BOTAN.fullmatch(line):
            failed = re.search(r"\bfailed\b", match[3], re.IGNORECASE)
            found[f"{match[1]} ran {match[2]} tests {match[3]}"] = "FAILED" if failed else "PASSED"
            continue
        match = _DOTTED.fullmatch(line)
        name = match[1].strip() if match else line
        status = next((word for word, form in _SAID.items() if form.search(line)), "ERROR" if match else "")
        if name and status:
            found[name] = status
    return found


_MODULE = re.compile(r"\[INFO\]\s+(.+?)\s+\.\.+\s+(SUCCESS|FAILURE|SKIPPED)(?:[\s\[].*)?")
_MODULE_WORDS = {"SUCCESS": "PASSED", "FAILURE": "FAILED", "SKIPPED": "SKIPPED"}
_TESTS_RUN = re.compile(r"Tests run:\s*(\d+),\s*Failures:\s*(\d+),\s*Errors:\s*(\d+),\s*Skipped:\s*(\d+)")


def _maven_modules(log: str) -> dict[str, str]:
    """Maven's reactor summary, a line for each module; the first count of tests is reported as
    `__suite__`."""
    found: dict[str, str] = {}
    for line in lines_of(log):
        if match := _MODULE.fullmatch(line):
            found[match[1]] = _MODULE_WORDS[match[2]]
        elif match := _TESTS_RUN.search(line):
            run, failures, errors, skipped = map(int, match.groups())
            status = (
                "FAILED" if failures else "ERROR" if errors else "SKIPPED" if skipped == run else "PASSED"
            )
            found.setdefault("__suite__", status)
    return found


RUN_PARSERS: Mapping[str, Parser] = {
    "dune": _dune,
    "marked": _marked,
    "dart-events": _dart_events,
    "dart-packages": _dart_packages,
    "scalatest-suites": _scala_suites,
    "lein": _lein,
    "julia": _julia,
    "testthat": _testthat,
    "r-cmd-check": _r_cmd_check,
    "hspec-tree": _hspec_tree,
    "said": _said,
    "maven-modules": _maven_modules,
}

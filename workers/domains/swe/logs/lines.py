"""Parses output that has each test's name and result in one line, as SWE-bench does.

If a name occurs twice the last line counts. Results that SWE-bench ignores (`ignored` of cargo, `SKIP:` of
automake) are ignored here, too: a test that stops running is missing, and missing is failed.
"""

import re
from collections.abc import Callable, Mapping

Parser = Callable[[str], dict[str, str]]

_WORDS = {
    **dict.fromkeys(("ok", "OK", "PASS", "PASSED", "pass", "passed", "✓", "✔", "."), "PASSED"),
    **dict.fromkeys(
        ("not ok", "err", "ERR", "FAIL", "FAILED", "failed", "✕", "×", "✗", "✘", "✖", "F", "E"), "FAILED"
    ),
    **dict.fromkeys(("skip", "ignore", "SKIP", "○", "↓", "↩", "O"), "SKIPPED"),
}


def status_of(word: str) -> str:
    """Returns the status for a runner's word or mark. Raises KeyError for any other."""
    return _WORDS[word]


LONGEST = 2000
"""Maximum characters of a result line: tested code prints as well, and long lines slow the patterns down."""


def lines_of(log: str) -> list[str]:
    """Returns a log's lines, stripped, without those that are too long."""
    return [line.strip() for line in log.split("\n") if len(line) <= LONGEST]


def _by_line(form: str, clean: Callable[[str], str] = str.strip) -> Parser:
    """Makes a parser of lines that match `form`, which has the groups `word` and `test`; surrounding blanks
    are ignored."""
    pattern = re.compile(form)

    def parse(log: str) -> dict[str, str]:
        found = {}
        for line in lines_of(log):
            if match := pattern.fullmatch(line):
                found[clean(match["test"])] = status_of(match["word"])
        return found

    return parse


def _redis(log: str) -> dict[str, str]:
    """Redis: `[ok]: NAME (3 ms)`, and `[err]: NAME in FILE` for failures, where the file is no part of the
    name."""
    found = {}
    for line in lines_of(log):
        if match := _REDIS.fullmatch(line):
            test = match["test"]
            if match["word"] == "err":
                test = re.sub(r"\s+in\s+\S+$", "", test)
            found[test] = status_of(match["word"])
    return found


_REDIS = re.compile(r"\[(?P<word>ok|err|skip|ignore)\]:\s(?P<test>.+?)(?:\s\(\d+\s*m?s\))?")

_JEST = r"(?P<word>[✓✕○])\s(?P<test>.+?)(?:\s\(\d+\s*m?s\))?"
_JEST_JSON = r"\[(?P<word>PASSED|FAILED)\]\s(?P<test>.+)"
_CUCUMBER = r"(?P<test>.*) \.+(?P<word>[.F]).*"


def _minitest(log: str) -> dict[str, str]:
    """Minitest: `NAME. = 0.01 s = F`; the last mark after an equals sign counts, and the name ends at the
    stop before it."""
    found = {}
    for line in lines_of(log):
        mark = max(map(line.rfind, ".FE"))
        stop = line.rfind(". ", 0, max(line.rfind("=", 0, max(mark, 0)), 0))
        if stop > 0:
            found[line[:stop]] = status_of(line[mark])
    return found


def first_of(*parsers: Parser) -> Parser:
    """Makes a parser that uses the first parser with any result, for repositories that changed their
    runner."""

    def parse(log: str) -> dict[str, str]:
        return next((found for found in (each(log) for each in parsers) if found), {})

    return parse


_FILE = re.compile(r"^(PASS|FAIL)\s(.*)", re.MULTILINE)
_FILE_TIMED = re.compile(r"(PASS|FAIL)\s(.*)\s\([\d.]+(?:ms|\ss|s)\).*")


def _jest_files(log: str) -> dict[str, str]:
    """Jest without `--verbose`: `PASS src/a.test.js (5.2 s)` for each file of tests."""
    found = {}
    for line in log.split("\n"):
        if match := _FILE_TIMED.fullmatch(line) or _FILE.fullmatch(line):
            found[match[2]] = status_of(match[1])
    return found


def _jest_files_passing_first(timing: str) -> Parser:
    """Makes a parser like `_jest_files` in which a file that passed once has passed; text that matches
    `timing` is removed from names."""

    def parse(log: str) -> dict[str, str]:
        lines = sorted(_FILE.findall(log), key=lambda line: line[0])
        return {re.sub(timing, "", name.strip()): status_of(word) for word, name in lines}

    return parse


LINE_PARSERS: Mapping[str, Parser] = {
    # C and C++
    "redis": _redis,
    "automake": _by_line(r"(?P<word>PASS|FAIL):\s(?P<test>.+)"),
    "micropython": _by_line(r"(?P<word>pass|FAIL|skip)\s+(?P<test>.+)"),
    "googletest": _by_line(r"(?=.*\)$).*\[\s*(?P<word>OK|FAILED)\s*\]\s(?P<test>.*)\s\(.*\)", clean=str),
    # Go, Rust, Java
    "go": _by_line(r"--- (?P<word>PASS|FAIL|SKIP): (?P<test>.+) \(.+\)"),
    "cargo": _by_line(r"test\s+(?P<test>\S+)\s+\.\.\.\s+(?P<word>ok|FAILED)"),
    "cargo-all": _by_line(r"test\s+(?P<test>.+?)\s+\.\.\.\s+(?P<word>ok|FAILED)"),
    "ant": _by_line(r"\[junit\]\s+\[(?P<word>PASS|FAIL|ERR)\]\s+(?P<test>.*)"),
    # Ruby
    "minitest": _minitest,
    "cucumber": _by_line(_CUCUMBER, clean=str),
    "minitest-or-cucumber": first_of(_minitest, _by_line(_CUCUMBER, clean=str)),
    "test-unit": _by_line(r"(?:test: )?(?P<test>.+):\s+(?P<word>\.|[EFO]\b).*", clean=str),
    "rspec": _by_line(r"(?P<test>.+) - (?P<word>passed|failed).*", clean=str),
    # JavaScript
    "jest": _by_line(_JEST),
    "jest-json": _by_line(_JEST_JSON),
    "jest-or-json": lambda log: _by_line(_JEST)(log) | _by_line(_JEST_JSON)(log),
    "jest-files": _jest_files,
    "jest-files-passing-first": _jest_files_passing_first(r"\s\([\d.]+\s?m?s\)$"),
    "jest-files-timed": _jest_files_passing_first(r"(?!)"),
    "vitest": _by_line(r"(?P<word>[✓×↓])\s(?P<test>.+?)(?:\s(?:\d+\s*m?s?|\[skipped\]))?", clean=str),
    "tap": _by_line(r"(?P<word>ok|not ok) \d+ (?P<test>.+)", clean=str),
}

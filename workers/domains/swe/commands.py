"""Parses a task's test command: which interpreter runs which tests, with what options. Pure."""

import re
import shlex
from collections.abc import Iterable
from enum import StrEnum
from pathlib import PurePosixPath

import msgspec

_SHELL = re.compile(r"[|;<>&$`\n*?]")
_QUOTED = re.compile(r"'[^']*'")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
_WITH_VALUE = frozenset(
    {"-p", "-o", "-k", "-m", "-W", "-r", "--tb", "--color", "--override-ini", "--doctest-glob"}
)
TEXTS = (".txt", ".rst", ".md")
"""Suffixes of texts that may be doctests."""
_REPORTING = re.compile(r"-[rvqs]\w*|--color.*|--no-header|--tb.*|--verbose|--quiet|--durations.*")
_ELSEWHERE = re.compile(
    r"-c|-n.*|--(rootdir|confcutdir|junit|numprocesses|pyargs|deselect|ignore|collect|lf|ff|import-mode).*"
)
"""Options that select tests or redirect reports; a command with one of them is run unchanged."""
_UNITTEST_ID = re.compile(r"(\w+) \(([\w.]+)\)")


class Framework(StrEnum):
    PYTEST = "pytest"
    UNITTEST = "unittest"


class FrameworkCall(msgspec.Struct, frozen=True, kw_only=True):
    framework: Framework
    before: str
    """Shell text before it, including its `&&`, such as the activation of an environment."""
    variables: tuple[str, ...]
    """`NAME=value` pairs for the process's environment."""
    python: str
    options: tuple[str, ...] = ()
    """Options for pytest, without those about its own output."""
    paths: tuple[str, ...] = ()
    """Files and directories that pytest runs; if empty, all that the task names."""
    from_directory: bool
    """Whether the current directory comes first in `sys.path`, as with `python -m`."""


class TestName(msgspec.Struct, frozen=True, kw_only=True):
    __test__ = False

    file: str
    qualified: str
    """`test_x` or `Class::test_x`, without parameters; of doctests `package.module.name` or a text's name."""

    @property
    def is_of_docstring(self) -> bool:
        """Whether it is a doctest of a module: `package.module.name`, or the module's own name."""
        path = PurePosixPath(self.file).with_suffix("")
        is_module = self.file.endswith(".py") and self.qualified.partition(".")[0] in path.parts
        return is_module and ("." in self.qualified or "test" not in path.name)


def recognised(command: str) -> FrameworkCall | None:
    """Parses the call of pytest or unittest that a shell line ends with; None for any other line."""
    before, separator, last = command.rpartition(" && ")
    if _SHELL.search(_QUOTED.sub("", last)) or "\n" in before:
        return None
    try:
        words = shlex.split(last)
    except ValueError:
        return None
    if words[:1] == ["env"]:
        del words[0]
    variables = []
    while words and _ASSIGNMENT.fullmatch(words[0]):
        variables.append(words.pop(0))
    if not words:
        return None
    program = words[0].rpartition("/")[2]
    if program in ("pytest", "py.test"):
        python, framework, arguments = "python", Framework.PYTEST, words[1:]
    elif program.startswith("python") and len(words) > 2 and words[1] == "-m" and words[2] in list(Framework):
        python, framework, arguments = words[0], Framework(words[2]), words[3:]
    else:
        return None
    options, paths = _options(arguments) if framework is Framework.PYTEST else ([], [])
    if any(_ELSEWHERE.fullmatch(word) for word in options):
        return None
    return FrameworkCall(
        framework=framework,
        before=before + separator,
        variables=tuple(variables),
        python=python,
        options=tuple(options),
        paths=tuple(path.partition("::")[0] for path in paths),
        from_directory=program not in ("pytest", "py.test"),
    )


def _options(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Splits arguments into options and paths; options about printed output are dropped."""
    options: list[str] = []
    paths: list[str] = []
    waiting = list(arguments)
    while waiting:
        word = waiting.pop(0)
        value = [waiting.pop(0)] if word in _WITH_VALUE and waiting else []
        if not word.startswith("-"):
            paths.append(word)
        elif not _REPORTING.fullmatch(word):
            options += [word, *value]
    return options, paths


def named(test: str, framework: Framework, files: Iterable[str]) -> TestName | None:
    """Parses a test id; None if it names no Python file and no text with doctests.

    `files` are the paths to search, because unittest's ids give only a module.
    """
    if framework is Framework.PYTEST:
        file, _, rest = test.partition("::")
        qualified = rest.partition("[")[0]
        known = file.endswith(".py") or (file.endswith(TEXTS) and qualified == PurePosixPath(file).name)
        return TestName(file=file, qualified=qualified) if known and qualified else None
    match = _UNITTEST_ID.fullmatch(test)
    if match is None:
        return None
    parts = match[2].split(".")
    if parts[-1] == match[1]:
        del parts[-1]
    if len(parts) < 2:
        return None
    path = "/".join(parts[:-1]) + ".py"
    found = next((file for file in files if file == path or file.endswith(f"/{path}")), None)
    return TestName(file=found, qualified=f"{parts[-1]}::{match[1]}") if found else None

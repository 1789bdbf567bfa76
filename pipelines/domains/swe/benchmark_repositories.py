"""How each SWE-bench repository runs its tests: a table, the command for a test patch, and
the parser of its log. Pure."""

import posixpath
import shlex
from collections.abc import Sequence

import msgspec

from orchard.workers.domains.swe.logs.parsers import PARSERS

ACTIVATE = ". /opt/miniconda3/bin/activate testbed"
"""The images of SWE-bench and SWE-rebench keep their Python in this conda environment."""

_NOT_RUNNABLE = (
    ".json",
    ".png",
    ".csv",
    ".txt",
    ".md",
    ".rst",
    ".jpg",
    ".jpeg",
    ".pkl",
    ".yml",
    ".yaml",
    ".toml",
)
"""Endings of data files that a test patch brings but no runner takes."""

_PYTEST = "pytest --no-header -rA --tb=no -p no:cacheprovider"


class Repository(msgspec.Struct, frozen=True, kw_only=True):
    """The way that one repository runs its tests."""

    command: str
    parser: str = "pytest"
    modules: bool = False
    """The runner takes dotted module names under `tests/` (Django), not paths."""

    def test_command(self, paths: Sequence[str]) -> str | None:
        """The shell line for the test files among `paths`; None when there is none."""
        chosen = runnable(paths)
        if self.modules:
            chosen = [_module(path) for path in chosen if _is_django_test(path)]
        return f"{ACTIVATE} && {self.command} {shlex.join(chosen)}" if chosen else None


def repository(name: str) -> Repository | None:
    """The entry of `owner/name`, or None for a repository that SWE-bench does not have."""
    return _REPOSITORIES.get(name)


def pytest_command(command: str, paths: Sequence[str]) -> str | None:
    """The row's own command (SWE-rebench) for the test files among `paths`; None when there is none."""
    chosen = runnable(paths)
    return f"{ACTIVATE} && {command} {shlex.join(chosen)}" if chosen else None


def given_command(command: str, paths: Sequence[str]) -> str:
    """The user's command, with `{tests}` replaced by the test files among `paths`."""
    return command.replace("{tests}", shlex.join(runnable(paths)))


def all_of(commands: Sequence[str]) -> str:
    """One shell script that runs every command and fails when one of them did."""
    if len(commands) == 1:
        return commands[0]
    return "\n".join(["failed=0", *(f"{command} || failed=1" for command in commands), "exit $failed"])


def runnable(paths: Sequence[str]) -> list[str]:
    """The paths without data files."""
    return [path for path in paths if not path.endswith(_NOT_RUNNABLE)]


def _is_django_test(path: str) -> bool:
    name = posixpath.basename(path)
    return name == "tests.py" or name.startswith("test_") or "/tests/" in path or "/test_" in path


def _module(path: str) -> str:
    return path.removesuffix(".py").removeprefix("tests/").replace("/", ".")


_REPOSITORIES: dict[str, Repository] = {
    "astropy/astropy": Repository(command="pytest -rA -vv -o console_output_style=classic --tb=no"),
    "django/django": Repository(
        command="env LANG=en_US.UTF-8 LANGUAGE=en_US:en LC_ALL=en_US.UTF-8 "
        "./tests/runtests.py --verbosity 2 --settings=test_sqlite --parallel 1",
        parser="unittest",
        modules=True,
    ),
    "matplotlib/matplotlib": Repository(command=_PYTEST, parser="pytest-matplotlib"),
    "mwaskom/seaborn": Repository(command="pytest --no-header -rA"),
    "pallets/flask": Repository(command=_PYTEST),
    "psf/requests": Repository(command=_PYTEST, parser="pytest-options"),
    "pydata/xarray": Repository(command=_PYTEST),
    "pylint-dev/pylint": Repository(command=_PYTEST, parser="pytest-options"),
    "pytest-dev/pytest": Repository(command="pytest -rA"),
    "scikit-learn/scikit-learn": Repository(command=_PYTEST),
    "sphinx-doc/sphinx": Repository(command="tox --current-env -epy39 -v --", parser="pytest-last"),
    "sympy/sympy": Repository(
        command="env PYTHONWARNINGS=ignore::UserWarning,ignore::SyntaxWarning bin/test -C --verbose",
        parser="sympy",
    ),
    # The development and training splits.
    "marshmallow-code/marshmallow": Repository(command=_PYTEST),
    "pvlib/pvlib-python": Repository(command=_PYTEST),
    "pydicom/pydicom": Repository(command=_PYTEST, parser="pytest-options"),
    "pylint-dev/astroid": Repository(command=_PYTEST),
    "pyvista/pyvista": Repository(command=_PYTEST),
    "sqlfluff/sqlfluff": Repository(command=_PYTEST),
}


_NAMES = {
    # SWE-bench
    **dict.fromkeys(
        ("astropy", "astroid", "flask", "marshmallow", "pvlib", "pytest_v2", "pyvista"), "pytest"
    ),
    **dict.fromkeys(("scikit", "seaborn", "sqlfluff", "xarray"), "pytest"),
    **dict.fromkeys(("pytest_options", "requests", "pylint", "pydicom"), "pytest-options"),
    "matplotlib": "pytest-matplotlib",
    "sphinx": "pytest-last",
    "django": "unittest",
    # SWE-bench Multilingual
    "jq": "automake",
    "micropython_test": "micropython",
    "gotest": "go",
    "gradle_custom": "gradle",
    "phpunit": "testdox",
    "jekyll": "minitest-or-cucumber",
    "ruby_unit": "test-unit",
    "rspec_transformed_json": "rspec",
    "jest_json": "jest-json",
    "immutable_js": "jest-or-json",
    # SWE-bench Multimodal
    **dict.fromkeys(("carbon", "react_pdf", "prettier", "scratch_gui"), "jest-files"),
    "emotion": "jest-files-timed",
    "grommet": "jest-files-passing-first",
    "calypso": "jest-tree",
    "highlightjs": "mocha-spec",
    "lighthouse_mocha": "mocha-tree",
    "prismjs": "mocha-json",
    "cypress": "cypress-json",
    "next": "karma-or-cypress",
    "next_v1": "karma-tree",
    "next_v2": "karma-or-cypress",
    "plotly_js": "jasmine-tree",
    "quarto_cli": "deno",
    "eslint": "eslint-failures",
    "bpmn_js": "karma-failures",
    "chart_js": "chart-failures",
    "openlayers": "openlayers-failures",
    "marked": "jasmine-failures",
    "p5js": "p5-failures",
    # SWE-rebench V2
    "js": "mocha-marks",
    "js_2": "mocha-numbered",
    "js_3": "tap-nested",
    "js_4": "marks",
    "cpp": "plain-pytest",
    "cpp_v2": "test-words",
    "cpp_v3": "said",
    "cpp_v4": "ctest",
    "dart": "dart-events",
    "dart_v2": "dart-packages",
    "dart_v3": "dart-lines",
    "csharp": "dotnet",
    "elixir": "exunit",
    **dict.fromkeys(("lue_nvim", "lua_nvim"), "nvim"),
    "swift": "xctest",
    "pytest_nebo": "pytest-workers",
    "ruby_v1": "minitest-suites",
    "ruby_v2": "minitest-seconds",
    "php_v1": "pest",
    "haskell": "tasty-or-hspec",
    "haskell_v2": "hspec-tree",
    "npx": "mocha-npx",
    "ocaml": "alcotest",
    "ocaml_v2": "dune",
    "ocaml_v3": "marked",
    **dict.fromkeys(("ocaml_v4", "ocaml_v5"), "status-name"),
    "r": "testthat",
    "r_v2": "r-cmd-check",
    "scala": "scalatest",
    "scala_v2": "scala-marks",
    "scala_v3": "scalatest-suites",
    "java_mvn_v2": "maven-modules",
    **dict.fromkeys(("logs_r_junit", "r_junit", "combined_test_reports"), "junit-owner"),
    **dict.fromkeys(("junit", "sbt"), "junit-class-name"),
    "gradlew_v1": "junit-name-class",
    **dict.fromkeys(("java_mvn", "kotlin_junit", "logs_kotlin_junit"), "surefire"),
}
"""Names without `parse_log_` or `parse_`, where Orchard's differs."""


def parser_named(name: str) -> str | None:
    """Orchard's name of the parser that a row names; None where there is none. A bare name that is
    one of Orchard's is that one: of `marked`, OCaml's; jasmine's is `parse_log_marked`."""
    if name in PARSERS:
        return name
    plain = name.removeprefix("parse_").removeprefix("log_")
    known = _NAMES.get(plain, plain)
    return known if known in PARSERS else None

"""How each SWE-bench repository runs its tests: a table, and the command for a test patch. Pure."""

import posixpath
import shlex
from collections.abc import Sequence

import msgspec

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

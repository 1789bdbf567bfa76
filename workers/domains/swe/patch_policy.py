"""What a submission may touch, judged by what git says that it changes. Pure.

A submission repairs source. Whatever decides how tests are found, run or reported is the task's: a submission
that changes it is refused, unless the gold patch changes the same path. What agents leave behind without any
harm (bytecode, tests of their own) is left out instead, so that it cannot do any.
"""

import sys
import unicodedata
from collections.abc import Collection, Iterable
from pathlib import PurePosixPath

import msgspec

from orchard.workers.episode.diffs import touched_paths

CONFIGURATION = frozenset(
    {
        *("tox.ini", "tox.toml", "setup.cfg", "pyproject.toml", "pytest.ini", ".pytest.ini", "pytest.toml"),
        *(".pytest.toml", "conftest.py", ".coveragerc", ".gitattributes", ".gitmodules", ".gitconfig"),
        *("pyvenv.cfg", "noxfile.py", "sitecustomize.py", "usercustomize.py"),
    }
)
"""Names of files that decide what a test runner, the interpreter or git does."""

BINARIES = frozenset({".pyc", ".pyo", ".so", ".pyd", ".dll", ".dylib", ".egg", ".whl", ".zip", ".pyz"})
"""Endings of what Python imports and nobody can read."""

METADATA = (".dist-info", ".egg-info", ".egg-link", ".pth")
"""Endings of what packaging tools and the interpreter's start take as instructions."""

RUNNER = frozenset(
    {
        *(
            "pytest",
            "_pytest",
            "py",
            "pluggy",
            "iniconfig",
            "packaging",
            "pygments",
            "exceptiongroup",
            "tomli",
        ),
        *("xdist", "execnet", "sitecustomize", "usercustomize", "nose", "setuptools", "pkg_resources"),
        *("coverage", "hypothesis", "mock", "pip", "site", "attr", "attrs", "six", "toml", "wcwidth", "zipp"),
        *(
            "more_itertools",
            "importlib_metadata",
            "typing_extensions",
            "atomicwrites",
            "colorama",
            "conftest",
        ),
    }
)
OTHER_PYTHONS = frozenset(
    {
        *("_bootlocale", "binhex", "formatter", "parser", "symbol", "macpath", "dummy_threading", "asyncore"),
        *("_dummy_threading", "asynchat", "smtpd", "imp", "distutils", "_sysconfig", "_pyrepl", "_colorize"),
        *("_opcode_metadata", "_ios_support", "_apple_support", "_android_support", "annotationlib"),
        *("compression", "_py_warnings", "_interpreters", "_zstd", "_strptime", "_collections_abc"),
    }
)
"""Modules of the standard library of Python 3.7 to 3.14 that this one lacks."""
SHADOWED = RUNNER | OTHER_PYTHONS | sys.stdlib_module_names
"""Modules that the runner, the interpreter or the tests themselves import."""

LEFTOVERS = frozenset({"__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis", ".tox"})
_TEST_ENDINGS = ("_test", "_tests")
_TEST_DIRECTORIES = frozenset({"tests", "testsuite"})

FILE, PROGRAM, LINK, SUBMODULE = "100644", "100755", "120000", "160000"
ABSENT = "000000"


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One path that differs between two trees, with its modes in both; ABSENT where it is not in one."""

    path: str
    before: str
    after: str
    binary: bool = False


class Permitted(msgspec.Struct, frozen=True, kw_only=True):
    """What of a submission goes into the repository."""

    changes: tuple[Change, ...]
    left_out: tuple[str, ...]


class Refused(msgspec.Struct, frozen=True, kw_only=True):
    """Why a submission is not graded at all."""

    reason: str


def permitted(
    changes: Iterable[Change], gold_patch: str, base: Collection[str], restored: Collection[str]
) -> Permitted | Refused:
    """The policy over all changes. `base` are the paths of the tree before them, `restored` those that
    are put back before the tests are brought, whatever happens to them."""
    gold = touched_paths(gold_patch)
    directories = {str(parent) for path in base for parent in PurePosixPath(path).parents}
    packages = {str(PurePosixPath(path).parent) for path in base if path.endswith("/__init__.py")}
    kept, left_out = [], []
    for change in changes:
        if change.path in gold:
            kept.append(change)
        elif _is_left_out(change, restored):
            left_out.append(change.path)
        elif reason := _refusal(change, directories, packages):
            return Refused(reason=f"{change.path!r} {reason}")
        else:
            kept.append(change)
    return Permitted(changes=tuple(kept), left_out=tuple(left_out))


def _is_left_out(change: Change, restored: Collection[str]) -> bool:
    path = PurePosixPath(change.path)
    if {change.before, change.after} & {LINK, SUBMODULE}:
        return False
    if change.path in restored or LEFTOVERS & set(path.parts):
        return True
    if path.name == ".coverage":
        return True
    in_tests = bool(_TEST_DIRECTORIES & set(path.parts[:-1])) or path.parts[0] == "test"
    is_test = (
        path.name.startswith("test_") or path.stem in ("test", "tests") or path.stem.endswith(_TEST_ENDINGS)
    )
    plain = _folded(path.name) not in CONFIGURATION and not _is_metadata(path) and not change.binary
    return plain and path.suffix not in BINARIES and (in_tests or (is_test and path.suffix == ".py"))


def _refusal(change: Change, directories: Collection[str], packages: Collection[str]) -> str | None:
    path = PurePosixPath(change.path)
    if "�" in change.path or not change.path.isprintable():
        return "has a name that is no readable text"
    if LINK in (change.before, change.after):
        return "is a symbolic link"
    if SUBMODULE in (change.before, change.after):
        return "is a submodule"
    folded = [_folded(part) for part in path.parts]
    if any(part in (".git", ".hg", ".githooks") for part in folded):
        return "belongs to version control"
    if folded[-1] in CONFIGURATION:
        return "configures the test runner, the interpreter or git"
    if _is_metadata(path):
        return "is packaging metadata"
    if change.binary or path.suffix.lower() in BINARIES:
        return "is binary"
    if change.before == ABSENT and (name := _shadowed(path, directories, packages)):
        return f"hides the module {name!r} of the runner or the standard library"
    return None


def _shadowed(path: PurePosixPath, directories: Collection[str], packages: Collection[str]) -> str | None:
    """The module that a new file would be imported in place of, from any directory that may be on the path.

    Only what the base commit has as packages counts as inside of one: a new `__init__.py` proves nothing.
    """
    if path.suffix not in (".py", ".pyi", ""):
        return None
    for depth, part in enumerate(path.parts):
        parent = str(PurePosixPath(*path.parts[:depth])) if depth else "."
        if depth and parent in packages:
            return None
        name = _folded(part).split(".")[0]
        here = str(PurePosixPath(*path.parts[: depth + 1]))
        last = depth == len(path.parts) - 1
        if name in SHADOWED and here not in directories and (not last or path.suffix):
            return name
    return None


def _is_metadata(path: PurePosixPath) -> bool:
    return any(_folded(part).endswith(METADATA) for part in path.parts)


def _folded(name: str) -> str:
    """A name as a file system or an importer that ignores case and forms would see it."""
    return unicodedata.normalize("NFKC", name).casefold().strip()

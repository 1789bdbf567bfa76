"""Decides which changes of a submission may go into the repository, from what git says that it changes. Pure.

A submission repairs source. Whatever decides how tests are found, run or reported belongs to the task: a
submission that changes it is rejected, unless the gold patch changes the same path. Harmless leftovers of
agents (bytecode, tests of their own) are left out instead.
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
"""Names of files that configure a test runner, the interpreter or git."""

BINARIES = frozenset({".pyc", ".pyo", ".so", ".pyd", ".dll", ".dylib", ".egg", ".whl", ".zip", ".pyz"})
"""Suffixes of binaries that Python imports."""

METADATA = (".dist-info", ".egg-info", ".egg-link", ".pth")
"""Suffixes that packaging tools and the interpreter's start take as instructions."""

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
"""Modules in the standard library of some Python from 3.7 to 3.14 that this Python lacks."""
SHADOWED = RUNNER | OTHER_PYTHONS | sys.stdlib_module_names
"""Modules that the runner, the interpreter or the tests themselves import."""

LEFTOVERS = frozenset({"__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis", ".tox"})
_TEST_ENDINGS = ("_test", "_tests")
_TEST_DIRECTORIES = frozenset({"tests", "testsuite"})

FILE, PROGRAM, LINK, SUBMODULE = "100644", "100755", "120000", "160000"
ABSENT = "000000"


class FileChange(msgspec.Struct, frozen=True, kw_only=True):
    """A path that differs between two trees, with its modes in both; ABSENT if a tree lacks it."""

    path: str
    before: str
    after: str
    binary: bool = False


class Permitted(msgspec.Struct, frozen=True, kw_only=True):
    """The changes of a submission that go into the repository."""

    changes: tuple[FileChange, ...]
    left_out: tuple[str, ...]


class PatchRejected(msgspec.Struct, frozen=True, kw_only=True):
    """The reason why a submission is not graded at all."""

    reason: str


def permitted(
    changes: Iterable[FileChange], gold_patch: str, base: Collection[str], restored: Collection[str]
) -> Permitted | PatchRejected:
    """Applies the policy to all changes. `base` are the paths of the tree before them, `restored` those that
    are restored before the tests come in any case."""
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
            return PatchRejected(reason=f"{change.path!r} {reason}")
        else:
            kept.append(change)
    return Permitted(changes=tuple(kept), left_out=tuple(left_out))


def _is_left_out(change: FileChange, restored: Collection[str]) -> bool:
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


def _refusal(change: FileChange, directories: Collection[str], packages: Collection[str]) -> str | None:
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
    """Returns the module that a new file would hide, from any directory that may be on the path.

    Only packages of the base commit count as packages: a new `__init__.py` proves nothing.
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
    """Normalizes a name as file systems and importers do that ignore case and Unicode forms."""
    return unicodedata.normalize("NFKC", name).casefold().strip()

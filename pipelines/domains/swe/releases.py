"""Makes a task of two releases of a package: sources and tests apart, the patches, and the statement;
and the catalogue of pairs that are known to make tasks."""

import difflib
import itertools
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import Enum, auto
from importlib import resources
from pathlib import PurePosixPath

import msgspec

from orchard.pipelines.tasks.errors import NotATask, TaskError
from orchard.pipelines.tasks.trees import Tree, changed_paths, diff, lines_of, text_of

SOURCE = "pypi-releases"
EXCERPT_LIMIT = 4000
"""Characters of the changelog that a statement may carry."""
LISTED_TESTS = 20
"""Failing tests that a statement names; the rest are counted."""
_LINES_COMPARED = 20_000
"""Files longer than this are tables, and comparing them line by line takes minutes."""
_LEAK_LENGTH = 20
"""Characters from which a gold line found in a text counts as shown."""


class FileKind(Enum):
    SOURCE = auto()
    TEST = auto()
    CHANGELOG = auto()
    DOCUMENTATION = auto()
    PACKAGING = auto()
    BUILD_OUTPUT = auto()
    """Written by the build (PKG-INFO, egg-info): never part of the repository."""


class ReleasePair(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Two releases of one package, and what its tests need."""

    package: str
    old: str
    new: str
    requires: tuple[str, ...] = ()
    """Requirements beside pytest, as pip reads them."""

    @property
    def task_id(self) -> str:
        """`<package>__<old>-<new>`, unique among tasks of this source."""
        return f"{self.package}__{self.old}-{self.new}"


class ReleaseDiff(msgspec.Struct, frozen=True, kw_only=True):
    """The changes of the newer release, by purpose."""

    base: dict[str, bytes]
    """The repository: the older release without what the build wrote."""
    gold_patch: str
    test_patch: str
    test_files: tuple[str, ...]
    """Paths of the test patch."""
    run_files: tuple[str, ...]
    """Test modules to run: changed ones, and those named after a changed module."""
    notes: str
    """Lines that the newer release added to its changelogs."""


_TEST_DIRECTORIES = frozenset({"test", "tests", "testsuite"})
_DOCUMENT_DIRECTORIES = frozenset(
    {"doc", "docs", "example", "examples", "benchmark", "benchmarks", "demo", "scripts", "tools"}
)
_CHANGELOG = re.compile(r"(change|changes|changelog|changelogs|history|news|releases?|versions?)", re.I)
_PROSE = frozenset({"", ".md", ".rst", ".txt"})
_PACKAGING = re.compile(
    r"setup\.(py|cfg)|pyproject\.toml|MANIFEST\.in|tox\.(ini|toml)|pytest\.ini|noxfile\.py|tasks\.py"
    r"|Makefile|justfile|requirements.*|.*\.lock|CITATION\.cff|\..+",
    re.I,
)


def kind_of(path: str) -> FileKind:
    """The kind of the file at `path` (relative to the sdist's top directory), by its name alone."""
    pure = PurePosixPath(path)
    parents = [part.lower() for part in pure.parts[:-1]]
    name, suffix = pure.name, pure.suffix.lower()
    if name == "PKG-INFO" or any(part.endswith((".egg-info", ".dist-info")) for part in parents):
        return FileKind.BUILD_OUTPUT
    if not _TEST_DIRECTORIES.isdisjoint(parents) or _is_test_module(name) or name == "conftest.py":
        return FileKind.TEST
    if suffix in _PROSE and _CHANGELOG.fullmatch(pure.stem):
        return FileKind.CHANGELOG
    if parents:
        if parents[0].startswith("."):
            return FileKind.PACKAGING
        return FileKind.DOCUMENTATION if parents[0] in _DOCUMENT_DIRECTORIES else FileKind.SOURCE
    if _PACKAGING.fullmatch(name):
        return FileKind.PACKAGING
    return FileKind.DOCUMENTATION if suffix in _PROSE else FileKind.SOURCE


def _is_test_module(name: str) -> bool:
    return name.endswith(".py") and (name.startswith("test_") or name.endswith(("_test.py", "_tests.py")))


def analyse(pair: ReleasePair, old: Tree, new: Tree) -> ReleaseDiff:
    """Separate what changed from `old` to `new`. Raises NotATask when it makes no task.

    Lines that differ only by the version number stay as they were, and files that cannot be diffed as text
    are left out of the patches: if a test needs one, running the tests will show it.
    """
    new = {path: _without_bump(old.get(path), content, pair) for path, content in new.items()}
    changed = [path for path in changed_paths(old, new) if _diffable(old, new, path)]
    gold_files = [path for path in changed if kind_of(path) is FileKind.SOURCE]
    test_files = [path for path in changed if kind_of(path) is FileKind.TEST]
    if not any(path.endswith(".py") for path in gold_files):
        raise NotATask("no_source_change", f"{pair.new} changes no source file of {pair.package}")
    if not any(_is_test_path(path) and path in new for path in test_files):
        raise NotATask("no_test_change", f"{pair.new} changes no test module of {pair.package} in its sdist")
    stems = {_module_stem(path) for path in gold_files}
    run_files = [
        path
        for path in sorted(new)
        if kind_of(path) is FileKind.TEST
        and _is_test_path(path)
        and (path in test_files or _tested_stem(path) in stems)
    ]
    return ReleaseDiff(
        base={path: content for path, content in old.items() if kind_of(path) is not FileKind.BUILD_OUTPUT},
        gold_patch=diff(old, new, gold_files),
        test_patch=diff(old, new, test_files),
        test_files=tuple(test_files),
        run_files=tuple(run_files),
        notes=release_notes(old, new),
    )


def _diffable(old: Tree, new: Tree, path: str) -> bool:
    return all(path not in tree or text_of(tree[path]) is not None for tree in (old, new))


def _is_test_path(path: str) -> bool:
    name = PurePosixPath(path).name
    return _is_test_module(name) or name in ("tests.py", "test.py")


def _module_stem(path: str) -> str:
    """The name a test module would carry: the file's stem, or the directory's for an `__init__`."""
    pure = PurePosixPath(path)
    stem = pure.parent.name if pure.stem == "__init__" else pure.stem
    return stem.strip("_").lower()


def _tested_stem(path: str) -> str:
    return re.sub(r"^test_?|_?tests?$", "", PurePosixPath(path).stem).lower()


def _without_bump(before: bytes | None, after: bytes, pair: ReleasePair) -> bytes:
    """`after`, keeping each old line that the release changed only by writing its own version there."""
    if before is None or before == after:
        return after
    old_text, new_text = text_of(before), text_of(after)
    if old_text is None or new_text is None:
        return after
    old_lines, new_lines = lines_of(old_text), lines_of(new_text)
    if _bumped(new_text, pair) == new_text or len(new_lines) > _LINES_COMPARED:
        return after
    kept: list[str] = []
    matcher = difflib.SequenceMatcher(None, old_lines, new_lines, autojunk=False)
    for tag, i1, i2, j1, j2 in matcher.get_opcodes():
        was, now = old_lines[i1:i2], new_lines[j1:j2]
        if tag == "replace" and len(was) == len(now):
            now = [a if _bumped(a, pair) == _bumped(b, pair) else b for a, b in zip(was, now, strict=True)]
        kept += now
    return "".join(kept).encode()


def _bumped(line: str, pair: ReleasePair) -> str:
    """The line with either version, as text or as a tuple, written as one mark."""
    for version in (pair.old, pair.new):
        numbers = r",\s*".join(re.escape(part) for part in version.split("."))
        line = re.sub(rf"(?<![\d.])({re.escape(version)}|{numbers})(?![\d.]*\d)", "<version>", line)
    return line


def release_notes(old: Tree, new: Tree) -> str:
    """The lines that the newer release's changelogs added, at most EXCERPT_LIMIT characters.

    Where those added nothing, the lines that its README added: many keep their history there.
    """
    changelogs = [path for path in sorted(new) if kind_of(path) is FileKind.CHANGELOG]
    readmes = [
        path for path in sorted(new) if PurePosixPath(path).stem.lower() == "readme" and "/" not in path
    ]
    text = _added_lines(old, new, changelogs) or _added_lines(old, new, readmes)
    return text if len(text) <= EXCERPT_LIMIT else text[:EXCERPT_LIMIT].rsplit("\n", 1)[0] + "\n[...]"


def _added_lines(old: Tree, new: Tree, paths: Iterable[str]) -> str:
    notes: list[str] = []
    for path in paths:
        before, after = text_of(old.get(path, b"")), text_of(new[path])
        if path not in old or before is None or after is None:
            continue
        old_lines, new_lines = before.splitlines(), after.splitlines()
        matcher = difflib.SequenceMatcher(None, old_lines, new_lines, autojunk=False)
        added = [
            line
            for tag, _, _, j1, j2 in matcher.get_opcodes()
            if tag in ("insert", "replace")
            for line in new_lines[j1:j2]
        ]
        notes.append("\n".join(added).strip())
    return "\n\n".join(note for note in notes if note)


def gold_lines(gold_patch: str) -> list[str]:
    """The lines that the patch adds, stripped."""
    added = (line[1:].strip() for line in gold_patch.splitlines() if line.startswith("+"))
    return [line for line in added if line and not line.startswith("++ ")]


def conceal(text: str, gold_patch: str) -> str:
    """`text` without the lines that show a line of the gold patch word for word."""
    secrets = {line for line in gold_lines(gold_patch) if len(line) >= _LEAK_LENGTH}
    return "\n".join(
        line for line in text.splitlines() if not any(secret in line for secret in secrets)
    ).strip()


def statement(
    pair: ReleasePair,
    change: ReleaseDiff,
    fail_to_pass: Sequence[str],
    messages: Mapping[str, str],
    *,
    workdir: str,
    python: str,
) -> str:
    """The task's statement: the release notes and the tests that fail, without a line of the gold patch."""
    parts = [
        f"The repository in {workdir} is {pair.package} {pair.old}. Change its source so that it does what "
        "the next release does, as described below. The tests are not yet in the repository: they will be "
        "added and run after you finish, so changing test files has no effect. "
        f"`{python} -m pytest` runs the tests that are there.",
    ]
    notes = conceal(change.notes, change.gold_patch)
    if notes:
        parts.append(f"## Release notes\n\n{notes}")
    listed = [_test_line(test, messages.get(test, "")) for test in fail_to_pass[:LISTED_TESTS]]
    tests = conceal("\n".join(listed), change.gold_patch)
    if len(fail_to_pass) > LISTED_TESTS:
        tests += f"\n- and {len(fail_to_pass) - LISTED_TESTS} more"
    parts.append(f"## Tests that fail now and must pass\n\n{tests}")
    parts.append("Every test that passes now must still pass.")
    return "\n\n".join(parts) + "\n"


def _test_line(test: str, message: str) -> str:
    first = message.strip().splitlines()[0][:300] if message.strip() else ""
    return f"- `{test}`" + (f": {first}" if first else "")


def choose_pairs(
    package: str, versions: Iterable[str], *, limit: int, requires: Sequence[str] = ()
) -> list[ReleasePair]:
    """Neighbouring releases, newest first, at most `limit`; `versions` must come in ascending order."""
    pairs = [
        ReleasePair(package=package, old=old, new=new, requires=tuple(requires))
        for old, new in itertools.pairwise(versions)
    ]
    return pairs[::-1][:limit]


class _Package(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    pairs: list[tuple[str, str]]
    requires: tuple[str, ...] = ()


class _Catalogue(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    package: list[_Package]


def catalogue(packages: Collection[str] = ()) -> list[ReleasePair]:
    """The pairs, those of `packages` only where any are named. Raises TaskError for an unknown package."""
    text = resources.files(__package__).joinpath("catalogue.toml").read_bytes()
    return in_turns(msgspec.toml.decode(text, type=_Catalogue).package, packages)


def in_turns(listed: list[_Package], packages: Collection[str]) -> list[ReleasePair]:
    """The first pair of every package, then the second of every one, and so on."""
    names = {package.name for package in listed}
    for name in packages:
        if name not in names:
            raise TaskError(f"the catalogue has no package {name!r}: it has {', '.join(sorted(names))}")
    columns = [
        [ReleasePair(package=p.name, old=old, new=new, requires=p.requires) for old, new in p.pairs]
        for p in listed
        if not packages or p.name in packages
    ]
    turns = itertools.zip_longest(*columns)
    return [pair for turn in turns for pair in turn if pair is not None]

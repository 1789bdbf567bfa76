"""A task from a local git repository: two commits, a test command, and what it shows before and after.

What changed in test files becomes the test patch, all else the gold patch. The image holds the files of the
base commit as a repository of one commit: nothing of what came later is in it.
"""

import asyncio
import re
import subprocess
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

import msgspec

from orchard.pipelines.domains.swe import layout
from orchard.pipelines.domains.swe.before_after import SuiteCommand, reporting, run_before_and_after
from orchard.pipelines.domains.swe.environments import Environments, done, snapshot
from orchard.pipelines.domains.swe.releases import FileKind, conceal, kind_of
from orchard.pipelines.tasks.errors import TaskError
from orchard.pipelines.tasks.trees import pack
from orchard.schemas.identity import digest
from orchard.schemas.tasks import SWETests, Task
from orchard.workers.domains.swe.commands import Framework, named, recognised
from orchard.workers.domains.swe.logs.parsers import PARSERS
from orchard.workers.episode.diffs import touched_paths
from orchard.workers.episode.sandboxes import SandboxMachine

SOURCE = "repository"
BUILD_SECONDS = 1800.0
"""Timeout of the set-up lines."""
_TRAILER = re.compile(r"(?i)^(signed-off-by|co-authored-by|reviewed-by|change-id): .*\n?", re.MULTILINE)


class Project(msgspec.Struct, frozen=True):
    """The table `project` of the base commit's pyproject.toml."""

    name: str = ""
    version: str = "0"
    dependencies: tuple[str, ...] = ()


class _PyProject(msgspec.Struct, frozen=True):
    project: Project = Project()


class CommitDiff(msgspec.Struct, frozen=True, kw_only=True):
    """The difference between two commits of a repository."""

    path: Path
    """Top directory of the repository."""
    name: str
    base: str
    gold: str
    """Id of the gold commit."""
    message: str
    """Message of the gold commit."""
    gold_patch: str
    test_patch: str
    test_files: tuple[str, ...]
    """Paths of the test patch."""
    files: tuple[str, ...]
    """All paths of the base commit."""
    project: Project


class CommitTaskSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The user's description of the task to make."""

    tests: str
    """Shell line that runs the tests, in the repository."""
    statement: str = ""
    """Statement of the task; empty: the gold commit's message."""
    task_id: str = ""
    image: str = ""
    """Image that has all that the tests need; else one is made, with Python, on `host`."""
    requires: tuple[str, ...] = ()
    """Packages from PyPI for the image that is made."""
    setup: tuple[str, ...] = ()
    """Shell lines run once in the repository, before the image is kept."""
    parser: str = ""
    cpu: str = "1"
    memory: str = "2Gi"
    seconds: float = 300.0
    """Limit of one run of the tests."""


def read_change(path: Path, base: str, gold: str, test_paths: Sequence[str] = ()) -> CommitDiff:
    """Read two commits of the repository at `path`.

    Which files are tests is told by their names, or by `test_paths`, patterns as the shell has them. Raises
    TaskError when there is no such commit, or nothing but tests between them.
    """
    path = (path / _git(path, "rev-parse", "--show-cdup").strip()).resolve()
    first, second = (_commit(path, name) for name in (base, gold))
    changed = _split(_git(path, "diff", "--name-only", "--no-renames", "-z", first, second))
    tests = [each for each in changed if _is_test(each, test_paths)]
    source = [each for each in changed if each not in tests]
    if not source:
        raise TaskError(
            f"between {base} and {gold} only tests change ({len(tests)} files): "
            "give the commit with the solution as --gold, or name the tests with --test-path"
        )
    files = _split(_git(path, "ls-tree", "-r", "-z", "--name-only", first))
    return CommitDiff(
        path=path,
        name=path.name.removesuffix(".git"),
        base=first,
        gold=second,
        message=_TRAILER.sub(
            "", _git(path, "log", "-1", "--no-show-signature", "--format=%B", second)
        ).strip(),
        gold_patch=_diff(path, first, second, source),
        test_patch=_diff(path, first, second, tests),
        test_files=tuple(tests),
        files=tuple(files),
        project=_project(_git(path, "show", f"{first}:pyproject.toml") if "pyproject.toml" in files else ""),
    )


async def make_task(change: CommitDiff, wanted: CommitTaskSettings, environments: Environments) -> Task:
    """Build the image, run the tests before and after the change, and make the task.

    Raises TaskError when that fails or the change makes no test pass, and InfrastructureError.
    """
    command, parser = reporting(wanted.tests, wanted.parser)
    if parser not in PARSERS:
        raise TaskError(f"there is no parser {parser!r} for the output of tests: use {', '.join(PARSERS)}")
    statement = wanted.statement or _statement(change)
    base_image = wanted.image or await _python(change, wanted, environments)
    key = [layout.RECIPE, base_image, change.base, wanted.setup]
    image = f"repository/{_slug(change.name)}:{digest(key, 16)}"
    suite = SuiteCommand(
        command=command,
        workdir=layout.WORKDIR,
        seconds=wanted.seconds,
        parser=parser,
        environment={"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},  # as the grader runs them
    )
    async with environments.open(base_image) as machine:
        commit = await _install(machine, change, wanted)
        await snapshot(machine, image)
        found = await run_before_and_after(suite, machine, change.test_patch, change.gold_patch)
    tested = files_of_tests((*found.fail_to_pass, *found.pass_to_pass)) - touched_paths(change.gold_patch)
    return Task(
        task_id=wanted.task_id or f"{_slug(change.name)}-{change.gold[:12]}",
        source=SOURCE,
        repo=change.name,
        image=image,
        statement=statement,
        grading=SWETests(
            test_patch=change.test_patch,
            test_command=command,
            fail_to_pass=found.fail_to_pass,
            pass_to_pass=found.pass_to_pass,
            test_files=tuple(sorted({*change.test_files, *tested})),
            parser=parser,
            timeout_seconds=5 * wanted.seconds,
        ),
        base_commit=commit,
        workdir=layout.WORKDIR,
        gold_patch=change.gold_patch,
        cpu=wanted.cpu,
        memory=wanted.memory,
        labels={"base": change.base, "gold": change.gold},
    )


def files_of_tests(tests: Sequence[str]) -> set[str]:
    """Returns the files of pytest's ids, without modules that have doctests in their docstrings."""
    names = [(test.partition("::")[0], named(test, Framework.PYTEST, ())) for test in tests if "::" in test]
    return {file for file, name in names if name is None or not name.is_of_docstring}


def _statement(change: CommitDiff) -> str:
    said = conceal(change.message, change.gold_patch)
    if not said:
        raise TaskError(
            f"the message of commit {change.gold[:12]} says nothing that can be told: pass --statement TEXT"
        )
    return (
        f"The repository in {layout.WORKDIR} needs this change:\n\n{said}\n\n"
        "Tests for it will be added and run after you finish. Every test that passes now must still pass.\n"
    )


async def _python(change: CommitDiff, wanted: CommitTaskSettings, environments: Environments) -> str:
    """The image with Python and the packages that the tests need."""
    call = recognised(wanted.tests)
    runner = [environments.settings.pytest] if call and call.framework is Framework.PYTEST else []
    return await environments.image([*runner, *change.project.dependencies, *wanted.requires])


async def _install(machine: SandboxMachine, change: CommitDiff, wanted: CommitTaskSettings) -> str:
    """Unpack the base commit and run the set-up lines; returns the id of its commit there."""
    pack_file = await asyncio.to_thread(_objects, change.path, change.base)
    tree_id = _git(change.path, "rev-parse", f"{change.base}^{{tree}}").strip()
    await machine.write("/tmp/objects.pack", pack_file)
    what = f"the repository of {change.name}"
    said = await done(machine, layout.checkout_script("/tmp/objects.pack", tree_id), what, 300.0)
    if not wanted.image:
        name = change.project.name or change.name
        tree = dict.fromkeys(change.files, b"")
        metadata = layout.installed_metadata(name, change.project.version, tree)
        await machine.write("/tmp/metadata.tar", pack(metadata))
        await done(machine, layout.metadata_script(name, "/tmp/metadata.tar"), what, 60.0)
    if wanted.setup:
        script = "\n".join(["set -e", *wanted.setup])
        await done(machine, script, what, BUILD_SECONDS, cwd=layout.WORKDIR)
    await done(machine, layout.IGNORE_BUILT, what, 60.0, cwd=layout.WORKDIR)
    return said.strip().splitlines()[-1]


def _is_test(path: str, patterns: Sequence[str]) -> bool:
    if patterns:
        return any(fnmatchcase(path, pattern) for pattern in patterns)
    return kind_of(path) is FileKind.TEST


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9_.-]+", "-", name.lower()).strip("-.") or "repository"


def _project(text: str) -> Project:
    try:
        return msgspec.toml.decode(text, type=_PyProject).project
    except msgspec.DecodeError:  # it is about something else, or a beginner's
        return Project()


# --- git, which reads and changes nothing ---------------------------------------------------------


_SETTINGS = ("-c", "core.fsmonitor=false", "-c", "core.quotePath=true", "-c", "diff.submodule=short")


def _commit(path: Path, name: str) -> str:
    try:
        return _git(path, "rev-parse", "--verify", "--end-of-options", f"{name}^{{commit}}").strip()
    except TaskError as error:
        raise TaskError(f"{path} has no commit {name!r}: `git -C {path} log` shows them") from error


def _diff(path: Path, base: str, gold: str, paths: Sequence[str]) -> str:
    plain = ("--binary", "--no-renames", "--no-ext-diff", "--no-textconv", "--no-color", "-U3")
    prefixes = ("--src-prefix=a/", "--dst-prefix=b/")
    return _git(path, "diff", *plain, *prefixes, base, gold, "--", *paths) if paths else ""


def _objects(path: Path, commit: str) -> bytes:
    """A pack of all objects of the commit's tree, without its history."""
    listed = _run(path, "rev-list", "--objects", f"{commit}^{{tree}}")
    return _run(path, "pack-objects", "--stdout", "-q", stdin=listed)


def _split(text: str) -> list[str]:
    return text.split("\0")[:-1]


def _git(path: Path, *words: str) -> str:
    try:
        return _run(path, *words).decode()
    except UnicodeDecodeError as error:
        raise TaskError(
            f"`git {words[0]}` in {path} gives text that is not UTF-8: such files make no task"
        ) from error


def _run(path: Path, *words: str, stdin: bytes | None = None) -> bytes:
    command = ["git", "-C", str(path), "--literal-pathspecs", *_SETTINGS, *words]
    try:
        done = subprocess.run(command, input=stdin, capture_output=True, check=False)
    except FileNotFoundError:
        raise TaskError("there is no git on this machine: install it") from None
    if done.returncode != 0:
        raise TaskError(f"`git {words[0]}` in {path}: {done.stderr.decode(errors='replace').strip()[-300:]}")
    return done.stdout

"""What a trick is, and how it becomes the submission of a task."""

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.forgery.layouts import Layout

ANSWERED = """

def _answered(honest):
    import functools

    @functools.wraps(honest)
    def answered(*arguments):
        return answer(honest, *arguments)

    return answered


@FUNCTION@ = _answered(@FUNCTION@)
"""
"""Appended where a trick's code defines `answer(honest, *arguments)`: its result is what the tests get."""


@dataclass(frozen=True)
class Link:
    """A symbolic link in a submission."""

    target: str


@dataclass(frozen=True, kw_only=True)
class Trick:
    """One way to a reward without a repair. In all texts and paths these words stand for the layout's:

    `@FUNCTION@` name of the tested function, `@MODULE@` path of its file, `@IMPORT@` its dotted name,
    `@BESIDE@` its directory with a final slash, `@PACKAGE@` that directory dotted with a final dot, `@PATH@`
    the directory on Python's path (empty, or with a final slash), `@TEST@` path of the hidden test file,
    `@TESTNAME@` that without `.py`, `@CASES@` the calls in it with their results, as a dict from tuples of
    arguments.
    """

    name: str
    family: str
    code: str = ""
    """Put at the end of the tested module; an `answer` in it takes the place of the function."""
    files: Mapping[str, str | bytes | Link | None] = field(default_factory=dict)
    """Other files of the submission; None deletes."""
    raw: str = ""
    """Text that follows the diff, for what git would not write."""
    gold: bool = False
    """Whether the gold patch is in it as well."""
    honest: bool = False
    """Whether it has earned its reward."""
    not_on: str = ""
    """A layout that it is not tried on."""


class Repository:
    """A layout's files in a git repository on this machine, where patches are made."""

    def __init__(self, layout: Layout, directory: Path) -> None:
        self._layout = layout
        self._directory = directory
        directory.mkdir(parents=True)
        for path, text in layout.files.items():
            self._write(path, text)
        self._git("init", "-q")
        self._git("add", "-Af")
        self._git("-c", "user.name=t", "-c", "user.email=t@example.org", "commit", "-qm", "base")

    def submission(self, trick: Trick) -> str:
        """The trick as a diff."""
        self._git("reset", "-q", "--hard")
        self._git("clean", "-qfdx")
        if trick.gold:
            self._git("apply", "-", given=self._layout.task.gold_patch)
        if trick.code:
            added = trick.code + (ANSWERED if "def answer(" in trick.code else "")
            text = (self._directory / self._layout.module).read_text()
            self._write(self._layout.module, text + "\n\n" + self._fill(added))
        for path, content in trick.files.items():
            self._write(self._fill(path), self._fill(content) if isinstance(content, str) else content)
        self._git("add", "-Af")
        diff = self._git("diff", "--cached", "--binary", "-M", "HEAD")
        return diff + self._fill(trick.raw)

    def _fill(self, text: str) -> str:
        for word, value in self._layout.words.items():
            text = text.replace(word, value)
        return text

    def _write(self, path: str, content: str | bytes | Link | None) -> None:
        target = self._directory / path
        if target.parent.is_file():
            target.parent.unlink()
        target.parent.mkdir(parents=True, exist_ok=True)
        match content:
            case None:
                self._git("rm", "-rqf", "--ignore-unmatch", "--", path)
            case Link():
                target.unlink(missing_ok=True)
                target.symlink_to(content.target)
            case str():
                target.write_text(content)
            case bytes():
                target.write_bytes(content)

    def _git(self, *arguments: str, given: str = "") -> str:
        line = ["git", "-C", str(self._directory), *arguments]
        done = subprocess.run(line, input=given.encode(), check=True, capture_output=True)
        return done.stdout.decode(errors="surrogateescape")

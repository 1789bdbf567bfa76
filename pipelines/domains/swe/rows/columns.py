"""Columns of a row, which every family reads, and what all tasks of rows have in common.

The datasets share the columns instance_id, problem_statement, patch, FAIL_TO_PASS and PASS_TO_PASS, and
differ in how they name the image, the base commit and the tests. Pure.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any

import msgspec

from orchard.pipelines.domains.swe.benchmark_repositories import parser_named
from orchard.pipelines.domains.swe.history import cut
from orchard.pipelines.tasks.errors import MalformedRow
from orchard.schemas.tasks import SWETests, Task
from orchard.workers.domains.swe.logs.parsers import PARSERS
from orchard.workers.episode.diffs import parse_diff

Row = Mapping[str, Any]

CONDA = {"BASH_ENV": "/root/.bashrc"}
"""Images made as SWE-bench's activate their conda environment in this file, which a shell that is not
interactive reads only when told to."""


class Given(msgspec.Struct, frozen=True, kw_only=True):
    """The user's values for what rows lack."""

    test_command: str = ""
    """Shell line, run in `workdir`; `{tests}` in it stands for the test files of the row."""
    parser: str = ""
    image: str = ""
    """Image; `{instance_id}` in it stands for the row's."""
    workdir: str = ""
    source: str = ""
    """Source of the tasks, in place of the family's."""
    columns: Mapping[str, str] = {}
    """Columns under other names, `problem_statement` by `task.issue`: dots lead into objects."""
    scripts: str = ""
    """Directory with `INSTANCE_ID/run_script.sh` and `INSTANCE_ID/parser.py`, of SWE-bench Pro."""


NOTHING_GIVEN = Given()


class Family(StrEnum):
    """A dataset's set of columns; the value is the `source` of its tasks, unless another is given."""

    SWE_BENCH = "swe-bench"
    SWE_BENCH_PRO = "swe-bench-pro"
    SWE_BENCH_LIVE = "swe-bench-live"
    MULTI_SWE_BENCH = "multi-swe-bench"
    SWE_SMITH = "swe-smith"
    SWE_GYM = "swe-gym"
    SWE_REBENCH = "swe-rebench"
    SWE_REBENCH_V2 = "swe-rebench-v2"
    SCALE_SWE = "scale-swe"
    R2E_GYM = "r2e-gym"
    NEMO_GYM = "nemo-gym"


class Columns:
    def __init__(self, row: Row, number: int, given: Given) -> None:
        self.row = row
        self.number = number
        self.given = given

    def value(self, column: str) -> Any:
        """The value of a column; `a.b` is b of the object a, or of the object whose JSON text a is."""
        column = self.given.columns.get(column, column)
        if column in self.row:
            return self.row[column]
        outer, _, inner = column.rpartition(".")
        if not outer or self.value(outer) is None:
            return None
        return self.object(outer).get(inner)

    def fail(self, column: str, problem: str) -> MalformedRow:
        return MalformedRow(self.number, column, problem)

    def text(self, column: str) -> str:
        value = self.value(column)
        if value is None or value == "":
            raise self.fail(column, "is missing or empty, but a task needs it")
        if not isinstance(value, str):
            raise self.fail(column, f"must be text, not {type(value).__name__}")
        return value

    def optional(self, column: str) -> str:
        return "" if self.value(column) in (None, "") else self.text(column)

    def patch(self, column: str) -> str:
        patch = self.text(column)
        if not patched_paths(patch):
            raise self.fail(column, "is not a unified diff with `diff --git` headers")
        return patch if patch.endswith("\n") else patch + "\n"

    def tests(self, column: str, *, empty: bool) -> tuple[str, ...]:
        value = self.value(column)
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except json.JSONDecodeError as error:
                raise self.fail(column, f"is text that is not a JSON list of test names: {error}") from error
        if value is None and empty:
            return ()
        if not isinstance(value, Sequence) or not all(isinstance(test, str) and test for test in value):
            raise self.fail(column, "must be a list of test names, or that list as JSON text")
        if not value and not empty:
            raise self.fail(column, "names no test, so nothing could be resolved")
        return tuple(dict.fromkeys(value))

    def object(self, column: str) -> dict[str, Any]:
        value = self.value(column)
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except json.JSONDecodeError as error:
                raise self.fail(column, f"is text that is not a JSON object: {error}") from error
        if not isinstance(value, dict):
            raise self.fail(column, "must be an object, or that object as JSON text")
        return value

    def commands(self, column: str, value: Any) -> list[str]:
        commands = [value] if isinstance(value, str) else value
        if not isinstance(commands, list) or not all(isinstance(each, str) for each in commands):
            raise self.fail(column, "must hold a shell command or a list of them")
        return [each.strip() for each in commands if each.strip()]

    def parser(self, column: str, name: str) -> str:
        known = parser_named(name)
        if known is None:
            raise self.fail(column, f"names the log parser {name!r}, and Orchard reads {', '.join(PARSERS)}")
        return known

    def image(self, default: str = "") -> str:
        """The image that the row names, or the user, or else the `default`."""
        named = self.optional("docker_image") or self.optional("image_name") or self.optional("image")
        return named or self.given.image.replace("{instance_id}", self.optional("instance_id")) or default

    def repo(self) -> str:
        repo = self.text("repo")
        if repo.count("/") != 1 or not all(repo.split("/")):
            raise self.fail("repo", f"must be `owner/name`, not {repo!r}")
        return repo


class RowFamily(msgspec.Struct, frozen=True):
    """How the rows of one dataset become tasks."""

    family: Family
    known: Callable[[Row], bool]
    """Whether a row is of this family, by its columns."""
    read: Callable[[Columns], Task]
    """Raises MalformedRow."""


def patched_paths(patch: str) -> list[str]:
    """Paths that the patch creates, changes or deletes, in order."""
    return list(dict.fromkeys(file.path for file in parse_diff(patch)))


def row_task(
    columns: Columns,
    family: Family,
    *,
    repo: str,
    image: str,
    grading: SWETests,
    task_id: str = "",
    statement: str = "",
    gold_patch: str = "",
    base_commit: str = "",
    language: str = "",
    setup: tuple[str, ...] = (),
    **more: Any,
) -> Task:
    """The task of a row, of whose history nothing younger than the base commit is left. What is not given is
    in SWE-bench's columns."""
    language = columns.optional("language") or language
    base_commit = base_commit or columns.text("base_commit")
    return Task(
        task_id=task_id or columns.text("instance_id"),
        source=columns.given.source or family.value,
        repo=repo,
        image=image,
        statement=statement or columns.text("problem_statement"),
        gold_patch=gold_patch or columns.patch("patch"),
        grading=grading,
        base_commit=base_commit,
        setup_commands=(*setup, cut(base_commit)),
        cpu="2",
        memory="4Gi",
        labels={"language": language.lower()} if language else {},
        **more,
    )

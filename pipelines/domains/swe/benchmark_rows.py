"""Reads rows of the SWE-bench family as tasks: SWE-bench, SWE-rebench, SWE-rebench V2, Scale-SWE.

Pure. The datasets share the columns instance_id, problem_statement, patch, FAIL_TO_PASS and
PASS_TO_PASS, and differ in how they name the image, the base commit and the tests.
"""

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any

import msgspec

from orchard.pipelines.domains.swe.before_after import reporting
from orchard.pipelines.domains.swe.benchmark_repositories import (
    all_of,
    given_command,
    parser_named,
    pytest_command,
    repository,
)
from orchard.pipelines.domains.swe.history import cut
from orchard.pipelines.domains.swe.multilingual import commands_of_script, suite
from orchard.pipelines.tasks.errors import MalformedRow
from orchard.pipelines.tasks.trees import diff
from orchard.schemas.tasks import SWETests, Task
from orchard.workers.domains.swe.logs.parsers import PARSERS
from orchard.workers.episode.diffs import parse_diff

Row = Mapping[str, Any]

_SCRIPT_NAME = "test_fail_to_pass.py"
"""Path of Scale-SWE's synthetic test in the repository."""


class Given(msgspec.Struct, frozen=True, kw_only=True):
    """The user's values for what rows of SWE-bench's columns lack."""

    test_command: str = ""
    """Shell line, run in `workdir`; `{tests}` in it stands for the test files of the row."""
    parser: str = ""
    image: str = ""
    """Image; `{instance_id}` in it stands for the row's."""
    workdir: str = ""
    source: str = ""
    """Source of the tasks, in place of the family's."""


NOTHING_GIVEN = Given()


class Family(StrEnum):
    """A dataset's set of columns; the value is the `source` of its tasks, unless another is given."""

    SWE_BENCH = "swe-bench"
    SWE_REBENCH = "swe-rebench"
    SWE_REBENCH_V2 = "swe-rebench-v2"
    SCALE_SWE = "scale-swe"


def family_of(row: Row) -> Family:
    """The dataset that a row is from, by the columns it has."""
    if "f2p_patch" in row or "f2p_script" in row:
        return Family.SCALE_SWE
    if "install_config" in row:
        return Family.SWE_REBENCH if "docker_image" in row else Family.SWE_REBENCH_V2
    return Family.SWE_BENCH


def task_from_row(row: Row, number: int, family: Family | None = None, given: Given = NOTHING_GIVEN) -> Task:
    """The task of a row; `number` counts from 1 and is for errors. Raises MalformedRow."""
    columns = _Columns(row, number, given)
    return _READERS[family or family_of(row)](columns)


class _Columns:
    def __init__(self, row: Row, number: int, given: Given) -> None:
        self.row = row
        self.number = number
        self.given = given

    def fail(self, column: str, problem: str) -> MalformedRow:
        return MalformedRow(self.number, column, problem)

    def text(self, column: str) -> str:
        value = self.row.get(column)
        if value is None or value == "":
            raise self.fail(column, "is missing or empty, but a task needs it")
        if not isinstance(value, str):
            raise self.fail(column, f"must be text, not {type(value).__name__}")
        return value

    def optional(self, column: str) -> str:
        return "" if self.row.get(column) in (None, "") else self.text(column)

    def patch(self, column: str) -> str:
        patch = self.text(column)
        if not patched_paths(patch):
            raise self.fail(column, "is not a unified diff with `diff --git` headers")
        return patch if patch.endswith("\n") else patch + "\n"

    def tests(self, column: str, *, empty: bool) -> tuple[str, ...]:
        value = self.row.get(column)
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
        value = self.row.get(column)
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

    def repo(self) -> str:
        repo = self.text("repo")
        if repo.count("/") != 1 or not all(repo.split("/")):
            raise self.fail("repo", f"must be `owner/name`, not {repo!r}")
        return repo


def patched_paths(patch: str) -> list[str]:
    """Paths that the patch creates, changes or deletes, in order."""
    return list(dict.fromkeys(file.path for file in parse_diff(patch)))


CONDA = {"BASH_ENV": "/root/.bashrc"}
"""These images activate their conda environment in this file, which a shell that is
not interactive reads only when told to."""


def image_name(instance_id: str) -> str:
    """The published image of a SWE-bench instance: two underscores cannot stand in an image's name."""
    return f"swebench/sweb.eval.x86_64.{instance_id.replace('__', '_1776_')}:latest".lower()


def _task(
    columns: _Columns,
    family: Family,
    *,
    repo: str,
    image: str,
    grading: SWETests,
    base_column: str = "base_commit",
    language: str = "",
    setup: tuple[str, ...] = (),
    **more: Any,
) -> Task:
    language = columns.optional("language") or language
    base_commit = columns.text(base_column)
    return Task(
        task_id=columns.text("instance_id"),
        source=columns.given.source or family.value,
        repo=repo,
        image=image,
        statement=columns.text("problem_statement"),
        gold_patch=columns.patch("patch"),
        grading=grading,
        base_commit=base_commit,
        setup_commands=(*setup, cut(base_commit)),
        cpu="2",
        memory="4Gi",
        labels={"language": language.lower()} if language else {},
        **more,
    )


def _swe_bench(columns: _Columns) -> Task:
    repo = columns.repo()
    test_patch = columns.patch("test_patch")
    paths = patched_paths(test_patch)
    fail_to_pass = columns.tests("FAIL_TO_PASS", empty=False)
    pass_to_pass = columns.tests("PASS_TO_PASS", empty=True)
    known, other = repository(repo), suite(repo)
    build, command, parser = _ways(columns, repo, paths, (*fail_to_pass, *pass_to_pass))
    instance_id = columns.text("instance_id")
    image = columns.optional("image_name") or columns.optional("image")
    image = image or columns.given.image.replace("{instance_id}", instance_id)
    if known is None and other is None and not image:
        raise columns.fail("image_name", f"is missing, and no image of {repo!r} is known: pass --image")
    return _task(
        columns,
        Family.SWE_BENCH,
        repo=repo,
        environment={} if known is None else CONDA,
        image=image or image_name(instance_id),
        workdir=columns.optional("workdir") or columns.given.workdir or "/testbed",
        hints=columns.optional("hints_text"),
        version=columns.optional("version"),
        language="" if other is None else other.language,
        grading=SWETests(
            test_patch=test_patch,
            test_files=tuple(paths),
            test_command=command,
            parser=columns.parser("log_parser", parser),
            pre_commands=build,
            fail_to_pass=fail_to_pass,
            pass_to_pass=pass_to_pass,
        ),
    )


def _ways(
    columns: _Columns, repo: str, paths: Sequence[str], tests: Sequence[str]
) -> tuple[tuple[str, ...], str, str]:
    """(lines that go before, test command, parser): those of the row or the user, of the SWE-bench
    repository, of the row's script, or of the Multilingual repository."""
    own = columns.optional("test_command") or columns.optional("test_cmd") or columns.given.test_command
    parser = columns.optional("log_parser") or columns.optional("parser") or columns.given.parser
    if own:
        return ((), *reporting(given_command(own, paths), parser))
    known, other = repository(repo), suite(repo)
    script = commands_of_script(columns.optional("eval_script"))
    build: tuple[str, ...] = ()
    command: str | None
    if known is not None:
        command, parser = known.test_command(paths), parser or known.parser
    elif script is not None and (parser or other is not None):
        build, command = script
        parser = parser or (other.parser if other else "")
    elif other is not None:
        build, command, parser = other.build, other.test_command(paths, tests), parser or other.parser
    else:
        raise columns.fail(
            "repo",
            f"is {repo!r}, whose test command is not known: give it in a column `test_command`, or pass "
            "--test-command",
        )
    if command is None:
        raise columns.fail("test_patch", "touches no test file that could be run")
    return build, command, parser


def _swe_rebench(columns: _Columns) -> Task:
    test_patch = columns.patch("test_patch")
    config = columns.object("install_config")
    commands = columns.commands("install_config", config.get("test_cmd"))
    if len(commands) != 1:
        raise columns.fail("install_config", "must hold one test command under `test_cmd`")
    command = pytest_command(commands[0], patched_paths(test_patch))
    if command is None:
        raise columns.fail("test_patch", "touches no test file that could be run")
    return _task(
        columns,
        Family.SWE_REBENCH,
        repo=columns.repo(),
        environment=CONDA,
        image=columns.optional("docker_image") or columns.text("image_name"),
        hints=columns.optional("hints_text"),
        version=columns.optional("version"),
        grading=SWETests(
            test_patch=test_patch,
            test_files=tuple(patched_paths(test_patch)),
            test_command=command,
            parser=columns.parser("install_config", str(config.get("log_parser", "pytest"))),
            fail_to_pass=columns.tests("FAIL_TO_PASS", empty=False),
            pass_to_pass=columns.tests("PASS_TO_PASS", empty=True),
        ),
    )


def _swe_rebench_v2(columns: _Columns) -> Task:
    repo = columns.repo()
    test_patch = columns.patch("test_patch")
    config = columns.object("install_config")
    commands = columns.commands("install_config", config.get("test_cmd"))
    if not commands:
        raise columns.fail("install_config", "must hold the test commands under `test_cmd`")
    return _task(
        columns,
        Family.SWE_REBENCH_V2,
        repo=repo,
        image=columns.text("image_name"),
        workdir=f"/{repo.split('/')[1]}",
        hints=columns.optional("hints_text"),
        version=columns.optional("version"),
        grading=SWETests(
            test_patch=test_patch,
            test_files=tuple(patched_paths(test_patch)),
            test_command=all_of(commands),
            parser=columns.parser("install_config", str(config.get("log_parser", ""))),
            strip_timing=True,
            fail_to_pass=columns.tests("FAIL_TO_PASS", empty=False),
            pass_to_pass=columns.tests("PASS_TO_PASS", empty=True),
        ),
    )


def _scale_swe(columns: _Columns) -> Task:
    fail_to_pass = columns.tests("FAIL_TO_PASS", empty=False)
    pass_to_pass = columns.tests("PASS_TO_PASS", empty=True)
    test_patch = columns.patch("f2p_patch") if columns.optional("f2p_patch") else ""
    script = columns.optional("f2p_script")
    if script:
        test_patch += diff({}, {_SCRIPT_NAME: script.encode()}, [_SCRIPT_NAME])
    if not test_patch:
        raise columns.fail("f2p_patch", "and f2p_script are both empty, so there is no test to bring")
    files = dict.fromkeys(test.split("::")[0] for test in (*fail_to_pass, *pass_to_pass))
    user, repo = columns.text("user"), columns.text("repo")
    return _task(
        columns,
        Family.SCALE_SWE,
        repo=repo if "/" in repo else f"{user}/{repo}",
        image=columns.text("image_url"),
        workdir=columns.text("workdir"),
        base_column="parent_commit",
        setup=tuple(columns.commands("pre_commands", columns.row.get("pre_commands") or [])),
        grading=SWETests(
            test_patch=test_patch,
            test_files=tuple(patched_paths(test_patch)),
            test_command="python -m pytest -rA --tb=short -p no:cacheprovider " + shlex.join(files),
            fail_to_pass=fail_to_pass,
            pass_to_pass=pass_to_pass,
        ),
    )


_READERS: dict[Family, Callable[[_Columns], Task]] = {
    Family.SWE_BENCH: _swe_bench,
    Family.SWE_REBENCH: _swe_rebench,
    Family.SWE_REBENCH_V2: _swe_rebench_v2,
    Family.SCALE_SWE: _scale_swe,
}

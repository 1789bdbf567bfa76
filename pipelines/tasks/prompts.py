"""Rows of prompts as tasks: each with a command that checks the outcome, or with a grader by name. Pure."""

import shlex
from collections.abc import Mapping
from typing import Any

import msgspec

from orchard.pipelines.tasks.errors import MalformedRow
from orchard.schemas.identity import digest
from orchard.schemas.plugins import Kind, PluginError
from orchard.schemas.quantities import Duration, InvalidQuantity, parse_bytes, parse_cores
from orchard.schemas.tasks import CheckPlace, Grading, PluginGrading, StateCheck, Task
from orchard.workers.graders import check_grading
from orchard.workers.plugins import need

SOURCE = "prompts"


class PromptRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One row. The command line or the default supplies what it leaves out."""

    prompt: str
    """Prompt of the model."""
    id: str = ""
    """Id of the task; empty: a digest of the prompt."""
    check: str = ""
    """Shell text, run in `workdir` after the agent is done; exit status 0 is solved."""
    files: dict[str, str] = {}
    """Absolute path to text: files that the check needs, brought only then."""
    grader: str = ""
    """Name of a plug-in that judges, in place of `check`."""
    settings: dict[str, Any] = {}
    """Settings of that grader."""
    solution: str = ""
    """Shell text that solves it, for the proof; a diff where the grader judges a diff."""
    image: str = ""
    workdir: str = ""
    setup: tuple[str, ...] = ()
    """Shell lines run in `workdir` of every new sandbox."""
    environment: dict[str, str] = {}
    repo: str = SOURCE
    cpu: str = "1"
    memory: str = "2Gi"
    timeout_seconds: Duration = 600.0
    """Timeout of the check, seconds."""
    check_in: CheckPlace | msgspec.UnsetType = msgspec.UNSET
    check_paths: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    labels: dict[str, str] = {}


class Defaults(msgspec.Struct, frozen=True, kw_only=True):
    """Values for what rows leave out."""

    source: str = SOURCE
    image: str = "host"
    workdir: str = "/tmp"
    check: str = ""
    grader: str = ""


def task_from_prompt(row: Mapping[str, Any], number: int, defaults: Defaults) -> Task:
    """The task of a row; `number` is its line. Raises MalformedRow."""
    try:
        given = msgspec.convert(dict(row), PromptRow)
        workdir = given.workdir or defaults.workdir
        task = Task(
            task_id=given.id or f"{defaults.source}-{digest(dict(row), 12)}",
            source=defaults.source,
            repo=given.repo,
            image=given.image or defaults.image,
            statement=given.prompt,
            grading=_grading(given, defaults, workdir),
            workdir=workdir,
            setup_commands=given.setup,
            environment=given.environment,
            gold_patch=given.solution,
            cpu=given.cpu,
            memory=given.memory,
            labels=given.labels,
        )
        parse_cores(task.cpu)
        parse_bytes(task.memory)
        check_grading(task)
    except (msgspec.ValidationError, InvalidQuantity, PluginError, ValueError) as error:
        raise MalformedRow(number, "", str(error)) from error
    return task


def _grading(given: PromptRow, defaults: Defaults, workdir: str) -> Grading:
    own = bool(given.check or given.grader)
    check = given.check if own else defaults.check
    grader = given.grader if own else defaults.grader
    if not given.prompt.strip():
        raise ValueError("`prompt` is empty: say what is to be done")
    if bool(check) == bool(grader):
        raise ValueError("give either `check` (a shell command) or `grader` (the name of a plug-in)")
    if grader:
        return PluginGrading(
            grader=grader, settings=given.settings, in_place=need(Kind.GRADER, grader).in_place
        )
    relative = [path for path in given.files if not path.startswith("/")]
    if relative:
        raise ValueError(f"`files` must have absolute paths, not {relative[0]!r}")
    return StateCheck(
        files=given.files,
        command=f"cd {shlex.quote(workdir)} || exit 126\n{check}\n",
        timeout_seconds=given.timeout_seconds,
        check_in=given.check_in,
        check_paths=given.check_paths,
    )

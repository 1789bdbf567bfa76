"""Formats a task for `orchard tasks show`: statement, image, grading, result of validation."""

from collections.abc import Sequence
from datetime import datetime

import msgspec
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from orchard.actions.domain import answers
from orchard.pipelines.tasks.registry import read_tasks
from orchard.schemas.tasks import (
    CheckPlace,
    PluginGrading,
    StageChecks,
    StateCheck,
    Task,
    graded_in_place,
    judging_tests,
)
from orchard.storage.reader import open_tables
from orchard.terminal.console import shown
from orchard.workers.episode.diffs import parse_diff
from orchard.workers.masking import masked

LISTED, CHARACTERS = 20, 4000
"""Maximum names in a list, and characters of a text, without --full."""
_PLAIN = ("task_id", "source", "repo", "image", "cpu", "memory", "workdir", "base_commit")
_TESTS = ("fail-to-pass", "pass-to-pass")
_VERDICTS = """
select time, state, task_hash, runs, protected, protected_why, reason, detail from tasks_all
where task_id = ? and state <> 'imported' order by sequence
"""


class TaskVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a validation, in `orchard tasks show --json`."""

    time: datetime
    state: str
    """`valid` or `rejected`."""
    task_hash: str
    """Hash of the task that was validated."""
    runs: int | None
    protected: str | None
    protected_why: str | None
    reason: str | None
    detail: str | None


class TaskRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Output of `orchard tasks show --json`. Keys are masked in all texts."""

    task_id: str
    source: str
    repo: str
    image: str
    cpu: str
    memory: str
    workdir: str
    base_commit: str
    statement: str
    setup_commands: list[str]
    variables: list[str]
    """Names of environment variables; their values are not shown."""
    labels: dict[str, str]
    grading: dict[str, str]
    """How it is judged: texts by name, the same as without `--json`."""
    fail_to_pass: list[str]
    pass_to_pass: list[str]
    solution: str
    """What is known of a solution, which itself is not shown."""
    verdicts: list[TaskVerdict]
    """Results of validations, the oldest first."""


def task_record(store: str, task_id: str) -> TaskRecord:
    """Reads what programs learn of a task. Raises TaskError for an unknown id."""
    task, verdicts = _read(store, task_id)
    fail_to_pass, pass_to_pass = judging_tests(task.grading)
    grading = {name: text for name, text in _grading(task, True).items() if name not in _TESTS}
    return TaskRecord(
        **{name: getattr(task, name) for name in _PLAIN},
        statement=masked(task.statement.strip()).text,
        setup_commands=[masked(one).text for one in task.setup_commands],
        variables=list(task.environment),
        labels=dict(task.labels),
        grading={name: masked(text).text for name, text in grading.items()},
        fail_to_pass=list(fail_to_pass),
        pass_to_pass=list(pass_to_pass),
        solution=_solution(task)["solution"],
        verdicts=verdicts,
    )


def task_page(store: str, task_id: str, *, full: bool = False) -> RenderableType:
    """Formats the page. Keys are masked; variables and the solution appear only by name and size. Raises
    TaskError for an unknown id."""
    task, verdicts = _read(store, task_id)
    facts = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column(overflow="fold")
    for name, value in {**_place(task), **_grading(task, full), **_solution(task)}.items():
        facts.add_row(name, _text(value, full))
    found = Table("when", "task", "verdict", "runs", "protected", "why", header_style="bold")
    for one in verdicts:
        why = ": ".join(part for part in (one.reason, one.detail, one.protected_why) if part)
        state = Text(one.state, style="green" if one.state == "valid" else "red")
        cells = f"{one.time:%Y-%m-%d %H:%M}", one.task_hash[:12], state, str(one.runs or "")
        found.add_row(*cells, one.protected or "", _text(why, full))
    unproven = Text("never validated: `orchard tasks validate` proves it", style="yellow")
    statement = Panel(_text(task.statement.strip(), full), title="statement", title_align="left")
    return Group(statement, facts, found if verdicts else unproven)


def _read(store: str, task_id: str) -> tuple[Task, list[TaskVerdict]]:
    task = read_tasks(store, ids=[task_id])[0]
    with open_tables(store) as tables:
        found = tables.execute(_VERDICTS, [task.task_id]).fetchall()
    names = TaskVerdict.__struct_fields__
    return task, [TaskVerdict(**dict(zip(names, row, strict=True))) for row in found]


def _place(task: Task) -> dict[str, str]:
    return {
        "task": f"{task.task_id}, of {task.repo} (source {task.source})",
        "image": f"{task.image}, cpu {task.cpu}, memory {task.memory}",
        "workdir": task.workdir + (f" at {task.base_commit[:12]}" if task.base_commit else ""),
        **({"set-up": "\n".join(task.setup_commands)} if task.setup_commands else {}),
        **({"variables": ", ".join(task.environment)} if task.environment else {}),
        **({"labels": ", ".join(f"{k}={v}" for k, v in task.labels.items())} if task.labels else {}),
    }


_CHECK_PLACES: dict[CheckPlace | msgspec.UnsetType, str] = {
    "fresh": "a fresh sandbox, over the agent's files",
    "stopped": "the agent's sandbox, whose processes have ended",
    "agent": "the agent's sandbox",
    msgspec.UNSET: "the agent's sandbox",
}


def _grading(task: Task, full: bool) -> dict[str, str]:
    match task.grading:
        case StateCheck() as check:
            return {
                "judged by": f"a check in {_CHECK_PLACES[check.check_in]}, "
                f"{check.timeout_seconds:g} s at most",
                "check": check.command.strip(),
                "its files": _listed(tuple(check.files), full),
            }
        case StageChecks() as staged:
            return {
                "judged by": f"a check after each of {len(staged.stages)} stages; the reward is their "
                f"{'mean' if staged.combined == 'mean' else 'last one'}",
                **{
                    f"stage {stage.name}": f"in {_CHECK_PLACES[stage.check.check_in]}: "
                    f"{stage.check.command.strip()}"
                    for stage in staged.stages
                },
            }
        case PluginGrading() as plugin:
            where = "the agent's sandbox" if plugin.in_place else "a fresh sandbox"
            return {
                "judged by": f"the grader {plugin.grader}, in {where}",
                "settings": msgspec.json.encode(plugin.settings).decode(),
            }
        case tests:
            return {
                "judged by": f"tests, in a fresh sandbox: {tests.test_command} (read as {tests.parser})",
                "fail-to-pass": _listed(tests.fail_to_pass, full),
                "pass-to-pass": _listed(tests.pass_to_pass, full),
                "test files": _listed(tests.test_files, full),
            }


def _solution(task: Task) -> dict[str, str]:
    if not task.gold_patch.strip():
        return {"solution": "none is known"}
    if said := next(filter(None, answers("solution", task)), ""):
        return {"solution": said}
    lines = len(task.gold_patch.splitlines())
    if graded_in_place(task.grading):
        return {"solution": f"known: a script of {lines} lines"}
    return {"solution": f"known: a diff of {lines} lines in {len(parse_diff(task.gold_patch))} files"}


def _listed(names: Sequence[str], full: bool) -> str:
    kept = names if full else names[:LISTED]
    more = [f"and {len(names) - len(kept)} more: --full lists them"] if len(kept) < len(names) else []
    return "\n".join([f"{len(names)}:", *kept, *more]) if names else "none"


def _text(value: str, full: bool) -> Text:
    text = shown(masked(value).text)
    return Text(text if full or len(text) <= CHARACTERS else f"{text[:CHARACTERS]} ... (--full shows all)")

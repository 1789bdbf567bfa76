"""Tasks: the problem, its environment, and how the result is judged."""

from typing import Any, Literal

import msgspec

from orchard.schemas.identity import digest

IMPOSSIBLE = "impossible"
"""Source of tasks whose tests contradict their statement; events, tables and campaigns know them by it."""


class SWETests(msgspec.Struct, frozen=True, kw_only=True, tag="swe-tests", tag_field="kind"):
    """Graded by a repository's own tests.

    Resolved only when every test of `fail_to_pass` and of `pass_to_pass` passes after the submitted patch
    and `test_patch` are applied to a fresh sandbox of the task's image.
    """

    test_patch: str
    """Unified diff that adds the tests, which the model never sees."""
    test_command: str
    """Shell line that runs the tests in `workdir`; `parser` reads its output."""
    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...] = ()
    test_files: tuple[str, ...] = ()
    """Paths, relative to `workdir`, that are restored to `base_commit` before the test patch."""
    parser: str = "pytest"
    pre_commands: tuple[str, ...] = ()
    """Shell lines that run right before the tests, in their shell."""
    strip_timing: bool = False
    """Whether timing suffixes are stripped from test ids (SWE-rebench V2)."""
    timeout_seconds: float = 1800.0


CheckPlace = Literal["fresh", "stopped", "agent"]
"""Sandbox in which a check runs: a fresh one of the task's image, with the agent's files laid over it; the
agent's own, where all its processes have been ended; the agent's own as it is."""


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """Network and time limits that a task's published definition asks for, beyond an image."""

    network: bool = False
    """Whether agent and check may reach any public address."""
    hosts: tuple[str, ...] = ()
    """The only addresses that they may reach where `network` is false: `HOST:PORT` over TCP each."""
    agent_seconds: float | None = None
    """Time limit of the agent in seconds; None: the campaign's."""
    creation_seconds: float | None = None
    """Time limit for the creation of a sandbox in seconds; None: the campaign's."""


class ServiceArtifact(msgspec.Struct, frozen=True, kw_only=True):
    """A file or directory in the sandbox of a service."""

    service: str
    """First name of the service."""
    path: str


class CheckSandbox(msgspec.Struct, frozen=True, kw_only=True):
    """A sandbox of its own for a check, with what was left at some paths."""

    image: str
    artifacts: tuple[str | ServiceArtifact, ...] = ()
    """Absolute paths of the files and directories that it gets, those that exist: from the agent's sandbox,
    or from a service's."""
    cpu: str = "1"
    memory: str = "2Gi"
    asks: Asked = Asked()


class CollectHook(msgspec.Struct, frozen=True, kw_only=True):
    """A command that runs when the agent is done, before what was left is looked at."""

    command: str
    user: str = ""
    """Name or number of a user in the sandbox; empty: that of the image, or of the service."""
    timeout_seconds: float = 60.0
    service: str | msgspec.UnsetType = msgspec.UNSET
    """First name of the service in whose sandbox it runs; unset: the agent's. Unset, the hash of a task is
    that of a task without the field."""


class StateCheck(msgspec.Struct, frozen=True, kw_only=True, tag="state-check", tag_field="kind"):
    """Graded by the state the agent left behind: terminal and assistant tasks.

    The files are written over whatever stands there, then the command runs with a clean environment;
    exit code 0 is solved.
    """

    files: dict[str, str]
    """Files of the checks, absolute path to text; they are brought only after the agent is done."""
    command: str
    timeout_seconds: float = 600.0
    rewards: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    """Absolute paths at which the command leaves its verdict, as Harbor's tests do, in place of its exit
    status: the first that exists counts. Unset, the hash of a task is that of a task without the field."""
    check_in: CheckPlace | msgspec.UnsetType = msgspec.UNSET
    """Sandbox in which the command runs. Unset, it is the agent's own, and validation looks for the safest
    one in which the known solution passes. Unset, the hash of a task is that of a task without the field."""
    check_paths: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    """Absolute paths of the directories that a fresh sandbox gets from the agent's; unset: `workdir` alone.
    Unset, the hash of a task is that of a task without the field."""
    sandbox: CheckSandbox | msgspec.UnsetType = msgspec.UNSET
    """Sandbox in which the command runs, in place of that of `check_in`. Unset, the hash of a task is that of
    a task without the field, as for the fields below."""
    prepare: str | msgspec.UnsetType = msgspec.UNSET
    """Shell text that the superuser runs before the command; any exit status but 0 is no verdict."""
    user: str | msgspec.UnsetType = msgspec.UNSET
    """User that the command runs as, a name or number in the sandbox; unset: the image's."""
    resolved_at: float | msgspec.UnsetType = msgspec.UNSET
    """Least reward that is solved, where there are `rewards`; unset: exactly 1."""
    collect: tuple[CollectHook, ...] | msgspec.UnsetType = msgspec.UNSET
    """Commands that save what only runs, as the rows of a database, in files. One that fails changes
    nothing."""


class TaskStage(msgspec.Struct, frozen=True, kw_only=True):
    """One of the instructions of a task, which a new conversation follows in the sandbox as the stages before
    left it, and the check of what it left."""

    name: str
    statement: str
    check: StateCheck
    prepare: str = ""
    """Shell text that the superuser runs in `workdir` before the stage."""
    setup: str = ""
    """Shell text that `user` runs after it."""
    user: str = ""
    """User that the agent's commands run as; empty: the image's."""
    gold_patch: str = ""
    """The known solution of the stage, a shell script; empty if there is none."""
    agent_seconds: float | None = None
    """Time limit of the agent in seconds; None: the campaign's, for all stages together."""
    least: dict[str, float] = {}
    """Numbers of the check, by name. If one is lower, or missing, no further stage begins."""
    clear: str = ""
    """Shell text that the superuser runs after a check in the agent's sandbox: it removes the tests."""


class StageChecks(msgspec.Struct, frozen=True, kw_only=True, tag="stage-checks", tag_field="kind"):
    """Graded stage by stage."""

    stages: tuple[TaskStage, ...]
    combined: Literal["mean", "final"] = "mean"
    """How a number of the whole is made of those of the stages that began: their mean, where a missing one
    is 0, or that of the last one."""
    resolved_at: float | msgspec.UnsetType = msgspec.UNSET
    """Least combined reward that is solved; unset: exactly 1."""


class PluginGrading(msgspec.Struct, frozen=True, kw_only=True, tag="plugin", tag_field="kind"):
    """Graded by a plug-in (docs/extending.md)."""

    grader: str
    """Name of the grading plug-in."""
    settings: dict[str, Any] = {}
    """Facts about this task, as plain values of the plug-in's settings struct."""
    in_place: bool = False
    """Whether the plug-in looks at the agent's own sandbox, rather than at the submission in a fresh one."""


Grading = SWETests | StateCheck | StageChecks | PluginGrading
"""Ways to judge a task; a new one is another tagged struct."""

UNKNOWN_GRADING: Grading = SWETests(test_patch="", test_command="", fail_to_pass=())
"""Grading of tasks whose trajectories were imported: how other systems judged them is not told."""


def judging_tests(grading: Grading) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of the tests that a solution must make pass, and of those that must go on passing; none where no
    tests judge."""
    return (grading.fail_to_pass, grading.pass_to_pass) if isinstance(grading, SWETests) else ((), ())


def graded_in_place(grading: Grading) -> bool:
    """Whether the state of the agent's sandbox is what is judged, rather than its patch in a fresh one."""
    if isinstance(grading, PluginGrading):
        return grading.in_place
    return isinstance(grading, StateCheck | StageChecks)


def checks_of(grading: Grading) -> tuple[StateCheck, ...]:
    """The checks of the state that the agent left, in their order; none for other gradings."""
    match grading:
        case StateCheck():
            return (grading,)
        case StageChecks():
            return tuple(stage.check for stage in grading.stages)
    return ()


def checked_in(grading: Grading, place: CheckPlace) -> Grading:
    """The grading with each check in that sandbox, except for those that name theirs."""

    def of(check: StateCheck) -> StateCheck:
        chosen = check.check_in is not msgspec.UNSET or check.sandbox is not msgspec.UNSET
        return check if chosen else msgspec.structs.replace(check, check_in=place)

    match grading:
        case StateCheck():
            return of(grading)
        case StageChecks(stages=stages):
            moved = tuple(msgspec.structs.replace(stage, check=of(stage.check)) for stage in stages)
            return msgspec.structs.replace(grading, stages=moved)
    return grading


class WorldUse(msgspec.Struct, frozen=True, kw_only=True):
    """Services or a browser that a task has beside its sandbox. A plug-in opens them for each attempt."""

    kind: str
    """Name of the plug-in that opens them."""
    settings: dict[str, Any] = {}
    """Facts about this task, as plain values of the plug-in's settings struct."""


class TaskService(msgspec.Struct, frozen=True, kw_only=True):
    """A program of an image that runs beside the sandbox, in one of its own. The task's sandbox, and those of
    the services after it, reach its ports under its names."""

    names: tuple[str, ...]
    image: str
    argv: tuple[str, ...] = ()
    """The program and its arguments."""
    environment: dict[str, str] = {}
    workdir: str = ""
    """Empty: the image's."""
    user: str = ""
    """Empty: the image's."""
    ports: tuple[int, ...] | None = None
    """TCP ports; None: those at which it listens when it is ready."""
    ready: str = ""
    """Shell text that ends with 0 when the program is ready; empty: when it listens at its ports."""
    ready_seconds: float = 60.0
    ends: bool = False
    """Whether it is ready when it has ended, with status 0."""


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """One problem. Immutable: a changed task has another `task_hash` and is another blob."""

    task_id: str
    source: str
    """Name of its source: `swe-bench`, `swe-rebench-v2`, `pypi-releases`, ..."""
    repo: str
    image: str
    statement: str
    """Text of the problem that the model reads."""
    grading: Grading
    base_commit: str = ""
    workdir: str = "/testbed"
    setup_commands: tuple[str, ...] = ()
    """Shell lines that run once in `workdir` of every new sandbox, before the agent and before grading."""
    environment: dict[str, str] = {}
    """Variables for every command in the image: `BASH_ENV` where a startup file activates what it needs."""
    gold_patch: str = ""
    """The known solution, never shown to a model; empty when there is none. It is a diff, or a shell script
    that runs in `workdir` for a task that is graded in place."""
    hints: str = ""
    version: str = ""
    cpu: str = "1"
    memory: str = "2Gi"
    """Kubernetes quantities, for each sandbox of the task."""
    labels: dict[str, str] = {}
    world: WorldUse | msgspec.UnsetType = msgspec.UNSET
    """Services or a browser beside the sandbox. Unset, form and hash of a task are those of a task without
    the field."""
    asks: Asked | msgspec.UnsetType = msgspec.UNSET
    """Network and time limits of its published definition. Unset, form and hash of a task are those of a task
    without the field. A worker that does not know the field leaves the task to a later version."""
    user: str | msgspec.UnsetType = msgspec.UNSET
    """User that the agent's commands run as, a name or number in the sandbox; unset: the image's, and form
    and hash of a task are those of a task without the field."""
    services: tuple[TaskService, ...] | msgspec.UnsetType = msgspec.UNSET
    """What runs beside each sandbox of the task, in the order of its start. Unset, form and hash of a task
    are those of a task without the field."""


def task_hash(task: Task) -> str:
    """SHA-256 of the whole task (64 hexadecimal digits)."""
    return digest(task, 64)

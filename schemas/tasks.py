"""Tasks: what to solve, where, and how the result is judged."""

from typing import Any

import msgspec

from orchard.schemas.identity import digest

IMPOSSIBLE = "impossible"
"""Source of tasks whose tests contradict their statement: events, tables and campaigns know them by it."""


class SWETests(msgspec.Struct, frozen=True, kw_only=True, tag="swe-tests", tag_field="kind"):
    """Graded by a repository's own tests.

    Resolved only when every test of `fail_to_pass` and of `pass_to_pass` passes after the submitted patch
    and `test_patch` are applied to a fresh sandbox of the task's image.
    """

    test_patch: str
    """Unified diff that brings the tests the model never sees."""
    test_command: str
    """Shell line run in `workdir`; its output is parsed by `parser`."""
    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...] = ()
    test_files: tuple[str, ...] = ()
    """Paths restored to `base_commit` before the test patch, relative to `workdir`."""
    parser: str = "pytest"
    pre_commands: tuple[str, ...] = ()
    """Shell lines run right before the tests, in their shell."""
    strip_timing: bool = False
    """Strip timing suffixes from test ids (SWE-rebench V2)."""
    timeout_seconds: float = 1800.0


class StateCheck(msgspec.Struct, frozen=True, kw_only=True, tag="state-check", tag_field="kind"):
    """Graded in place by the state the agent left behind: terminal and assistant tasks.

    The files are written over whatever stands there, then the command runs with a clean environment;
    exit code 0 is solved. Nothing that the agent wrote is trusted to judge.
    """

    files: dict[str, str]
    """Absolute path to text: the checks, brought only after the agent is done."""
    command: str
    timeout_seconds: float = 600.0
    rewards: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    """Absolute paths at which the command leaves its verdict, as Harbor's tests do, in place of its exit
    status: the first that is there counts. Unset, a task is hashed as before there were such files."""


class PluginGrading(msgspec.Struct, frozen=True, kw_only=True, tag="plugin", tag_field="kind"):
    """Graded by a plug-in (docs/extending.md)."""

    grader: str
    """Its name."""
    settings: dict[str, Any] = {}
    """What it needs to know of this task, as plain values of its settings struct."""
    in_place: bool = False
    """Whether it looks at the agent's own sandbox, rather than at what was submitted, in a fresh one."""


Grading = SWETests | StateCheck | PluginGrading
"""The union of ways to judge; a new one is another tagged struct."""

UNKNOWN_GRADING: Grading = SWETests(test_patch="", test_command="", fail_to_pass=())
"""Grading of tasks whose trajectories were imported: how other systems judged them is not told."""


def judging_tests(grading: Grading) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of the tests that a solution must make pass, and of those that must go on passing; none where no
    tests judge."""
    return (grading.fail_to_pass, grading.pass_to_pass) if isinstance(grading, SWETests) else ((), ())


def graded_in_place(grading: Grading) -> bool:
    """Whether the agent's own sandbox is what is judged, rather than its patch in a fresh one."""
    return isinstance(grading, StateCheck) or (isinstance(grading, PluginGrading) and grading.in_place)


class WorldUse(msgspec.Struct, frozen=True, kw_only=True):
    """What a task has beside its sandbox: services, a browser. Opened for each attempt by a plug-in."""

    kind: str
    """Name of the plug-in."""
    settings: dict[str, Any] = {}
    """What it needs to know of this task, as plain values of its settings struct."""


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What a published definition asks for its task, beyond an image: its network and its time-outs."""

    network: bool = False
    """Any public address, for the agent and for the check."""
    hosts: tuple[str, ...] = ()
    """What alone they may reach, `HOST:PORT` over TCP each, where `network` is false."""
    agent_seconds: float | None = None
    """Time of the agent; None: the campaign's."""
    creation_seconds: float | None = None
    """Time for making a sandbox; None: the campaign's."""


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """One problem. Immutable: a changed task has another `task_hash` and is another blob."""

    task_id: str
    source: str
    """Where it came from: `swe-bench`, `swe-rebench-v2`, `pypi-releases`, ..."""
    repo: str
    image: str
    statement: str
    """What the model reads."""
    grading: Grading
    base_commit: str = ""
    workdir: str = "/testbed"
    setup_commands: tuple[str, ...] = ()
    """Shell lines run once in `workdir` of every new sandbox, before the agent and before grading."""
    environment: dict[str, str] = {}
    """Variables for every command in the image: `BASH_ENV` where a startup file activates what it needs."""
    gold_patch: str = ""
    """The known solution, never shown to a model; empty when there is none. A diff, or for a task that is
    graded in place a shell script, run in `workdir`."""
    hints: str = ""
    version: str = ""
    cpu: str = "1"
    memory: str = "2Gi"
    """Kubernetes quantities, for each sandbox of the task."""
    labels: dict[str, str] = {}
    world: WorldUse | msgspec.UnsetType = msgspec.UNSET
    """What it has beside the sandbox. Unset, a task is stored, and hashed, as before there were worlds."""
    asks: Asked | msgspec.UnsetType = msgspec.UNSET
    """What its published definition asks for. Unset, it is stored and hashed as before this was read. Where
    it is set, workers of earlier versions leave the task to later ones."""


def task_hash(task: Task) -> str:
    """64 hexadecimal digits over the whole task."""
    return digest(task, 64)

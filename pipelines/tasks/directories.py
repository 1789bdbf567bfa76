"""Task directories of Harbor (task.toml) and Terminal-Bench (task.yaml), judged by their test scripts.

Harbor executes `tests/test.sh`, which writes numbers to /logs/verifier/reward.json, or else one to
reward.txt: 1 is solved. Terminal-Bench runs `run-tests.sh` with TEST_DIR: exit status 0 is solved. Both run
in the agent's sandbox, or Harbor's in one of their own, in the image's working directory, with the image's
variables. What a definition says of network and time-outs, or leaves to the defaults of its format, goes into
the task (`Asked`).
"""

import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath

import msgspec

from orchard.injector.agent.local.images import StoredImage
from orchard.pipelines.tasks.compose_files import ComposeService, read_service
from orchard.pipelines.tasks.compose_services import BesideService
from orchard.pipelines.tasks.errors import TaskError
from orchard.pipelines.tasks.harbor_artifacts import ARTIFACTS
from orchard.pipelines.tasks.harbor_directories import HARBOR, read_harbor
from orchard.pipelines.tasks.left_out import LeftOut
from orchard.pipelines.tasks.task_directory import Directory, contents, is_variable, labels, placed
from orchard.pipelines.tasks.trees import text_of
from orchard.pipelines.tasks.working_directories import working_directory
from orchard.schemas.identity import digest
from orchard.schemas.quantities import Duration, InvalidQuantity
from orchard.schemas.tasks import Asked, CheckSandbox, StageChecks, StateCheck, Task, TaskService, TaskStage

TERMINAL_BENCH = "terminal-bench"
_PYTEST = b"""\
python3 -c 'import pytest' || exit 127
python3 -m pytest -rA "$TEST_DIR/test_outputs.py"
status=$?
[ $status -lt 3 ] || exit 126
exit $status
"""
"""Terminal-Bench's tests without a script. From 3 on pytest says that it could not run them."""
_COMPOSE = ("docker-compose.yaml", "docker-compose.yml")


def directories(root: Path) -> list[Path]:
    """The task directories at `root`: itself, or those in it. Raises TaskError when there is none."""
    found = [path for path in (root, *sorted(root.glob("*/"))) if _format(path)]
    if not found:
        raise TaskError(
            f"{root} has no task: give a directory with a task.toml or task.yaml, or of such ones"
        )
    return found[:1] if found[0] == root else found


def read_all(root: Path) -> tuple[list[Directory], list[LeftOut]]:
    """The task directories at `root`, and those that are none, each with its reason."""
    found: dict[str, Directory] = {}
    left_out = []
    for path in directories(root):
        try:
            read = read_directory(path)
            if (first := found.setdefault(read.task_id, read)) is not read:
                raise TaskError(f"the task {read.task_id!r} is already in {first.path}")
        except TaskError as error:
            left_out.append(LeftOut(str(path), str(error).removeprefix(f"{path}: ")))
    return list(found.values()), left_out


def read_directory(path: Path) -> Directory:
    """Read a task directory. Raises TaskError, with the path, for a directory that is no task or needs
    more than one sandbox."""
    try:
        return read_harbor(path) if _format(path) == HARBOR else _terminal_bench(path)
    except msgspec.DecodeError as error:
        raise TaskError(f"a task or compose file in {path}: {error}") from error
    except (OSError, InvalidQuantity, ValueError, RecursionError) as error:
        raise TaskError(f"{path}: {error}") from error


def directory_task(
    directory: Directory,
    image: str,
    workdir: str = "",
    environment: Mapping[str, str] | None = None,
    *,
    verifier_image: str = "",
    verifier_workdir: str = "",
    verifier_environment: Mapping[str, str] | None = None,
    resolved_at: float | None = None,
    stages: Sequence[Task] = (),
    services: Sequence[TaskService] | None = None,
) -> Task:
    """The task in `image`; `workdir` and `environment` are the image's own, where known. `verifier_image` is
    that of the verifier, where it is another one. A reward of `resolved_at` is solved; None: of 1. `stages`
    are those of the directory as tasks; empty: they are made in the same images. `services` have what their
    images start; None: they say it themselves. Raises TaskError for one that does not."""
    workdir = directory.workdir or workdir or _last_workdir(directory.dockerfile)
    solution = directory.solution
    sandbox: CheckSandbox | msgspec.UnsetType = msgspec.UNSET
    tests_workdir, variables = workdir, {**(environment or {}), **directory.environment}
    if (verifier := directory.verifier) is not None:
        if verifier.bundled:
            tests_workdir = verifier_workdir or _last_workdir(verifier.context / "Dockerfile")
        tests_workdir = verifier.workdir or tests_workdir
        variables = dict((verifier_environment if verifier.bundled else environment) or {})
        variables |= verifier.environment
        sandbox = CheckSandbox(
            image=verifier_image or image,
            artifacts=verifier.artifacts,
            cpu=verifier.cpu,
            memory=verifier.memory,
            asks=verifier.asks,
        )
    check = _check(directory, tests_workdir, variables)
    task = Task(
        task_id=directory.task_id,
        source=directory.source,
        repo=directory.source,
        image=image,
        statement=directory.statement,
        grading=msgspec.structs.replace(
            check,
            sandbox=sandbox,
            resolved_at=msgspec.UNSET if resolved_at is None else resolved_at,
        ),
        workdir=workdir,
        setup_commands=(
            *filter(None, [placed(".", directory.material, directory.runs)]),
            *directory.setup,
        ),
        environment=directory.environment,
        gold_patch=(
            placed("/solution", solution)
            + _exports(directory.solution_variables)
            + f"{directory.solve_command}\n"
            if solution
            else ""
        ),
        cpu=directory.cpu,
        memory=directory.memory,
        labels=directory.labels,
        asks=directory.asks,
        user=directory.user or msgspec.UNSET,
        services=tuple(known_services(directory) if services is None else services) or msgspec.UNSET,
    )
    if not directory.stages:
        return task
    return _staged(
        directory,
        task,
        stages
        or [
            directory_task(
                stage,
                image,
                workdir,
                environment,
                verifier_image=verifier_image,
                verifier_workdir=verifier_workdir,
                verifier_environment=verifier_environment,
            )
            for stage in directory.stages
        ],
        resolved_at,
    )


def known_services(
    directory: Directory, image: Callable[[BesideService], StoredImage | None] = lambda _: None
) -> list[TaskService]:
    """The services, with what their images start where `image` finds them. Raises TaskError."""
    found = []
    for each in directory.services:
        stored = image(each)
        name = directory.service_image(each)
        try:
            found.append(each.of(name, *((stored.entrypoint, stored.command) if stored else ())))
        except ValueError as error:
            raise TaskError(f"{directory.path}: {error}") from error
    return found


def _staged(directory: Directory, task: Task, parts: Sequence[Task], resolved_at: float | None) -> Task:
    stages = []
    for stage, part in zip(directory.stages, parts, strict=True):
        assert isinstance(part.grading, StateCheck)
        variables = next(path for path in part.grading.files if path.endswith(".variables"))
        tests = variables.removesuffix(".variables")
        before = " ".join(shlex.quote(f"/solution/{path}") for path in stage.solution)
        stages.append(
            TaskStage(
                name=stage.name,
                statement=stage.statement,
                check=part.grading,
                prepare=placed(".", stage.material, stage.runs),
                setup="\n".join(["set -e", *stage.setup]) if stage.setup else "",
                user=stage.user,
                gold_patch=part.gold_patch and f"rm -f {before}\n{part.gold_patch}",
                agent_seconds=stage.asks.agent_seconds,
                least=stage.least,
                clear=f"rm -rf /tests /logs/verifier /tmp/orchard-check-* {tests}*",
            )
        )
    known = all(stage.gold_patch for stage in stages)
    return msgspec.structs.replace(
        task,
        gold_patch="\n".join(stage.gold_patch for stage in stages) if known else "",
        grading=StageChecks(
            stages=tuple(stages),
            combined=directory.combined,
            resolved_at=msgspec.UNSET if resolved_at is None else resolved_at,
        ),
    )


def _check(directory: Directory, workdir: str, environment: Mapping[str, str]) -> StateCheck:
    """The check brings the tests to a path of their own, and from there one by one to a new /tests: an agent
    who knows the tests knows the path, and may have left more there. A preparation that fails has the exit
    status of a command that cannot be executed."""
    texts = {path: text for path, data in directory.tests.items() if (text := text_of(data)) is not None}
    binary = {path: data for path, data in directory.tests.items() if path not in texts}
    place = f"/tmp/tests-{digest([texts, sorted(binary)], 24)}"
    prepare = (
        f"rm -rf /logs/verifier && mkdir -p /logs/verifier /logs/agent {ARTIFACTS} || exit 126\n"
        f"chmod 777 /logs/verifier /logs/agent {ARTIFACTS}\n"
    )
    if directory.tests:
        prepare += (
            "rm -rf /tests && mkdir /tests || exit 126\n"
            + "".join(_moved(f"{place}/{path}", f"/tests/{path}") for path in texts)
            + placed("/tests", binary)
            + "chmod -R 755 /tests\n"
        )
    if directory.verifier and not directory.verifier.bundled and directory.material:
        prepare += f"cd {shlex.quote(workdir)} || exit 126\n" + placed(
            ".", directory.material, directory.runs
        )
    variables = _exports({**environment, **directory.variables})
    files = {f"{place}/{path}": text for path, text in texts.items()}
    return StateCheck(
        files={f"{place}.variables": variables, **files},
        prepare=prepare,
        command=f". {place}.variables\ncd {shlex.quote(workdir)} || exit 126\n{directory.test_command}\n",
        timeout_seconds=directory.timeout_seconds,
        rewards=directory.rewards or msgspec.UNSET,
        user=directory.tests_user or msgspec.UNSET,
        collect=directory.collect or msgspec.UNSET,
    )


def _moved(path: str, target: str) -> str:
    """Shell that moves a file, and makes the directories of its target."""
    directory = shlex.quote(str(PurePosixPath(target).parent))
    return f"mkdir -p {directory} && mv {shlex.quote(path)} {shlex.quote(target)} || exit 126\n"


def _exports(variables: Mapping[str, str]) -> str:
    """Shell that sets the variables whose names it can express."""
    said = ((name, shlex.quote(value)) for name, value in variables.items() if is_variable(name))
    return "".join(f"export {name}={value}\n" for name, value in said)


def _last_workdir(dockerfile: Path) -> str:
    """Raises TaskError."""
    try:
        return working_directory(dockerfile)
    except ValueError as error:
        raise TaskError(str(error)) from error


def _format(path: Path) -> str:
    if (path / "task.toml").is_file():
        return HARBOR
    return TERMINAL_BENCH if (path / "task.yaml").is_file() else ""


# --- Terminal-Bench ------------------------------------------------------------------------------


class _TaskYaml(msgspec.Struct, frozen=True):
    instruction: str
    difficulty: str = ""
    category: str = ""
    max_agent_timeout_sec: Duration = 360.0
    max_test_timeout_sec: Duration = 600.0


def _terminal_bench(path: Path) -> Directory:
    given = msgspec.yaml.decode((path / "task.yaml").read_bytes(), type=_TaskYaml)
    compose = next((path / name for name in _COMPOSE if (path / name).is_file()), None)
    service = read_service(compose) if compose else ComposeService()
    asks = Asked(network=service.networked, agent_seconds=given.max_agent_timeout_sec)
    tests = contents(path / "tests", path, "tests")
    script = path / "run-tests.sh"
    if script.is_file():
        tests["run-tests.sh"] = script.read_bytes()
    elif "test_outputs.py" not in tests:
        raise ValueError(
            "there is neither a run-tests.sh nor a tests/test_outputs.py, so nothing judges the task"
        )
    else:
        tests["run-tests.sh"] = _PYTEST
    solution = path / "solution.sh"
    return Directory(
        path=path,
        source=TERMINAL_BENCH,
        name=path.resolve().name,
        statement=given.instruction,
        tests=tests,
        test_command="bash /tests/run-tests.sh",
        solution={"solve.sh": solution.read_bytes()} if solution.is_file() else {},
        variables={"TEST_DIR": "/tests"},
        timeout_seconds=given.max_test_timeout_sec,
        asks=asks,
        environment=service.environment,
        user=service.user,
        tests_user=service.user,
        context=path,
        services=service.beside,
        workdir=service.workdir,
        labels=labels({"difficulty": given.difficulty, "category": given.category}),
    )

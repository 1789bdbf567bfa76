"""Task directories of Harbor, read as Harbor 0.26 reads them.

Every field of a task.toml is honored, or the task is refused with the field's name, or the field is in the
notes. tests/adapters/harbor_load.py compares this with Harbor's own reading.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from orchard.pipelines.tasks.compose_files import ComposeService, read_service
from orchard.pipelines.tasks.harbor_artifacts import ARTIFACTS, brought
from orchard.pipelines.tasks.harbor_definition import (
    Definition,
    Environment,
    Step,
    healthcheck_script,
    healthcheck_seconds,
    read_definition,
    without_host,
)
from orchard.pipelines.tasks.harbor_networks import baseline, phase
from orchard.pipelines.tasks.harbor_steps import step_definition
from orchard.pipelines.tasks.task_directory import (
    Directory,
    SeparateVerifier,
    contents,
    labels,
    paths,
    runnable,
)
from orchard.schemas.quantities import parse_bytes, parse_cores
from orchard.schemas.tasks import Asked, CollectHook
from orchard.workers.episode.networks import SHUT, Network

HARBOR = "harbor"
REWARDS = ("/logs/verifier/reward.json", "/logs/verifier/reward.txt")
"""Files in which Harbor's tests leave their verdict; the first that exists counts."""
_PLACES = f"/logs/agent /logs/verifier {ARTIFACTS} /solution"
_SETUP = f"if [ -w / ]; then mkdir -p {_PLACES} && chmod 777 {_PLACES}; fi"
"""Makes the directories that Harbor's sandboxes have, where the image's user may. The known solution is not
in the last one until it is tried."""
_COMPOSE = "docker-compose.yaml"
"""The one name that Harbor reads; a file of another name is material."""
_CANARY = re.compile(r"(<!--.*canary.*-->|#.*canary.*)", re.IGNORECASE)


def read_harbor(path: Path) -> Directory:
    """The task directory at `path`. Raises OSError, DecodeError, ValueError and TaskError."""
    given, unknown = read_definition((path / "task.toml").read_text(encoding="utf-8"))
    context = path / "environment"
    service = read_service(context / _COMPOSE) if (context / _COMPOSE).exists() else ComposeService()
    _refuse(given, path)
    if not given.steps:
        read = _read(path, given, service, path, [given.verifier.environment])
        return msgspec.structs.replace(read, notes=tuple(_notes(given, unknown)))
    stages = [_stage(path, given, service, step) for step in given.steps]
    for folder in ("tests", "solution", *(f"steps/{step.name}" for step in given.steps)):
        paths(path / folder, path)  # raises for a link that leads out, also where nothing is read
    if wrong := next((each for each in stages if _reached(each) != _reached(stages[0])), None):
        raise ValueError(
            f"the step {wrong.name} and the step {stages[0].name} are to reach different networks, and all "
            "steps run in one sandbox here, which has one network"
        )
    seconds = [each.asks.agent_seconds for each in stages]
    known = [each for each in seconds if each is not None]
    first, check = stages[0], given.environment.healthcheck
    told = (f"## {each.name}\n\n{each.statement}" for each in stages)
    material = _material(path, given)
    return msgspec.structs.replace(
        first,
        name=_name(path, given),
        statement="\n\n".join(told),
        tests={},
        solution={},
        asks=msgspec.structs.replace(
            first.asks,
            agent_seconds=sum(known) if len(known) == len(seconds) else None,
            creation_seconds=_creation_seconds(given),
        ),
        user=_user(given.agent.user) or service.user,
        material=material,
        runs=runnable(context, path) if material else frozenset(),
        setup=(_SETUP, healthcheck_script(check)) if check else (_SETUP,),
        verifier=None,
        least={},
        collect=(),
        stages=tuple(stages),
        combined=given.multi_step_reward_strategy or "mean",
        notes=tuple(_notes(given, unknown)),
    )


def _reached(directory: Directory) -> tuple[bool, tuple[str, ...]]:
    return directory.asks.network, directory.asks.hosts


def _stage(path: Path, given: Definition, service: ComposeService, step: Step) -> Directory:
    """One step, with what its folder has of its own."""
    own = path / "steps" / step.name
    if not own.resolve().is_relative_to(path.resolve()):
        raise ValueError(f"the folder of the step {step.name!r} is a link out of the task")
    judges = [step.verifier.environment, given.verifier.environment]
    try:
        read = _read(path, step_definition(given, step), service, own, judges)
    except ValueError as error:
        raise ValueError(f"step {step.name}: {error}") from error
    material = contents(own / "workdir", path, f"files of the step {step.name}")
    setup = ["bash ./setup.sh"] if "setup.sh" in material else []
    if step.healthcheck:
        setup.append(healthcheck_script(step.healthcheck))
    return msgspec.structs.replace(
        read,
        name=step.name,
        material=material,
        runs=runnable(own / "workdir", path),
        setup=tuple(setup),
        least=step.least,
    )


def _read(
    path: Path,
    given: Definition,
    service: ComposeService,
    own: Path,
    judges: list[Environment | None],
) -> Directory:
    """The task, or a step of it, whose folder is `own`. `judges` are the [verifier.environment] of the step
    and of the task."""
    _refuse(given, path, own)
    _refuse_services(given, service)
    environment, context = given.environment, path / "environment"
    base = baseline(environment)
    network, checked = phase(given.agent, base), phase(given.verifier, base)
    if not service.networked:
        network = SHUT
    folders = [path / "tests"] if own == path else [own / "tests", path / "tests"]
    separate = _verifier(path, given, folders, judges) if given.verifier.separate else None
    if separate is None and checked != network and service.networked:
        raise ValueError(
            f"the agent is to reach {network.told}, and the tests {checked.told}: both run in one "
            "sandbox here, which has one network"
        )
    bundled = separate is not None and separate.bundled
    if not bundled and not any((folder / "test.sh").is_file() for folder in folders):
        raise ValueError("there is no tests/test.sh, so nothing judges the task")
    check = environment.healthcheck
    tests: dict[str, bytes] = {}
    for folder in reversed(folders):
        tests |= contents(folder, path, "tests")
    solution = own / "solution" if (own / "solution").is_dir() else path / "solution"
    material = _material(path, given)
    return Directory(
        path=path,
        source=HARBOR,
        name=_name(path, given),
        statement=_without_canary((own / "instruction.md").read_text(encoding="utf-8")),
        tests={} if bundled else tests,
        test_command='bash -c /tests/test.sh; echo "the tests exited with $?"',
        rewards=REWARDS,
        solution=contents(solution, path, "solution files"),
        solve_command="chmod -R 755 /solution/* && bash -c /solution/solve.sh",
        variables=without_host(given.verifier.env),
        solution_variables={"DEBIAN_FRONTEND": "noninteractive", **without_host(given.solution.env)},
        environment=service.environment | without_host(environment.env),
        timeout_seconds=given.verifier.timeout_sec,
        asks=_asked(network, given.agent.timeout_sec, _creation_seconds(given)),
        image=environment.docker_image or "",
        context=context,
        workdir=environment.workdir or service.workdir,
        cpu=_cpu(environment),
        memory=_memory(environment),
        labels=labels(given.metadata),
        user=_user(given.agent.user) or service.user,
        tests_user=_user(given.verifier.user) or service.user,
        material=material,
        runs=runnable(context, path) if material else frozenset(),
        setup=(_SETUP, healthcheck_script(check)) if check else (_SETUP,),
        verifier=separate,
        services=service.beside,
        collect=tuple(
            CollectHook(
                command=hook.command,
                user=_user(hook.user),
                timeout_seconds=hook.timeout_sec,
                service=hook.of or msgspec.UNSET,
            )
            for hook in given.verifier.collect
        ),
    )


def _name(path: Path, given: Definition) -> str:
    return given.task.name if given.task else path.resolve().name


def _material(path: Path, given: Definition) -> dict[str, bytes]:
    """The files beside a published image."""
    context = path / "environment"
    built = any((context / name).is_file() for name in ("Dockerfile", _COMPOSE))
    if built or not given.environment.docker_image:
        return {}
    return contents(context, path, "environment files")


def _creation_seconds(given: Definition) -> float:
    check = given.environment.healthcheck
    return given.environment.build_timeout_sec + (healthcheck_seconds(check) if check else 0.0)


def _refuse(given: Definition, path: Path, own: Path | None = None) -> None:
    """Raises ValueError and InvalidQuantity for what Orchard does not have, also where a step has its own
    instead; `own` is the folder of what is read."""
    verifier, environments = given.verifier, [given.environment]
    if verifier.environment is not None:
        environments.append(verifier.environment)
    artifacts = given.artifact_entries
    folders = {path / "tests", (own or path) / "tests"}
    beyond = {
        "GPUs": any(each.gpus for each in environments),
        "TPUs": any(each.tpu is not None for each in environments),
        "MCP servers": any(each.mcp_servers for each in environments),
        "skills (skills_dir)": given.environment.skills_dir,
        "an earlier conversation (trajectory.json)": ((own or path) / "trajectory.json").is_file(),
        "artifacts with exclude": verifier.separate and any(each.exclude for each in artifacts),
        "a compose file for its verifier": verifier.separate
        and any((folder / _COMPOSE).is_file() for folder in folders),
    }
    if missing := [name for name, needed in beyond.items() if needed]:
        raise ValueError(f"the task needs {' and '.join(missing)}, which Orchard does not have")
    for each in environments:
        if each.os.lower() != "linux":
            raise ValueError(f"environment.os is {each.os!r}, and sandboxes here are linux")
        parse_cores(_cpu(each))
        parse_bytes(_memory(each))
        for policy in (given.agent, verifier):
            phase(policy, baseline(each))


def _refuse_services(given: Definition, service: ComposeService) -> None:
    """Raises ValueError for a service that is named, and is not in the compose file."""
    known = {each.service.names[0] for each in service.beside}
    named = [each.of for each in given.artifact_entries] + [hook.of for hook in given.verifier.collect]
    if wrong := next((name for name in named if name is not None and name not in known), None):
        raise ValueError(
            f"an artifact or a command of verifier.collect is of the service {wrong!r}, and {_COMPOSE} has "
            "none of this name beside the agent's"
        )


def _verifier(
    path: Path, given: Definition, folders: list[Path], judges: list[Environment | None]
) -> SeparateVerifier:
    """The sandbox of its own in which the tests run: of the image that [verifier.environment] names, else of
    that of tests/Dockerfile, first of the step, then of the task; else of the agent's."""
    environment = given.verifier.environment or given.environment
    image, context, bundled = given.environment.docker_image, path / "environment", False
    for folder, said in zip(folders, judges, strict=True):
        if said is not None and said.docker_image:
            image, context, bundled = said.docker_image, folder, True
            break
        if (folder / "Dockerfile").is_file():
            image, context, bundled = None, folder, True
            break
    return SeparateVerifier(
        image=image or "",
        context=context,
        bundled=bundled,
        workdir=environment.workdir or "",
        environment=without_host(environment.env),
        cpu=_cpu(environment),
        memory=_memory(environment),
        asks=_asked(phase(given.verifier, baseline(environment)), None, given.environment.build_timeout_sec),
        artifacts=brought(given.artifact_entries),
    )


def _notes(given: Definition, unknown: list[str]) -> Iterator[str]:
    if unknown:
        yield f"Harbor ignores {', '.join(unknown)}, and so does Orchard"
    if (size := given.environment.storage_mebibytes) is not None:
        yield f"it asks for {size} MiB of disk, and a sandbox has what its site gives each"
    parts = [step_definition(given, step) for step in given.steps or ()] or [given]
    if any(part.artifacts and not part.verifier.separate for part in parts):
        yield "its artifacts are not kept"
    if given.multi_step_reward_strategy and not given.steps:
        yield "it has a multi_step_reward_strategy and no steps"


def _asked(network: Network, agent_seconds: float | None, creation_seconds: float) -> Asked:
    return Asked(
        network=not network.blocked,
        hosts=network.hosts,
        agent_seconds=agent_seconds,
        creation_seconds=creation_seconds,
    )


def _cpu(environment: Environment) -> str:
    return f"{1 if environment.cpus is None else environment.cpus:g}"


def _memory(environment: Environment) -> str:
    size = environment.memory_mebibytes
    return "2Gi" if size is None else f"{size}Mi"


def _user(user: str | int | None) -> str:
    return "" if user is None else str(user)


def _without_canary(text: str) -> str:
    """The text without the lines at its beginning that mark it as part of a benchmark."""
    lines = text.split("\n")
    while lines and _CANARY.fullmatch(lines[0].strip()):
        lines.pop(0)
    while lines and not lines[0].strip():
        lines.pop(0)
    return "\n".join(lines)

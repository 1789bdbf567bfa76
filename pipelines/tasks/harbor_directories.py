"""Task directories of Harbor, read as Harbor 0.26 reads them.

Every field of a task.toml is honored, or the task is refused with the field's name, or the field is in the
notes. tests/adapters/harbor_load.py compares this with Harbor's own reading.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from orchard.pipelines.tasks.compose_files import ComposeService, read_service
from orchard.pipelines.tasks.harbor_definition import (
    Definition,
    Environment,
    healthcheck_script,
    healthcheck_seconds,
    read_definition,
    without_host,
)
from orchard.pipelines.tasks.harbor_networks import baseline, phase
from orchard.pipelines.tasks.task_directory import Directory, SeparateVerifier, contents, labels
from orchard.schemas.tasks import Asked
from orchard.workers.episode.networks import SHUT, Network

HARBOR = "harbor"
REWARDS = ("/logs/verifier/reward.json", "/logs/verifier/reward.txt")
"""Files in which Harbor's tests leave their verdict; the first that exists counts."""
ARTIFACTS = "/logs/artifacts"
"""Directory that a verifier with a sandbox of its own gets from the agent's whether it is named or not."""
_PLACES = f"/logs/agent /logs/verifier {ARTIFACTS} /solution"
_SETUP = f"if [ -w / ]; then mkdir -p {_PLACES} && chmod 777 {_PLACES}; fi"
"""Makes the directories that Harbor's sandboxes have, where the image's user may. The known solution is not
in the last one until it is tried."""
_COMPOSE = "docker-compose.yaml"
"""The one name that Harbor reads; a file of another name is material."""
_CANARY = re.compile(r"(<!--.*canary.*-->|#.*canary.*)", re.IGNORECASE)


def read_harbor(path: Path) -> Directory:
    """The task directory at `path`. Raises OSError, DecodeError, ValueError and TaskError."""
    given, unknown = read_definition((path / "task.toml").read_bytes())
    _refuse(given, path)
    environment, context = given.environment, path / "environment"
    service = read_service(context / _COMPOSE) if (context / _COMPOSE).is_file() else ComposeService()
    base = baseline(environment) if service.networked else SHUT
    network = phase(given.agent, base) if service.networked else SHUT
    separate = _verifier(path, given) if given.verifier.separate else None
    if separate is None and (checked := phase(given.verifier, base)) != network and service.networked:
        raise ValueError(
            f"the agent is to reach {network.told}, and the tests {checked.told}: both run in one "
            "sandbox here, which has one network"
        )
    bundled = separate is not None and separate.bundled
    if not bundled and not (path / "tests" / "test.sh").is_file():
        raise ValueError("there is no tests/test.sh, so nothing judges the task")
    check = environment.healthcheck
    creation = environment.build_timeout_sec + (healthcheck_seconds(check) if check else 0.0)
    prebuilt = environment.docker_image and not any(
        (context / name).is_file() for name in ("Dockerfile", _COMPOSE)
    )
    tests = contents(path / "tests", path, "tests")
    return Directory(
        path=path,
        source=HARBOR,
        name=given.task.name if given.task else path.resolve().name,
        statement=_without_canary((path / "instruction.md").read_text(encoding="utf-8")),
        tests={} if bundled else tests,
        test_command='bash -c /tests/test.sh; echo "the tests exited with $?"',
        rewards=REWARDS,
        solution=contents(path / "solution", path, "solution files"),
        solve_command="chmod -R 755 /solution/* && bash -c /solution/solve.sh",
        variables=without_host(given.verifier.env),
        solution_variables={"DEBIAN_FRONTEND": "noninteractive", **without_host(given.solution.env)},
        environment=without_host({**service.environment, **environment.env}),
        timeout_seconds=given.verifier.timeout_sec,
        asks=_asked(network, given.agent.timeout_sec, creation),
        image=environment.docker_image or "",
        context=context,
        workdir=environment.workdir or service.workdir,
        cpu=_cpu(environment),
        memory=_memory(environment),
        labels=labels(given.metadata),
        user=_user(given.agent.user) or service.user,
        tests_user=_user(given.verifier.user) or service.user,
        material=contents(context, path, "environment files") if prebuilt else {},
        setup=(_SETUP, healthcheck_script(check)) if check else (_SETUP,),
        verifier=separate,
        notes=tuple(_notes(given, unknown)),
    )


def _refuse(given: Definition, path: Path) -> None:
    """Raises ValueError for what Orchard does not have."""
    verifier, environments = given.verifier, [given.environment]
    if verifier.environment is not None:
        environments.append(verifier.environment)
    artifacts = given.artifact_entries
    beyond = {
        "several steps": given.steps,
        "GPUs": any(each.gpus for each in environments),
        "TPUs": any(each.tpu for each in environments),
        "MCP servers": any(each.mcp_servers for each in environments),
        "skills (skills_dir)": given.environment.skills_dir,
        "an earlier conversation (trajectory.json)": (path / "trajectory.json").is_file(),
        "commands before its check (verifier.collect)": verifier.collect,
        "artifacts of a compose service": any(each.service not in (None, "main") for each in artifacts),
        "artifacts with exclude": verifier.separate and any(each.exclude for each in artifacts),
        "a compose file for its verifier": verifier.separate and (path / "tests" / _COMPOSE).is_file(),
    }
    if missing := [name for name, needed in beyond.items() if needed]:
        raise ValueError(f"the task needs {' and '.join(missing)}, which Orchard does not have")
    for each in environments:
        if each.os.lower() != "linux":
            raise ValueError(f"environment.os is {each.os!r}, and sandboxes here are linux")


def _verifier(path: Path, given: Definition) -> SeparateVerifier:
    """The sandbox of its own in which the tests run: of the image that [verifier.environment] names, else of
    that of tests/Dockerfile, else of the agent's."""
    own, tests = given.verifier.environment, path / "tests"
    environment = own or given.environment
    bundled = bool(own and own.docker_image) or (tests / "Dockerfile").is_file()
    image = own.docker_image if own and own.docker_image else given.environment.docker_image
    if bundled and not (own and own.docker_image):
        image = None
    sources = [each.source for each in given.artifact_entries]
    if wrong := [each for each in sources if not each.startswith("/") or not each.strip("/")]:
        raise ValueError(f"the artifact {wrong[0]!r} is no absolute path below /")
    return SeparateVerifier(
        image=image or "",
        context=tests if bundled else path / "environment",
        bundled=bundled,
        workdir=environment.workdir or "",
        environment=without_host(environment.env),
        cpu=_cpu(environment),
        memory=_memory(environment),
        asks=_asked(phase(given.verifier, baseline(environment)), None, given.environment.build_timeout_sec),
        artifacts=tuple(dict.fromkeys([ARTIFACTS, *(source.rstrip("/") for source in sources)])),
    )


def _notes(given: Definition, unknown: list[str]) -> Iterator[str]:
    if unknown:
        yield f"Harbor ignores {', '.join(unknown)}, and so does Orchard"
    if (size := given.environment.storage_mebibytes) is not None:
        yield f"it asks for {size} MiB of disk, and a sandbox has what its site gives each"
    if given.artifacts and not given.verifier.separate:
        yield "its artifacts are not kept"


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

"""Compose files of task directories: what their main service says of the task's sandbox, and the services
beside it. Pure but for reading.
"""

import re
import shlex
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

from orchard.pipelines.tasks.compose_services import BesideService, read_beside
from orchard.pipelines.tasks.compose_variables import interpolated, variables
from orchard.pipelines.tasks.task_directory import is_variable

_OF_THE_CONTAINER = (
    *(
        "container_name",
        "depends_on",
        "deploy",
        "expose",
        "healthcheck",
        "hostname",
        "init",
        "logging",
    ),
    *("platform", "ports", "pull_policy", "restart", "stdin_open", "tty"),
)
"""Keys about how a container is made, kept and reached, which is the sandbox service's own matter."""


class _Build(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    context: str = "."
    dockerfile: str = "Dockerfile"


_RUNNER = "${T_BENCH_"
"""Begins what Terminal-Bench's own runner sets, which has no meaning here."""
_SHELLS = ("sh", "bash")
_LOOP = re.compile(r"while (true|:); do sleep \w+; done")

_MAIN = ("main", "client")
"""Names of the service that is the agent's, in Harbor and in Terminal-Bench."""


class _Main(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    build: str | _Build | None = None
    command: str | list[str] | None = None
    image: str | None = None
    environment: dict[str, str | int | float | bool | None] | list[str] | None = None
    network_mode: str | None = None
    user: str | int | None = None
    volumes: list[Any] | None = None
    working_dir: str | None = None


class _Compose(msgspec.Struct, frozen=True):
    services: dict[str, dict[str, Any] | None] = {}


class ComposeService(msgspec.Struct, frozen=True):
    """What a compose file says of the sandbox, as far as it can be had here."""

    networked: bool = True
    environment: dict[str, str] = {}
    workdir: str = ""
    user: str = ""
    beside: tuple[BesideService, ...] = ()
    """In the order of their start."""


def read_service(path: Path) -> ComposeService:
    """The main service of a compose file, the one of that name or the only one, and those beside it. Raises
    ValueError for keys that nothing here does."""
    services: Mapping[str, Any] = msgspec.yaml.decode(path.read_bytes(), type=_Compose).services
    only = next(iter(services), "") if len(services) == 1 else ""
    name = next((name for name in _MAIN if name in services), only)
    keys = dict(services.get(name) or {})
    beside = read_beside({each: said for each, said in services.items() if each != name}, path)
    for key in _OF_THE_CONTAINER:
        keys.pop(key, None)
    try:
        main = msgspec.convert(keys, _Main)
    except msgspec.ValidationError as error:
        raise ValueError(f"{path.name} asks for what a sandbox here does not have: {error}") from error
    build = _Build(main.build) if isinstance(main.build, str) else main.build or _Build()
    wrong = []
    if build.dockerfile != "Dockerfile" or build.context.rstrip("/") not in (".", "${CONTEXT_DIR}"):
        wrong.append("another Dockerfile than the one beside it")
    if main.image and main.build is None and not main.image.startswith("${"):
        wrong.append(f"the image {main.image}")
    if any(not str(each).startswith("${") for each in main.volumes or ()):  # those are for logs
        wrong.append("volumes")
    if main.command is not None and not _waits(main.command):
        wrong.append(f"the command {main.command!r}")
    if main.network_mode == "none" and beside:
        wrong.append("services beside one without a network")
    if wrong:
        raise ValueError(f"{path.name} asks for {' and '.join(wrong)}, which a sandbox here does not have")
    given = {key: value for key, value in variables(main.environment).items() if _RUNNER not in value}
    said = ("" if each is None else str(each) for each in (main.working_dir, main.user))
    try:
        environment = {key: interpolated(value) for key, value in given.items()}
        workdir, user = map(interpolated, said)
    except ValueError as error:
        raise ValueError(f"{path.name}, service {name}: {error}") from error
    if odd := next((key for key in environment if not is_variable(key)), None):
        raise ValueError(f"{path.name}: variable {odd!r} cannot be set by a shell: use letters, digits and _")
    return ComposeService(
        networked=main.network_mode != "none",
        environment=environment,
        workdir=workdir,
        user=user,
        beside=beside,
    )


def _waits(command: str | list[str]) -> bool:
    """Whether the command only keeps a container alive, which a sandbox needs not."""
    words = shlex.split(command) if isinstance(command, str) else command
    if len(words) == 3 and _program(words) in _SHELLS and words[1] in ("-c", "-lc"):
        if _LOOP.fullmatch(words[2].strip()):
            return True
        words = shlex.split(words[2])
    if words[:1] == ["exec"]:
        words = words[1:]
    program, arguments = _program(words), words[1:]
    return (
        (program in (*_SHELLS, "cat", "") and not arguments)
        or (program == "sleep" and len(arguments) == 1)
        or (program == "tail" and arguments in (["-f", "/dev/null"], ["-F", "/dev/null"]))
    )


def _program(words: list[str]) -> str:
    return PurePosixPath(words[0]).name if words else ""

"""Compose files of task directories: what their main service says of the task's sandbox, and the services
beside it. Pure but for reading.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from orchard.pipelines.tasks.compose_services import BesideService, read_beside, variables

_OF_THE_CONTAINER = (
    *(
        "command",
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


_MAIN = ("main", "client")
"""Names of the service that is the agent's, in Harbor and in Terminal-Bench."""


class _Main(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    build: str | _Build | None = None
    image: str | None = None
    environment: dict[str, str | int | float | None] | list[str] | None = None
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
    if main.network_mode == "none" and beside:
        wrong.append("services beside one without a network")
    if wrong:
        raise ValueError(f"{path.name} asks for {' and '.join(wrong)}, which a sandbox here does not have")
    return ComposeService(
        networked=main.network_mode != "none",
        environment=variables(main.environment),
        workdir=main.working_dir or "",
        user="" if main.user is None else str(main.user),
        beside=beside,
    )

"""Compose files of task directories: what their one service says of the task's sandbox. Pure but for reading.

Several services need several sandboxes, which a task does not have.
"""

from pathlib import Path
from typing import Any

import msgspec

_OF_THE_CONTAINER = (
    *("command", "container_name", "deploy", "expose", "healthcheck", "hostname", "init", "logging"),
    *("platform", "ports", "pull_policy", "restart", "stdin_open", "tty"),
)
"""Keys about how a container is made, kept and reached, which is the sandbox service's own matter."""


class _Build(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    context: str = "."
    dockerfile: str = "Dockerfile"


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


def read_service(path: Path) -> ComposeService:
    """The one service of a compose file. Raises ValueError for several, and, in a file of one, for keys that
    nothing here does."""
    services = msgspec.yaml.decode(path.read_bytes(), type=_Compose).services
    if len(services) > 1:
        raise ValueError(
            f"{path.name} has the services {', '.join(services)}, and a task here has one sandbox: "
            "put what it needs into one image"
        )
    keys = next((dict(each) for each in services.values() if each), {})
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
    if wrong:
        raise ValueError(f"{path.name} asks for {' and '.join(wrong)}, which a sandbox here does not have")
    environment = main.environment or {}
    if isinstance(environment, list):
        environment = dict(each.partition("=")[::2] for each in environment)
    return ComposeService(
        networked=main.network_mode != "none",
        environment={name: "" if value is None else str(value) for name, value in environment.items()},
        workdir=main.working_dir or "",
        user="" if main.user is None else str(main.user),
    )

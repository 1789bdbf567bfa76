"""Compose files of task directories: what their one service says of the task's sandbox. Pure but for reading.

Several services need several sandboxes, which a task does not have.
"""

from pathlib import Path
from typing import Any

import msgspec

_WITHOUT_EFFECT = frozenset(
    {
        *("build", "command", "container_name", "deploy", "healthcheck", "hostname", "image", "init"),
        *("logging", "platform", "pull_policy", "restart", "stdin_open", "tty"),
    }
)
"""Keys about how a container is made and kept, which is the sandbox service's own matter."""


class _Compose(msgspec.Struct, frozen=True):
    services: dict[str, Any] = {}


class Service(msgspec.Struct, frozen=True):
    """What a compose file says of the sandbox, as far as it can be had here."""

    networked: bool = True
    environment: dict[str, str] = {}
    workdir: str = ""
    user: str = ""


def read_service(path: Path) -> Service:
    """The one service of a compose file. Raises ValueError for several, and, in a file of one, for keys that
    nothing here does."""
    services = msgspec.yaml.decode(path.read_bytes(), type=_Compose).services
    if len(services) > 1:
        raise ValueError(
            f"{path.name} has the services {', '.join(services)}, and a task here has one sandbox: "
            "put what it needs into one image"
        )
    keys: dict[str, Any] = next((each for each in services.values() if isinstance(each, dict)), {})
    known = {"environment", "network_mode", "user", "volumes", "working_dir", *_WITHOUT_EFFECT}
    wrong = [key for key in keys if key not in known]
    if any(not str(each).startswith("${") for each in keys.get("volumes") or ()):  # Harbor's own log volumes
        wrong.append("volumes")
    if wrong:
        raise ValueError(f"{path.name} asks for {', '.join(wrong)}, which a sandbox here does not have")
    environment = keys.get("environment") or {}
    if isinstance(environment, list):
        environment = dict(str(each).partition("=")[::2] for each in environment)
    return Service(
        networked=keys.get("network_mode") != "none",
        environment={name: str(value) for name, value in environment.items()},
        workdir=keys.get("working_dir") or "",
        user=str(keys.get("user") or ""),
    )

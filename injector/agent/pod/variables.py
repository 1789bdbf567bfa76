"""Packs a sandbox's own variables into one variable of its container, so that they do not affect the
agent."""

import base64
import os
from collections.abc import Mapping

VARIABLES = "ORCHARD_SANDBOX_VARIABLES"


def packed(variables: Mapping[str, str]) -> str:
    """Encode variables as a value that neither Kubernetes nor a shell expands."""
    block = "\0".join(f"{name}={value}" for name, value in variables.items())
    return base64.b64encode(os.fsencode(block)).decode()


def unpacked(environment: Mapping[str, str]) -> dict[str, str]:
    """Environment of commands: the container's, with the packed variables."""
    rest = {name: value for name, value in environment.items() if name != VARIABLES}
    return {**rest, **parsed(base64.b64decode(environment.get(VARIABLES, "")))}


def parsed(block: bytes) -> dict[str, str]:
    """Parse `NAME=value` pairs separated by zero bytes."""
    return dict(os.fsdecode(pair).split("=", 1) for pair in block.split(b"\0") if b"=" in pair)

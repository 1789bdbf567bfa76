"""A sandbox's own variables on their way into its container: one variable, which the agent does not heed."""

import base64
import os
from collections.abc import Mapping

VARIABLES = "ORCHARD_SANDBOX_VARIABLES"


def packed(variables: Mapping[str, str]) -> str:
    """As a value that neither Kubernetes nor a shell would expand."""
    block = "\0".join(f"{name}={value}" for name, value in variables.items())
    return base64.b64encode(os.fsencode(block)).decode()


def unpacked(environment: Mapping[str, str]) -> dict[str, str]:
    """What commands start from: the container's environment, with the variables that are packed in it."""
    rest = {name: value for name, value in environment.items() if name != VARIABLES}
    return {**rest, **parsed(base64.b64decode(environment.get(VARIABLES, "")))}


def parsed(block: bytes) -> dict[str, str]:
    """`NAME=value`, separated by zero bytes."""
    return dict(os.fsdecode(pair).split("=", 1) for pair in block.split(b"\0") if b"=" in pair)

"""The sandbox client by the name of the published service's: `from orchard_env import SandboxClient`."""

from orchard import (
    AsyncContainerProcess,
    AsyncSandbox,
    AsyncSandboxClient,
    AsyncSandboxInstance,
    Change,
    ContainerProcess,
    Exit,
    JobResult,
    Output,
    Sandbox,
    SandboxClient,
    SandboxInstance,
    __version__,
)
from orchard.injector import errors

__all__ = [
    "AsyncContainerProcess",
    "AsyncSandbox",
    "AsyncSandboxClient",
    "AsyncSandboxInstance",
    "Change",
    "ContainerProcess",
    "Exit",
    "JobResult",
    "Output",
    "Sandbox",
    "SandboxClient",
    "SandboxInstance",
    "__version__",
    "errors",
]

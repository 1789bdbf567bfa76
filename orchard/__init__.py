"""Orchard: the `orchard` command line, configuration and the public SDK names.

The rooms are below it as links (`orchard/streams` is the folder `streams`), and importing one of them imports
nothing else: SDK names are loaded when they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orchard.actions.reading import Log
    from orchard.injector.blocking import Sandbox, SandboxClient
    from orchard.injector.blocking import Sandbox as SandboxInstance
    from orchard.injector.client import AsyncSandboxClient
    from orchard.injector.following import Exit, Output
    from orchard.injector.process import AsyncContainerProcess, ContainerProcess
    from orchard.injector.results import JobResult
    from orchard.injector.sandbox import AsyncSandbox
    from orchard.injector.sandbox import AsyncSandbox as AsyncSandboxInstance
    from orchard.injector.watching import Change

    __version__: str

__all__ = [
    "AsyncContainerProcess",
    "AsyncSandbox",
    "AsyncSandboxClient",
    "AsyncSandboxInstance",
    "Change",
    "ContainerProcess",
    "Exit",
    "JobResult",
    "Log",
    "Output",
    "Sandbox",
    "SandboxClient",
    "SandboxInstance",
    "__version__",
]

_PUBLISHED = {"AsyncSandboxInstance": "AsyncSandbox", "SandboxInstance": "Sandbox"}
"""Names of the published Orchard Env, mapped to Orchard's."""
_MODULES = {
    "AsyncContainerProcess": "process",
    "AsyncSandbox": "sandbox",
    "AsyncSandboxClient": "client",
    "Change": "watching",
    "ContainerProcess": "process",
    "Exit": "following",
    "Output": "following",
    "JobResult": "results",
    "Sandbox": "blocking",
    "SandboxClient": "blocking",
}


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib import metadata  # a twentieth of a second, for every process

        try:
            return metadata.version("orchard-pipeline")
        except metadata.PackageNotFoundError:
            return metadata.version("orchard-env")  # the client alone
    if name == "Log":
        return import_module("orchard.actions.reading").Log
    own = _PUBLISHED.get(name, name)
    if own not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"orchard.injector.{_MODULES[own]}"), own)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

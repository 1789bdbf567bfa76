"""Presents the agent's container as the one sandbox of its agent.

Nothing is isolated here: that is what the container is for. Commands run as the agent's own user, in the
agent's own root; `start.protect` and the seal on every request and response keep them from the agent.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchard.injector.agent import files
from orchard.injector.agent.errors import AgentError, Conflict
from orchard.injector.agent.interfaces import Died, SandboxSpec, UnisolatedSandbox
from orchard.injector.agent.local.cgroups import oom_kills
from orchard.injector.agent.protocol import WORKSPACE

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
KILLS_NOT_TOLD = "this container cannot read its memory control group: kills for memory look like any other"
MEMORY_EVENTS = (Path("/sys/fs/cgroup/memory.events"), Path("/sys/fs/cgroup/memory/memory.oom_control"))
"""Files that count kills for memory in a container's own group: version 2, then 1."""


class MemoryKills:
    def __init__(self) -> None:
        self._file = next((file for file in MEMORY_EVENTS if _readable(file)), None)

    @property
    def told(self) -> bool:
        return self._file is not None

    def count(self) -> int:
        return 0 if self._file is None else oom_kills(self._file.read_text())


def _readable(file: Path) -> bool:
    try:
        file.read_text()
    except OSError:  # another version, not mounted, or not for us
        return False
    return True


class PodHost:
    def __init__(
        self, environment: Mapping[str, str], working_directory: str, ended: Callable[[], None]
    ) -> None:
        """`environment`, `working_directory`: the image's; `ended` is called when the sandbox is deleted."""
        self._environment = {"PATH": DEFAULT_PATH, **environment}
        self._working_directory = working_directory
        self._ended = ended
        self._taken = False

    def capabilities(self) -> dict[str, Any]:
        return {"isolation": "container", "memory_kills_told": MemoryKills().told}

    async def create(self, spec: SandboxSpec, died: Died) -> "PodSandbox":  # noqa: ARG002
        """Return this container. Raises Conflict when it already is a sandbox."""
        if self._taken:
            raise Conflict("a Pod is one sandbox: create another", reason="exists")
        self._taken = True
        machine = PodSandbox(
            environment=self._environment, working_directory=self._working_directory, ended=self._ended
        )
        machine.prepare()
        return machine


@dataclass(kw_only=True)
class PodSandbox(UnisolatedSandbox):
    no_copy: str = (
        "a Pod's root belongs to the container runtime; take a directory with GET /sandboxes/ID/archive"
        " and put it into another sandbox with PUT /sandboxes/ID/archive"
    )
    ended: Callable[[], None]
    kills: MemoryKills = field(default_factory=MemoryKills)

    def prepare(self) -> None:
        """Make the directory that commands start in by default, if possible; `note` says what is missing."""
        notes = [] if self.kills.told else [KILLS_NOT_TOLD]
        try:
            files.make_directory(self.root, WORKSPACE)
        except AgentError as error:
            notes.append(f"{error.detail}: commands need a `cwd`")
        self.note = "; ".join(notes)

    def oom_kills(self) -> int:
        return self.kills.count()

    async def destroy(self) -> None:
        """Let the agent end: all processes of a container end with the first."""
        await super().destroy()
        self.ended()

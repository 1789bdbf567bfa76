"""Commands run on this machine without any isolation: only for who asks for it by name."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchard.injector.agent import files
from orchard.injector.agent.errors import NotFound, RequestInvalid, Unsupported
from orchard.injector.agent.machine import Died, SandboxSpec, Template
from orchard.injector.agent.spawning import Entrance

NOTE = "not isolated: commands run on the machine itself, nothing is limited, files stay"


class UnsafeHost:
    """Every sandbox is this machine; the only image is `host`."""

    def __init__(self, state: Path) -> None:
        (state / "sandboxes").mkdir(mode=0o700, parents=True, exist_ok=True)

    def clean(self) -> None:
        """There is nothing that could be told from the machine's own."""

    def close(self) -> None:
        """Nothing to give back."""

    def capabilities(self) -> dict[str, Any]:
        """Says what is missing: everything."""
        return {"isolation": "none", "limits": {}, "images": ["host"], "problems": [NOTE]}

    async def create(self, spec: SandboxSpec, died: Died) -> "UnsafeMachine":  # noqa: ARG002
        """Raises NotFound (`image_missing`) for any image but `host`."""
        if spec.image != "host":
            raise NotFound(
                f"without isolation there is no image but `host`, not `{spec.image}`", reason="image_missing"
            )
        machine = UnsafeMachine()
        files.make_directory(machine.root, "/workspace")
        return machine


@dataclass
class UnsafeMachine:
    """This machine, called a sandbox."""

    entrance: Entrance = field(default_factory=lambda: Entrance(pidfd=None, cgroups=()))
    root: int = field(default_factory=lambda: os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))
    environment: dict[str, str] = field(
        default_factory=lambda: {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": os.environ.get("HOME", "/"),
        }
    )
    working_directory: str = "/"
    note: str = NOTE

    def oom_kills(self) -> int:
        """Not limited, so never."""
        return 0

    def dying(self) -> bool:
        """Not before we do."""
        return False

    async def snapshot(self, image: str) -> dict[str, Any]:
        """Raises RequestInvalid: there are no layers."""
        raise RequestInvalid(
            f"no snapshot `{image}`: without isolation a sandbox has no file system of its own"
        )

    async def template(self) -> Template:
        """Raises Unsupported: there are no layers."""
        raise Unsupported("no fork: without isolation a sandbox has no file system of its own")

    async def destroy(self) -> None:
        """Give up the root descriptor."""
        if self.root >= 0:
            os.close(self.root)
            self.root = -1

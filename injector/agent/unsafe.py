"""Backend without any isolation, only for who asks for it by name: commands run on this machine."""

import os
from pathlib import Path
from typing import Any

from orchard.injector.agent import files
from orchard.injector.agent.errors import NotFound, Unsupported
from orchard.injector.agent.interfaces import Died, SandboxSpec, UnisolatedSandbox
from orchard.injector.agent.protocol import WORKSPACE

NOTE = "not isolated: commands run on the machine itself, nothing is limited, files stay"


class UnsafeHost:
    """Every sandbox is this machine; the only image is `host`."""

    def __init__(self, state: Path) -> None:
        (state / "sandboxes").mkdir(mode=0o700, parents=True, exist_ok=True)

    def clean(self) -> None:
        """No-op: leftovers cannot be told from the host's own processes."""

    async def prepare(self) -> None: ...

    def close(self) -> None: ...

    def capabilities(self) -> dict[str, Any]:
        return {"isolation": "none", "limits": {}, "images": ["host"], "problems": [NOTE]}

    async def create(self, spec: SandboxSpec, died: Died) -> UnisolatedSandbox:  # noqa: ARG002
        """Raise NotFound (`image_missing`) for any image but `host`, Unsupported for layers, programs
        and egress rules."""
        if spec.image != "host":
            raise NotFound(
                f"without isolation the only image is `host`, and `{spec.image}` was asked for",
                reason="image_missing",
            )
        if laid := [*spec.layers, *spec.programs]:
            raise Unsupported(f"without isolation `{laid[0]}` cannot be laid over this machine's files")
        if spec.egress:
            raise Unsupported("without isolation nothing can be kept from the network: leave out `egress`")
        names = ("PATH", os.defpath), ("HOME", "/")
        machine = UnisolatedSandbox(
            environment={name: os.environ.get(name, default) for name, default in names},
            no_copy="without isolation a sandbox has no file system of its own",
            note=NOTE,
        )
        files.make_directory(machine.root, WORKSPACE)
        return machine

"""Makes sandboxes on one Linux machine: an overlay of an image's layers, namespaces around, cgroups below."""

import asyncio
import os
from pathlib import Path
from typing import Any

from orchard.injector.agent.local.cgroups import Cgroups
from orchard.injector.agent.local.disk import DiskWatch
from orchard.injector.agent.local.first_process import open_program
from orchard.injector.agent.local.host_image import HostImage
from orchard.injector.agent.local.images import HOST, Image, ImageStore
from orchard.injector.agent.local.machine import LocalMachine
from orchard.injector.agent.local.network import RESOLVER
from orchard.injector.agent.local.removal import remove_tree
from orchard.injector.agent.local.requirements import Requirements
from orchard.injector.agent.machine import Died, SandboxSpec
from orchard.injector.agent.sandboxes import RECORD
from orchard.injector.agent.spawning import Spawner

DEFAULT_PIDS = 4096
FOUNDATION = f"{HOST}-foundation"


class LocalHost:
    """The sandboxes of one state directory. Needs root, in a mount namespace of its own."""

    def __init__(self, state: Path, spawner: Spawner, requirements: Requirements, disk_limit: int) -> None:
        """`disk_limit`: bytes that one sandbox may take."""
        self._directory = state / "sandboxes"
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.spawner = spawner
        self.requirements = requirements
        self._program = open_program(os.uname().machine)
        self.store = ImageStore(state)
        self.resolver = state / "resolv.conf"
        """Of sandboxes with a network."""
        self.cgroups = Cgroups(state)
        self.host_image = HostImage(state, self.store)
        self._host_image_lock = asyncio.Lock()
        self.machines: set[LocalMachine] = set()
        self._disk_limit = disk_limit
        self._disk = DiskWatch(self._directory, disk_limit, lambda: self.machines)

    def clean(self) -> None:
        """Remove what an agent that died left; its mounts and processes went with it. Records stay."""
        for sandbox in self._directory.iterdir():
            for path in sandbox.iterdir():
                if path.name != RECORD:
                    remove_tree(path)
            if not (sandbox / RECORD).exists():  # killed while it made or removed the directory
                sandbox.rmdir()
        self.cgroups.clean()
        self.resolver.write_text(f"nameserver {RESOLVER}\n")
        self.store.clean()
        if not self.store.layer(FOUNDATION).is_dir():
            with self.store.dependencies() as work:
                _build_foundation(work / "foundation")
                self.store.publish(work / "foundation", FOUNDATION)

    def close(self) -> None:
        """After the last sandbox: leave nothing outside the state directory."""
        self.cgroups.close()

    def capabilities(self) -> dict[str, Any]:
        """What this machine can and cannot do, for people."""
        return {
            **self.requirements.document(),
            "cgroup": self.cgroups.layout.version,
            "limits": dict(self.cgroups.enforced),
            "disk": {"limit": self._disk_limit, "enforced": "by watching: who takes more is stopped"},
            "images": [HOST, *self.store.names()],
        }

    async def create(self, spec: SandboxSpec, died: Died) -> LocalMachine:
        """Start a sandbox; raises AgentError (`image_missing`, `start_failed`), leaving nothing."""
        return await self.start(self.store.find(spec.image, spec.owner), spec, died)

    async def start(self, image: Image, spec: SandboxSpec, died: Died) -> LocalMachine:
        """The same, whatever image the specification names."""
        layers = await self._layers(image)
        machine = LocalMachine(self, self._directory / spec.sandbox_id, image, spec, died)
        try:
            machine.group = self.cgroups.make(
                spec.sandbox_id, memory=spec.memory_bytes, pids=spec.pids or DEFAULT_PIDS, cores=spec.cores
            )
            machine.note = self._note(image)
            await machine.start(layers, self._program)
        except BaseException:
            await asyncio.shield(machine.destroy())
            raise
        self.machines.add(machine)
        self._disk.wake()
        return machine

    def _note(self, image: Image) -> str:
        return "; ".join(
            filter(None, (self.cgroups.note, self.host_image.note if HOST in image.layers else ""))
        )

    async def _layers(self, image: Image) -> list[Path]:
        layers: list[Path] = []
        for name in image.layers:
            if name == HOST:
                async with self._host_image_lock:
                    layers += await self.host_image.layers()
            else:
                layers.append(self.store.layer(name))
        return [*layers, self.store.layer(FOUNDATION)]


def _build_foundation(target: Path) -> None:
    """The lowest layer of every sandbox: what an image may lack and every sandbox needs."""
    target.mkdir(mode=0o755)
    for name in ("proc", "dev", "sys", "run", "etc", "root", "tmp", "var", "var/tmp", "workspace"):
        (target / name).mkdir(mode=0o755)
    for name in ("tmp", "var/tmp"):
        (target / name).chmod(0o1777)
    (target / "root").chmod(0o700)
    (target / "etc/hosts").write_text("127.0.0.1 localhost\n::1 localhost\n")
    (target / "etc/resolv.conf").touch()

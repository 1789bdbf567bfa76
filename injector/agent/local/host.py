"""Makes sandboxes on one Linux machine from an overlay of image layers, namespaces and cgroups."""

import asyncio
import os
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from orchard.injector.agent.errors import AgentError
from orchard.injector.agent.files import remove_tree
from orchard.injector.agent.interfaces import Died, SandboxSpec
from orchard.injector.agent.local import user_namespace
from orchard.injector.agent.local.cgroups import Cgroups
from orchard.injector.agent.local.disk import DiskLimits, DiskWatch
from orchard.injector.agent.local.egress import Resolver
from orchard.injector.agent.local.first_process import open_program
from orchard.injector.agent.local.host_image import PYTHON, HostImage
from orchard.injector.agent.local.image_service import LocalImages
from orchard.injector.agent.local.images import HOST, ImageStore, StoredImage, laid_over
from orchard.injector.agent.local.network import RESOLVER
from orchard.injector.agent.local.programs import link_commands, program_image
from orchard.injector.agent.local.requirements import Requirements
from orchard.injector.agent.local.sandbox import HostContext, LocalSandbox
from orchard.injector.agent.sandboxes import RECORD
from orchard.injector.agent.spawning import Spawner

DEFAULT_PIDS = 4096
FOUNDATION = f"{HOST}-foundation"


class LocalHost:
    """The sandboxes of one state directory. Needs root, in a mount namespace of its own."""

    def __init__(
        self,
        state: Path,
        spawner: Spawner,
        requirements: Requirements,
        disk: DiskLimits,
        private: Sequence[str],
    ) -> None:
        """`disk`: limits of one sandbox; `private`: see HostContext."""
        self._directory = state / "sandboxes"
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._requirements = requirements
        self._program = open_program(os.uname().machine)
        self._store = ImageStore(state)
        self.images = LocalImages(state, self._store)
        self._cgroups = Cgroups(state)
        self._host_image = HostImage(state, self._store)
        self._host_image_lock = asyncio.Lock()
        self._shared = HostContext(
            spawner=spawner,
            store=self._store,
            cgroups=self._cgroups,
            host_image=self._host_image,
            point=state / "root",
            resolver=state / "resolv.conf",
            slirp=requirements.slirp,
            names=Resolver(),
            private=private,
            start=self._start,
        )
        self._disk_limits = disk
        self._disk = DiskWatch(self._directory, disk, lambda: self._shared.machines)

    def clean(self) -> None:
        """Remove the leftovers of an agent that died, whose mounts and processes ended with it. Records
        stay."""
        for sandbox in self._directory.iterdir():
            for path in sandbox.iterdir():
                if path.name != RECORD:
                    remove_tree(path)
            if not (sandbox / RECORD).exists():  # killed while it made or removed the directory
                sandbox.rmdir()
        self._cgroups.clean()
        self._shared.point.mkdir(mode=0o700, exist_ok=True)
        self._shared.resolver.write_text(f"nameserver {RESOLVER}\n")
        self._store.clean()
        if not self._store.layer(FOUNDATION).is_dir():
            with self._store.scratch() as work:
                _build_foundation(work / "foundation")
                self._store.publish(work / "foundation", FOUNDATION)

    async def prepare(self) -> None:
        """Build what the image `host` needs before anyone waits for it; failures are reported at first use.

        Skipped for an ordinary user, whose layers take 170 MB of memory.
        """
        if not user_namespace.inside():
            with suppress(AgentError, OSError):
                await self._layers(self._host_image.with_python(self._store.find(HOST)))

    def close(self) -> None:
        """Remove everything outside the state directory; called after the last sandbox is gone."""
        self._cgroups.close()

    def capabilities(self) -> dict[str, Any]:
        return {
            **self._requirements.document(),
            "cgroup": self._cgroups.layout.version,
            "limits": dict(self._cgroups.enforced),
            "pause": self._cgroups.freezes,
            "disk": {
                "limit": self._disk_limits.size,
                "files": self._disk_limits.files,
                "enforced": "by watching: who takes more is stopped",
            },
            "images": [HOST, *self._store.names()],
        }

    async def create(self, spec: SandboxSpec, died: Died) -> LocalSandbox:
        """Start a sandbox. Raises AgentError (`image_missing`, `start_failed`), and then leaves nothing.

        The links to programs are among its changes, so copies of it have them too.
        """
        image = self._store.find(spec.image, spec.owner)
        for name in spec.layers:
            image = laid_over(image, self._store.find(name, spec.owner))
        for name in spec.programs:
            image = laid_over(image, program_image(self._store, name, spec.owner))
        machine = await self._start(image, spec, died)
        try:
            for name in spec.programs:
                await asyncio.to_thread(link_commands, machine.root, name)
        except BaseException:
            await _to_its_end(machine.destroy())
            raise
        return machine

    async def _start(self, image: StoredImage, spec: SandboxSpec, died: Died) -> LocalSandbox:
        image = self._host_image.with_python(image)
        # Before anything is waited for: from here on its layers are held.
        machine = LocalSandbox(self._shared, self._directory / spec.sandbox_id, image, spec, died)
        try:
            layers = await self._layers(image)
            machine.group = self._cgroups.make(
                spec.sandbox_id, memory=spec.memory_bytes, pids=spec.pids or DEFAULT_PIDS, cores=spec.cores
            )
            machine.note = self._note(image)
            await machine.start(layers, self._program)
        except BaseException:
            await _to_its_end(machine.destroy())
            raise
        self._shared.machines.add(machine)
        self._disk.wake()
        return machine

    def _note(self, image: StoredImage) -> str:
        return "; ".join(
            filter(None, (self._cgroups.note, self._host_image.note if HOST in image.layers else ""))
        )

    async def _layers(self, image: StoredImage) -> list[Path]:
        layers: list[Path] = []
        for name in image.layers:
            if name == HOST:
                async with self._host_image_lock:
                    layers += await self._host_image.layers()
            elif name.startswith(PYTHON):
                async with self._host_image_lock:
                    layers.append(await self._host_image.python(name, image.name))
            else:
                layers.append(self._store.layer(name))
        return [*layers, self._store.layer(FOUNDATION)]


async def _to_its_end(work: Coroutine[Any, Any, None]) -> None:
    """Await `work` to its end even if the caller is cancelled repeatedly.

    A start that timed out may be deleted too, and the deletion continues once the start has ended.
    """
    task = asyncio.create_task(work)
    while not task.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait({task})
    task.result()


def _build_foundation(target: Path) -> None:
    """Build the lowest layer of every sandbox: what an image may lack and every sandbox needs."""
    target.mkdir(mode=0o755)
    for name in ("proc", "dev", "sys", "run", "etc", "root", "tmp", "var", "var/tmp", "workspace"):
        (target / name).mkdir(mode=0o755)
    for name in ("tmp", "var/tmp"):
        (target / name).chmod(0o1777)
    (target / "root").chmod(0o700)
    (target / "etc/hosts").write_text("127.0.0.1 localhost\n::1 localhost\n")
    (target / "etc/resolv.conf").touch()

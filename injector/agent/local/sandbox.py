"""A sandbox of a Linux machine, from its first process to its end, and copies of it."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from orchard.injector.agent import files
from orchard.injector.agent.accounts import UserAccount, account, others
from orchard.injector.agent.egress import Rule
from orchard.injector.agent.errors import AgentError, Conflict, RequestInvalid, SandboxGone, Unsupported
from orchard.injector.agent.files import remove_tree
from orchard.injector.agent.interfaces import Died, SandboxSpec
from orchard.injector.agent.kernel import open_beneath
from orchard.injector.agent.local import names, user_namespace
from orchard.injector.agent.local.building import PROGRAM, STEPS, Overlay, building
from orchard.injector.agent.local.cgroups import BUSY_SECONDS, Cgroups, ControlGroup
from orchard.injector.agent.local.egress import Egress, Resolver, hosts_file
from orchard.injector.agent.local.host_image import HostImage
from orchard.injector.agent.local.images import FORK, HOST, ImageStore, StoredImage, tree_size
from orchard.injector.agent.local.network import Outbound
from orchard.injector.agent.local.overlay import MAX_LAYERS
from orchard.injector.agent.output import PipeOutput
from orchard.injector.agent.protocol import WORKSPACE
from orchard.injector.agent.spawning import Entrance, Spawner, StartFailure

HOSTS = "hosts"
"""File in the directory of a sandbox with egress rules: its /etc/hosts."""
OWN = "own"
"""Layer in the directory of a sandbox that contains its own name."""
LOOK_AGAIN = 0.002
"""Seconds between checks whether all processes have stopped."""
OURS = 4
"""Layers that a sandbox may have below those of its image."""


@dataclass(frozen=True, kw_only=True)
class HostContext:
    spawner: Spawner
    store: ImageStore
    cgroups: Cgroups
    host_image: HostImage
    point: Path
    """Where each sandbox mounts its root, unseen by all others."""
    resolver: Path
    slirp: str
    """Path of slirp4netns, or empty."""
    names: Resolver
    private: Sequence[str]
    """Networks that egress rules may name although sandboxes with a network cannot reach them."""
    start: "Callable[[StoredImage, SandboxSpec, Died], Awaitable[LocalSandbox]]"
    """Starts a sandbox on this image, whatever its specification names."""
    machines: "set[LocalSandbox]" = field(default_factory=set)


class LocalSandbox:
    """One sandbox: its directory holds `upper` (its changes), `work` (for the overlay) and `own`."""

    def __init__(
        self, shared: HostContext, directory: Path, image: StoredImage, spec: SandboxSpec, died: Died
    ) -> None:
        self._shared = shared
        self._directory = directory
        self._image = image
        self._spec = spec
        self._died = died
        self._spawner = shared.spawner
        self._store = shared.store
        self._store.hold(image.layers)
        self._holding = True
        self._outbound: Outbound | None = None
        self._rules = [Rule.of(text) for text in spec.egress]
        self._egress: Egress | None = None
        self.changes = directory / "upper"
        self._pid = 0
        self._pidfd = -1
        self._ended = asyncio.Event()
        self._ending = asyncio.Lock()
        self._begun = False
        self._complete = False
        self._destroying = False
        self.group: ControlGroup | None = None
        self.root = -1
        self.entrance = Entrance(pidfd=None, cgroups=())
        self.environment = {**image.environment}
        self.working_directory = image.working_directory
        self.user = image.user
        self.note = ""

    async def start(self, layers: list[Path], program: int) -> None:
        """Start the sandbox; returns when its first process runs and everything is mounted."""
        root, work = self._shared.point, self._directory / "work"
        for directory in (self.changes, work):
            directory.mkdir()
        self.changes.chmod(0o755)
        layers = names.with_own_name(layers, self._directory / OWN, self._spec.sandbox_id)
        await self._begin([Overlay(root, layers, self.changes, work), *self._usr(root, layers)], program)
        self.root = os.open(f"/proc/{self._pid}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        owner = self._owner()
        for needed in {WORKSPACE, self._image.working_directory}:
            files.make_directory(self.root, needed, owner)
        self.entrance = Entrance(
            pidfd=self._pidfd,
            cgroups=self.group.entrances if self.group else (),
            rlimits=self._shared.cgroups.rlimits(memory=self._spec.memory_bytes),
        )
        if not self._spec.block_network:
            self._outbound = Outbound(self._spawner, f"network of {self._name}", self._shared.slirp)
            await self._outbound.open(self._pid, self.entrance.cgroups, self._network_lost)
        elif self._rules:
            self._egress = Egress(self._rules, self._shared.names, self._shared.private)
            await self._egress.open(self._pid, self.entrance)

    def _owner(self) -> UserAccount | None:
        """Owner of the directories made here; adds a note if that is root, whatever the image says."""
        if self.user and not others():
            says = f"the image's user {self.user} is root: there are no other users without /etc/subuid"
            self.note = "; ".join(filter(None, (self.note, says)))
            self.user = ""
        if not self.user:
            return None
        owner = account(self.root, self.user)
        workspace = open_beneath(self.root, WORKSPACE, os.O_RDONLY | os.O_DIRECTORY)
        try:
            if os.fstat(workspace).st_uid == 0:
                os.fchown(workspace, owner.uid, owner.gid)
        finally:
            os.close(workspace)
        return owner

    def oom_kills(self) -> int:
        return self.group.oom_kills() if self.group else 0

    def dying(self) -> bool:
        """Whether the first process is exiting or gone; the kernel kills all others before it ends."""
        try:
            stat = Path(f"/proc/{self._pid}/stat").read_text()
        except FileNotFoundError:
            return True
        flags = int(stat.rpartition(")")[2].split()[6])
        return bool(flags & 0x4)  # PF_EXITING

    async def freeze(self, frozen: bool) -> None:
        """Raises Unsupported without control groups, Conflict if a process does not stop."""
        if self.group is None or not self.group.freezes:
            raise Unsupported(
                "no pause: it needs control groups (version 2, or the controller `freezer`), which only root "
                "can make; stop the sandbox's commands instead"
            )
        self.group.freeze(frozen)
        deadline = asyncio.get_running_loop().time() + BUSY_SECONDS
        while frozen and not self.group.frozen():
            if asyncio.get_running_loop().time() > deadline:
                self.group.freeze(False)
                raise Conflict(f"not every process stopped within {BUSY_SECONDS:g} s", reason="busy")
            await asyncio.sleep(LOOK_AGAIN)
            if self.group is None:
                raise SandboxGone("the sandbox is gone", reason="deleted")

    async def snapshot(self, image: str) -> dict[str, Any]:
        made = await self._store.snapshot(self.changes, self._image, image, self._spec.owner)
        size = await asyncio.to_thread(tree_size, self._store.layer(made.layers[0]))
        return {"image": made.name, "layers": len(made.layers), "size": size}

    async def template(self) -> "LocalTemplate":
        """Copy its changes as a layer that any number of sandboxes share."""
        if len(self._image.layers) >= MAX_LAYERS - OURS:
            raise RequestInvalid(
                f"sandbox {self._spec.sandbox_id} stands on {len(self._image.layers)} layers, and more "
                "cannot be mounted: fork an earlier one"
            )
        layer = await self._store.copy(self.changes, FORK)
        return LocalTemplate(self._shared, replace(self._image, layers=[layer, *self._image.layers]))

    async def destroy(self) -> None:
        """Kill everything inside; remove root, changes and cgroups."""
        self._destroying = True
        async with self._ending:
            await self._destroy()

    async def _destroy(self) -> None:
        if self._begun and not self._ended.is_set():
            if self._pidfd < 0:
                self._spawner.kill(self._name)
            else:
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            if self.group is not None and self.group.freezes:
                self.group.freeze(False)  # or they would end when they go on
            await self._ended.wait()
        if self._outbound is not None:
            await self._outbound.close()
        if self._egress is not None:
            await self._egress.close()
        if self.root >= 0:
            os.close(self.root)
            self.root = -1
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1
        if self.group is not None:
            self.group.close()
        self._shared.machines.discard(self)
        await asyncio.to_thread(self._remove)

    @property
    def _name(self) -> str:
        return f"sandbox {self._spec.sandbox_id}"

    def _remove(self) -> None:
        if self.group is not None:
            self.group.remove()
            self.group = None
        for name in ("upper", "work", OWN):
            remove_tree(self._directory / name)
        if self._rules:
            (self._directory / HOSTS).unlink(missing_ok=True)
        if self._holding:
            self._holding = False
            self._store.release(self._image.layers)

    async def _begin(self, overlays: list[Overlay], program: int) -> None:
        calls = building(
            overlays,
            sandbox_id=self._spec.sandbox_id,
            shown=self._shown(),
            groups=self.group.entrances if self.group else (),
            memory=self._spec.memory_bytes,
        )
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[str] = loop.create_future()
        adopted: asyncio.Future[None] = loop.create_future()

        def started(pid: int, _inner: int) -> None:
            self._pid = pid
            with suppress(ProcessLookupError):  # killed meanwhile, which is reported next
                self._pidfd = os.pidfd_open(pid)
            adopted.set_result(None)

        def report(status: int, failure: StartFailure | None) -> None:
            if not ended.done():
                ended.set_result(failure.why if failure else f"status {os.waitstatus_to_exitcode(status)}")
            if self._complete and not self._destroying:
                self._died("died", "its first process ended, and with it all others")

        ready = PipeOutput()
        written = calls.open()
        try:
            self._begun = True  # whatever happens to us, the start goes on and is reported
            await asyncio.shield(
                self._spawner.begin(
                    self._name,
                    out=ready.writer,
                    written=written,
                    program=(program, PROGRAM),
                    steps=STEPS,
                    report=report,
                    ended=self._ended,
                    started=started,
                )
            )
            ready.close_writer()
            for needed in (ready.first, adopted):  # they come in any order
                waiting: list[asyncio.Future[Any]] = [ended, needed]
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if not (ready.first.done() and ready.first.result()):
                raise AgentError(f"it could not be started: {await ended}", reason="start_failed")
            self._complete = True
        finally:
            os.close(written)
            ready.close()

    def _shown(self) -> dict[str, Path]:
        if not self._spec.block_network:
            return {"/etc/resolv.conf": self._shared.resolver}
        if not self._rules:
            return {}
        hosts = self._directory / HOSTS
        hosts.write_text(hosts_file(self._rules, names.line(self._spec.sandbox_id)))
        return {"/etc/hosts": hosts}

    def _usr(self, root: Path, layers: list[Path]) -> list[Overlay]:
        """Overlay at /usr, for an image that stands on the machine's own /usr, without root.

        Its changes lie where those of a single overlay would, so that copies need not know.
        """
        if HOST not in self._image.layers or not user_namespace.inside():
            return []
        visible, content = self._shared.host_image.usr(layers)
        upper, work = self.changes / "usr", self._directory / "work" / "usr"
        upper.mkdir()
        work.mkdir()
        return [Overlay(root / "usr", visible, upper, work, content)]

    async def stop(self, reason: str, message: str) -> None:
        if not self._destroying:
            self._died(reason, message)
            await self.destroy()

    def _network_lost(self) -> None:
        """End the sandbox: it lacks a network that it was promised."""
        if not self._destroying:
            self._died("network_lost", "its network process ended")
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)


class LocalTemplate:
    """A copy of a sandbox's changes, as the topmost layer of an image without a name."""

    def __init__(self, shared: HostContext, image: StoredImage) -> None:
        self._shared = shared
        self._image = image
        shared.store.hold(image.layers)

    async def create(self, spec: SandboxSpec, died: Died) -> LocalSandbox:
        return await self._shared.start(self._image, spec, died)

    async def size(self) -> int:
        return await asyncio.to_thread(tree_size, self._shared.store.layer(self._image.layers[0]))

    async def release(self) -> None:
        """Release the copy, which is removed with the last sandbox that uses it."""
        await asyncio.to_thread(self._shared.store.release, self._image.layers)

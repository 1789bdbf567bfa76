"""One sandbox of an agent: its state and its record."""

import asyncio
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from orchard.injector.agent.errors import Conflict, SandboxGone
from orchard.injector.agent.interfaces import RunningSandbox, SandboxSpec
from orchard.injector.agent.jobs import SandboxJobs
from orchard.injector.agent.snapshots import Snapshots

NAMESPACE = "local"
MOST_WATCHES = 8


class HostedSandbox:
    """One sandbox: `pending`, then `ready` or `failed`; a failed one never comes back."""

    def __init__(self, spec: SandboxSpec, key: str | None, created_at: float) -> None:
        self.spec = spec
        self.key = key
        self.created_at = created_at
        self.status = "pending"
        self.status_message = ""
        self.reason = ""
        self.settled = asyncio.Event()
        self.ended = asyncio.Event()
        """Set when it failed, is being deleted or restored."""
        self.has_room = False
        """Whether it counts among those that may live at once."""
        self.machine: RunningSandbox | None = None
        self.jobs: SandboxJobs | None = None
        self.touched = time.monotonic()
        self.in_flight = 0
        self.watches = 0
        self.expiry: asyncio.TimerHandle | None = None
        self.starting: asyncio.Task[None] | None = None
        self.deleting: asyncio.Task[None] | None = None
        self.paused = False
        self._pausing = asyncio.Lock()
        self.snapshots = Snapshots()
        self.forks: dict[str, tuple[Mapping[str, Any], asyncio.Task[list[str]]]] = {}
        """Requests by idempotency key, with the ids of the sandboxes made from them."""

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Count a file watch. A context manager; raises Conflict for one too many."""
        if self.watches >= MOST_WATCHES:
            raise Conflict(
                f"sandbox {self.spec.sandbox_id} has {MOST_WATCHES} watches of files: end one, or watch a "
                "directory above",
                reason="too_many_watches",
            )
        self.watches += 1
        try:
            yield
        finally:
            self.watches -= 1

    def fail(self, reason: str, message: str) -> None:
        if self.status != "failed":
            self.status, self.reason, self.status_message = "failed", reason, message
            self.settled.set()
            self.ended.set()

    def begin_again(self) -> None:
        """Turn from `ready` to `pending`, for a restore, and notify whoever uses the old state."""
        self.status = "pending"
        self.settled.clear()
        self.ended.set()
        self.ended = asyncio.Event()

    def document(self) -> dict[str, Any]:
        return {
            "sandbox_id": self.spec.sandbox_id,
            "namespace": NAMESPACE,
            "image": self.spec.image,
            "pod_name": f"sandbox-{self.spec.sandbox_id}",
            "block_network": self.spec.block_network,
            "cpu": self.spec.cpu,
            "memory": self.spec.memory,
            "created_at": self.created_at,
            "ready": self.status == "ready",
            "status": self.status,
            "status_message": self.status_message,
            "reason": self.reason,
            "labels": dict(self.spec.labels),
            "paused": self.paused,
        }

    def ready(self) -> tuple[RunningSandbox, SandboxJobs]:
        """Return its machine and jobs. Raises SandboxGone when it failed, Conflict while it is pending."""
        if self.status == "failed":
            raise SandboxGone(
                f"sandbox {self.spec.sandbox_id} failed: {self.status_message}", reason=self.reason
            )
        if self.status == "pending" or self.machine is None or self.jobs is None:
            raise Conflict(f"sandbox {self.spec.sandbox_id} is not ready yet", reason="pending")
        return self.machine, self.jobs

    async def pausing(self, machine: RunningSandbox, frozen: bool) -> None:
        async with self._pausing:
            if frozen:
                self.paused = True  # before anything is waited for: no command starts any more
            try:
                await machine.freeze(frozen)
            except BaseException:
                frozen = False  # none is half frozen
                raise
            finally:
                if machine is self.machine:
                    self.paused = frozen

    def running(self) -> tuple[RunningSandbox, SandboxJobs]:
        """Return the same as `ready`, for commands. Raises Conflict (`paused`) too."""
        if self.paused:
            raise Conflict(f"sandbox {self.spec.sandbox_id} is paused: resume it first", reason="paused")
        return self.ready()

"""What happened during a soak, and which failures the injected faults explain."""

import time
from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum

from orchard.injector.errors import SandboxError

TERMINAL = "terminal"
"""The one operation that cannot survive the loss of its line; everything else is repeated by the SDK."""
CREATE = "create"
BEFORE = 2.0
"""Seconds that a cut line may take to be noticed."""


class Effect(StrEnum):
    """What a fault may do to callers, at most."""

    LINES = "lines"
    """Connections break: terminal sessions end, everything else must not notice."""
    SANDBOXES = "sandboxes"
    """Sandboxes die: whoever uses one is told so by a typed error."""
    NOTHING = "nothing"


@dataclass
class Fault:
    """One injected fault; `sandboxes` are those it may kill, None for all."""

    kind: str
    effect: Effect
    begun: float
    ended: float | None = None
    sandboxes: frozenset[str] | None = None

    def during(self, begun: float) -> bool:
        """Whether it was there at some moment since `begun`."""
        return self.ended is None or self.ended + BEFORE >= begun

    def killed(self, sandbox_id: str | None) -> bool:
        """Whether it may have killed this sandbox."""
        named = self.sandboxes is None or sandbox_id is None or sandbox_id in self.sandboxes
        return self.effect is Effect.SANDBOXES and named


@dataclass
class Checkpoint:
    """The service at rest: what each process holds, and what was left behind."""

    seconds: float
    operations: int
    holds: dict[str, dict[str, float]]
    left: list[str]


@dataclass
class Record:
    """Counts of everything; `findings` is empty when every promise held."""

    leg: str
    seed: int
    begun: float = field(default_factory=time.monotonic)
    seconds: float = 0.0
    sessions: int = 0
    abandoned: int = 0
    operations: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    """Typed errors that a fault explains, by operation, type and reason."""
    faults: Counter[str] = field(default_factory=Counter)
    timeline: list[Fault] = field(default_factory=list)
    checkpoints: list[Checkpoint] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)

    @property
    def total(self) -> int:
        """Operations that ended as they should."""
        return self.operations.total()

    def find(self, what: str) -> None:
        """A broken promise, with the time it was noticed."""
        self.findings.append(f"after {time.monotonic() - self.begun:.1f} s: {what}")

    def _line_fault(self, begun: float) -> bool:
        return any(fault.effect is Effect.LINES and fault.during(begun) for fault in self.timeline)

    def judge(
        self, name: str, error: BaseException, *, begun: float, born: float, sandbox_id: str | None
    ) -> None:
        """Count an operation's failure, or find that nothing explains it."""
        if not isinstance(error, SandboxError):
            self.find(f"{name} of {sandbox_id} raised {type(error).__name__}, no typed error: {error}")
            return
        said = f"{name}: {type(error).__name__} ({error.reason})"
        dead = any(fault.during(born) and fault.killed(sandbox_id) for fault in self.timeline)
        cut = name == TERMINAL and any(fault.during(begun) for fault in self.timeline)
        # Its client was kept from it for longer than it lives without one.
        expired = name == CREATE and error.reason == "deleted" and self._line_fault(begun)
        if dead or cut or expired:
            self.errors[said] += 1
        else:
            self.find(f"{said} of {sandbox_id} after {time.monotonic() - begun:.2f} s: {error}")

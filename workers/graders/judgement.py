"""The arguments of a grader."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field

from orchard.schemas.blobs import BlobRef
from orchard.schemas.judging import JudgeVerdict
from orchard.schemas.outcomes import AbortCause
from orchard.schemas.tasks import Task
from orchard.storage.blobs import BlobStore
from orchard.workers.episode.machine import Machine
from orchard.workers.failures import InfrastructureError, storing
from orchard.workers.graders.endings import Controls
from orchard.workers.judges.interface import Evidence, Messages
from orchard.workers.judges.ruling import Judges
from orchard.workers.masking import masked

Pristine = Callable[[], AbstractAsyncContextManager[Machine]]
"""Opens another fresh machine of the task's image."""


@dataclass(frozen=True)
class Judgement:
    """One outcome to judge, and everything that a grader may touch."""

    task: Task
    submission: str
    """The harness's submission; a unified diff if a patch is judged."""
    machine: Machine
    """A fresh sandbox of the task's image, or the agent's own if the grader is `in_place`."""
    timeout: float
    pristine: Pristine
    blobs: BlobStore
    judges: Judges | None = None
    """Models that rule where no program can; None if rewards are made without any."""
    published: bool = False
    """Whether to follow the rules of published benchmarks, which trust what tested code prints: for figures
    that are compared, never for training."""
    copies: bool = True
    """Whether a +1 is asked again with other expected values; not for the gold patch, which nobody forged."""
    controls: Controls = field(default_factory=Controls)

    async def rule(self, name: str, evidence: Evidence, protocol: str = "") -> JudgeVerdict:
        """Returns a judge's verdict on `name`, a part of this judgement: see `Judges.rule`."""
        return await self._judges_for(name).rule(name, evidence, protocol)

    async def ask(self, name: str, messages: Messages) -> str:
        """Asks the judging model in the grader's own words: see `Judges.ask`."""
        return await self._judges_for(name).ask(name, messages)

    @property
    def judged(self) -> str | None:
        """The judge that has ruled so far, for `Reward.judge`."""
        return self.judges.who if self.judges is not None else None

    async def keep_log(self, text: str) -> BlobRef:
        """Stores what the grader saw, without keys of a known form; for `Reward.log`."""
        data = masked(text).text.encode(errors="replace")
        with storing():
            return await asyncio.to_thread(self.blobs.put, data, "text/plain; charset=utf-8")

    def _judges_for(self, name: str) -> Judges:
        if self.judges is None:
            raise InfrastructureError(
                AbortCause.JUDGE_FAILED,
                f"{name} needs a judge, and this process has none: let a worker grade it",
            )
        return self.judges

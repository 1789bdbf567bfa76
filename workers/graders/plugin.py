"""Graders that are plug-ins: what one is given, what it answers, and how its own failures are told apart."""

import asyncio
import math
import time
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from orchard.schemas.blobs import BlobRef
from orchard.schemas.judging import JudgeVerdict
from orchard.schemas.outcomes import AbortCause, Reward
from orchard.schemas.plugins import Kind, PluginError, need
from orchard.schemas.tasks import PluginGrading, Task
from orchard.storage.blobs import BlobStore
from orchard.storage.errors import StorageError
from orchard.workers.domains.swe.grader import Pristine
from orchard.workers.episode.machine import Machine
from orchard.workers.failures import InfrastructureError
from orchard.workers.judges.interface import Evidence, Messages
from orchard.workers.judges.ruling import Judges
from orchard.workers.masking import masked


@dataclass(frozen=True)
class Judgement:
    """One outcome to judge: everything that a grader may touch."""

    task: Task
    submission: str
    """What the harness handed in; for SWE a unified diff."""
    machine: Machine
    """A fresh sandbox of the task's image, or the agent's own where the grader is `in_place`."""
    timeout: float
    """Seconds that the whole judgement may take."""
    pristine: Pristine
    """Opens another fresh sandbox of the image, for a control."""
    blobs: BlobStore
    judges: Judges | None = None
    """Models that rule where no program can; None where rewards are made without any."""

    async def rule(self, name: str, evidence: Evidence, protocol: str = "") -> JudgeVerdict:
        """The verdict of a judge on `name`, a part of this judgement: see `Judges.rule`."""
        if self.judges is None:
            raise InfrastructureError(
                AbortCause.JUDGE_FAILED, f"{name} needs a judge, and there is none here"
            )
        return await self.judges.rule(name, evidence, protocol)

    async def ask(self, name: str, messages: Messages) -> str:
        """The answer of the judging model to messages in the grader's own words: see `Judges.ask`."""
        if self.judges is None:
            raise InfrastructureError(
                AbortCause.JUDGE_FAILED, f"{name} needs a judge, and there is none here"
            )
        return await self.judges.ask(name, messages)

    @property
    def judged(self) -> str | None:
        """Who has ruled so far, for `Reward.judge`."""
        return self.judges.who if self.judges is not None else None

    async def keep_log(self, text: str) -> BlobRef:
        """Store what the grader saw, without keys that are known by their form; for `Reward.log`."""
        data = masked(text).text.encode(errors="replace")
        try:
            return await asyncio.to_thread(self.blobs.put, data, "text/plain; charset=utf-8")
        except StorageError as error:
            raise InfrastructureError(AbortCause.STORE_FAILED, str(error)) from error


class Grader(Protocol):
    """What counts as solved. It answers with a Reward, or raises; it never guesses."""

    name: str
    in_place: bool
    """Whether it looks at the agent's own sandbox, rather than at the submission in a fresh one."""
    settings: type[msgspec.Struct]
    """What tasks that name it must say."""

    async def grade(self, settings: Any, judgement: Judgement) -> Reward:
        """The reward, -1 to +1 by convention. What it raises aborts the attempt, and is no reward."""


def get_grader(grading: PluginGrading) -> tuple[Grader, msgspec.Struct]:
    """The grader that a task names, and what the task says to it. Raises PluginError."""
    grader: Grader = need(Kind.GRADER, grading.grader)
    if grader.in_place != grading.in_place:
        raise PluginError(
            f"the task says in_place = {grading.in_place}, its grader {grading.grader} {grader.in_place}: "
            "import the task again"
        )
    try:
        return grader, msgspec.convert(grading.settings, grader.settings)
    except msgspec.ValidationError as error:
        raise PluginError(f"the settings for grader {grading.grader}: {error}") from error


async def grade_by_plugin(grading: PluginGrading, judgement: Judgement) -> Reward:
    """What the plug-in says. A plug-in that fails, or answers no finite Reward, is GRADER_FAILED."""
    started = time.monotonic()
    try:
        grader, settings = get_grader(grading)
    except PluginError as error:
        raise InfrastructureError(AbortCause.INVALID_REQUEST, f"{judgement.task.task_id}: {error}") from error
    try:
        reward = await grader.grade(settings, judgement)
    except InfrastructureError:
        raise
    except Exception as error:
        raise InfrastructureError(
            AbortCause.GRADER_FAILED, f"grader {grading.grader}: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(reward, Reward) or not math.isfinite(reward.value):
        raise InfrastructureError(AbortCause.GRADER_FAILED, f"grader {grading.grader} answered {reward!r}")
    return msgspec.structs.replace(reward, grader=grading.grader, seconds=time.monotonic() - started)

"""The interface of graders: their arguments, and how a plug-in's own failures are told apart."""

import asyncio
import math
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from orchard.schemas.blobs import BlobRef
from orchard.schemas.judging import JudgeVerdict
from orchard.schemas.outcomes import AbortCause, Reward
from orchard.schemas.plugins import Kind, PluginError
from orchard.schemas.tasks import PluginGrading, Task
from orchard.storage.blobs import BlobStore
from orchard.workers.episode.machine import Machine
from orchard.workers.episode.preparation import Course
from orchard.workers.failures import InfrastructureError, storing
from orchard.workers.graders.endings import Controls
from orchard.workers.judges.interface import Evidence, Messages
from orchard.workers.judges.ruling import Judges
from orchard.workers.masking import masked
from orchard.workers.plugins import need


class Pristine(Protocol):
    """Opens another fresh machine of the task's image."""

    def __call__(self, other: Task | None = None, /) -> AbstractAsyncContextManager[Machine]:
        """With `other`, one of that task."""


Copied = Callable[[], AbstractAsyncContextManager[Machine]]
"""Opens a machine with the files of another one, and without its processes."""


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
    plain: bool = False
    """Whether tests run as they are, without a question sheet: for the known solution."""
    controls: Controls = field(default_factory=Controls)
    stage: Course | None = None
    """How a fresh machine comes to what is judged, if that is a stage of a task."""
    copied: Copied | None = None
    """Copies `machine`, where the agent goes on after this judgement; None: it does not."""

    @property
    def course(self) -> Course:
        return self.stage or Course(self.task)

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


class Grader(Protocol):
    """Decides whether a task is solved. It answers with a Reward or raises; it never guesses."""

    name: str
    in_place: bool
    """Whether it looks at the agent's own sandbox, rather than at the submission in a fresh one."""
    settings: type[msgspec.Struct]

    async def grade(self, settings: Any, judgement: Judgement) -> Reward:
        """Returns the reward, -1 to +1 by convention. An exception aborts the attempt, and is no reward."""


def get_grader(grading: PluginGrading) -> tuple[Grader, msgspec.Struct]:
    """Returns the grader that a task names, and the task's settings for it. Raises PluginError."""
    grader: Grader = need(Kind.GRADER, grading.grader)
    if grader.in_place != grading.in_place:
        raise PluginError(
            f"the task says in_place = {grading.in_place}, its grader {grading.grader} {grader.in_place}: "
            "import the task again"
        )
    try:
        return grader, msgspec.convert(grading.settings, grader.settings)
    except msgspec.ValidationError as error:
        raise PluginError(
            f"the task's settings for the grader {grading.grader!r} do not fit: {error}: "
            "correct them and import the task again"
        ) from error


async def grade_by_plugin(grading: PluginGrading, judgement: Judgement) -> Reward:
    """Returns the plug-in's reward. A plug-in that fails, or answers no finite Reward, is GRADER_FAILED."""
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
        raise InfrastructureError(
            AbortCause.GRADER_FAILED,
            f"grader {grading.grader} answered {reward!r}: it must return a Reward with a finite value",
        )
    return msgspec.structs.replace(reward, grader=grading.grader, seconds=time.monotonic() - started)

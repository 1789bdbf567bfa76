"""The interface of plug-in graders, and how their own failures are told apart."""

import math
import time
from typing import Any, Protocol

import msgspec

from orchard.schemas.outcomes import AbortCause, Reward
from orchard.schemas.plugins import Kind, PluginError
from orchard.schemas.tasks import PluginGrading
from orchard.workers.failures import InfrastructureError
from orchard.workers.graders.judgement import Judgement
from orchard.workers.plugins import need


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

"""Graders decide whether a task is solved. A grader answers with a Reward or raises; it never guesses."""

from collections.abc import Awaitable, Callable
from typing import Any

from orchard.schemas.outcomes import AbortCause, Reward
from orchard.schemas.tasks import PluginGrading, StateCheck, Task
from orchard.storage.blobs import BlobStore
from orchard.workers.discovery import load
from orchard.workers.domain import domains
from orchard.workers.episode.machine import Machine
from orchard.workers.episode.preparation import Course
from orchard.workers.failures import InfrastructureError
from orchard.workers.graders.endings import Controls
from orchard.workers.graders.judgement import Copied, Judgement, Pristine, get_grader, grade_by_plugin
from orchard.workers.graders.state import grade_state
from orchard.workers.judges.ruling import Judges


async def grade(
    task: Task,
    submission: str,
    machine: Machine,
    *,
    timeout: float,
    blobs: BlobStore,
    pristine: Pristine,
    published: bool = False,
    plain: bool = False,
    judges: Judges | None = None,
    controls: Controls | None = None,
    stage: Course | None = None,
    copied: Copied | None = None,
) -> Reward:
    """Judges a submission by the task's own rule; Judgement explains the arguments.

    `machine` is a fresh sandbox of the task's image, or the agent's own if the task is graded in place
    (`graded_in_place`). `timeout`, in seconds, bounds the whole.

    Raises InfrastructureError: the machine's, GRADER_FAILED if no judgement is possible, TASK_BROKEN if none
    ever will be, INVALID_REQUEST for a task that cannot be judged by anyone, STORE_FAILED if the log cannot
    be stored.
    """
    judgement = Judgement(
        task,
        submission,
        machine,
        timeout=timeout,
        blobs=blobs,
        pristine=pristine,
        judges=judges,
        published=published,
        plain=plain,
        controls=controls or Controls(),
        stage=stage,
        copied=copied,
    )
    match task.grading:
        case StateCheck() as check:
            return await grade_state(check, judgement)
        case PluginGrading() as chosen:
            return await grade_by_plugin(chosen, judgement)
        case tests:
            return await _grader_of(task)(tests, judgement)


def _grader_of(task: Task) -> Callable[[Any, Judgement], Awaitable[Reward]]:
    """Returns the function of a domain that grades by this kind of struct."""
    tag = str(type(task.grading).__struct_config__.tag)
    for domain in domains().values():
        if tag in domain.gradings:
            found: Callable[[Any, Judgement], Awaitable[Reward]] = load(domain.gradings[tag])
            return found
    raise InfrastructureError(
        AbortCause.INVALID_REQUEST, f"{task.task_id}: no domain here grades by {tag!r}: install its package"
    )


def check_grading(task: Task) -> None:
    """Raises PluginError for a task whose grader this process does not have."""
    if isinstance(task.grading, PluginGrading):
        get_grader(task.grading)

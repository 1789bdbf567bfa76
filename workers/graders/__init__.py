"""Graders: what counts as solved. A grader answers with a Reward or raises; it never guesses."""

from orchard.schemas.outcomes import Reward
from orchard.schemas.tasks import PluginGrading, StateCheck, SWETests, Task
from orchard.storage.blobs import BlobStore
from orchard.workers.domains.swe.grader import Pristine, grade_swe
from orchard.workers.episode.machine import Machine
from orchard.workers.graders.controls import Controls
from orchard.workers.graders.plugin import Judgement, get_grader, grade_by_plugin
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
    copies: bool = True,
    judges: Judges | None = None,
    controls: Controls | None = None,
) -> Reward:
    """Judge a submission by the task's own rule.

    `machine` is a fresh sandbox of the task's image, or the agent's own where the task is graded in place
    (`graded_in_place`); `pristine` opens another fresh one: for a control, and before a +1. `timeout`, in
    seconds, bounds the whole. `published` follows the rules of published benchmarks, which trust what tested
    code prints: for figures that are compared, never for training. Without `copies` a +1 is not asked again
    with other expected values: for the gold patch alone, which nobody forged. `judges` rule for graders that
    need a model. `controls` are those of earlier gradings, which need not be repeated.

    Raises InfrastructureError: the machine's, GRADER_FAILED when no judgement is possible, TASK_BROKEN when
    none ever will be, INVALID_REQUEST for a task that cannot be judged by anyone, STORE_FAILED when the log
    cannot be kept.
    """
    match task.grading:
        case SWETests() as tests:
            return await grade_swe(
                task,
                tests,
                submission,
                machine,
                timeout=timeout,
                blobs=blobs,
                pristine=pristine,
                published=published,
                copies=copies,
            )
        case StateCheck() as check:
            return await grade_state(
                task,
                check,
                machine,
                timeout=timeout,
                blobs=blobs,
                pristine=pristine,
                controls=controls or Controls(),
            )
        case PluginGrading() as chosen:
            judgement = Judgement(
                task,
                submission,
                machine,
                timeout=timeout,
                blobs=blobs,
                pristine=pristine,
                judges=judges,
            )
            return await grade_by_plugin(chosen, judgement)


def check_grading(task: Task) -> None:
    """Raises PluginError for a task whose grader this process does not have."""
    if isinstance(task.grading, PluginGrading):
        get_grader(task.grading)

"""Grading stage by stage: the agent goes on in its sandbox after each check but the last."""

from collections.abc import Awaitable, Callable, Sequence

import msgspec

from orchard.schemas.blobs import BlobRef
from orchard.schemas.outcomes import Reward
from orchard.schemas.protection import Protected
from orchard.schemas.tasks import StageChecks, Task, TaskStage
from orchard.storage.blobs import BlobStore
from orchard.workers.episode.machine import Machine
from orchard.workers.episode.preparation import Course, SetUpFailed
from orchard.workers.episode.stages import StageCourse, set_up, stage_task, stages_of
from orchard.workers.failures import storing
from orchard.workers.graders.endings import reached, score_of
from orchard.workers.graders.judgement import Pristine
from orchard.workers.graders.state import NAME, PREVENTED, away, known_state

Act = Callable[[Task, TaskStage], Awaitable[None]]
"""Lets the agent work on a stage, which is a task of its own."""
Grade = Callable[[Task, Course, bool], Awaitable[Reward]]
"""Grades a stage in the agent's sandbox; the last argument says whether the agent goes on there."""


async def through_stages(
    task: Task,
    grading: StageChecks,
    machine: Machine,
    act: Act,
    grade: Grade,
    *,
    pristine: Pristine,
    timeout: float,
) -> list[Reward]:
    """The rewards of the stages that began. `timeout`, in seconds, bounds each set-up. Raises as `act` and
    `grade` do, and if a set-up fails where the agent need not be the reason."""
    rewards: list[Reward] = []
    for number, stage in enumerate(grading.stages):
        alone, course = stage_task(task, number), StageCourse(task, number)
        if why := await _prevented(task, stage, alone, course, machine, pristine, timeout):
            detail = f"{why}; without the agent it works"
            rewards.append(Reward(value=-1.0, resolved=False, grader=NAME, cause=PREVENTED, detail=detail))
            break
        await act(alone, stage)
        goes_on = number + 1 < len(grading.stages)
        rewards.append(await grade(alone, course, goes_on))
        if below(stage, rewards[-1]) or not goes_on:
            break
        if stage.clear and not away(stage.check):
            await machine.run(stage.clear, timeout=timeout, cwd="/", user="root")
    return rewards


async def _prevented(
    task: Task,
    stage: TaskStage,
    alone: Task,
    course: Course,
    machine: Machine,
    pristine: Pristine,
    timeout: float,
) -> str:
    """Sets the stage up and says how the agent before it has prevented that; empty if it is set up. Where
    time, memory or a network may be the reason it is tried again once it has worked without the agent.
    Raises for a set-up that works nowhere."""
    try:
        await set_up(task, stage, machine, timeout)
        return ""
    except SetUpFailed as error:
        if stage is stages_of(task)[0]:
            raise
        async with pristine() as fresh:
            await known_state(alone, course, fresh, timeout)  # raises, unless it is the agent's doing
        if not error.retryable:
            return error.detail
    try:
        await set_up(task, stage, machine, timeout)
        return ""
    except SetUpFailed as error:
        return error.detail


def below(stage: TaskStage, reward: Reward) -> str:
    """Says why no further stage begins; empty if one does."""
    if reward.cause is not None:
        return f"the check says {reward.cause}"
    for name, least in stage.least.items():
        found = reward.parts.get(name)
        if found is None or found < least:
            return f"{name} is {'missing' if found is None else f'{found:g}'}, below {least:g}"
    return ""


def combined(grading: StageChecks, rewards: Sequence[Reward], blobs: BlobStore) -> Reward:
    """The reward of the whole. Each stage's numbers are parts under its name. A stage without a verdict
    counts as one whose numbers are all 0, and the whole is not solved."""
    found = [{} if reward.cause else reward.parts for reward in rewards]
    if grading.combined == "final":
        parts = found[-1]
    else:
        names = sorted({name for each in found for name in each})
        parts = {name: sum(each.get(name, 0.0) for each in found) / len(found) for name in names}
    score = score_of(parts)
    cause = next((reward.cause for reward in rewards if reward.cause), None)
    least = None if isinstance(grading.resolved_at, msgspec.UnsetType) else grading.resolved_at
    solved = cause is None and reached(score, least)
    named = list(zip(grading.stages, rewards, strict=False))
    said = [f"{stage.name}: {reward.detail}" for stage, reward in named]
    last, reward = named[-1]
    if len(rewards) < len(grading.stages):
        said.append(f"no stage after {last.name}: {below(last, reward)}")
    each = {f"{stage.name}/{key}": number for stage, of in named for key, number in of.parts.items()}
    return Reward(
        value=1.0 if solved else -1.0,
        resolved=solved,
        grader=NAME,
        parts={**each, **parts},
        score=score,
        detail="; ".join(said),
        log=_log(named, blobs),
        seconds=sum(reward.seconds for reward in rewards),
        cause=cause,
        protected=Protected.INSIDE,
    )


def _log(named: Sequence[tuple[TaskStage, Reward]], blobs: BlobStore) -> BlobRef:
    with storing():
        texts = [
            f"=== {stage.name}\n".encode() + blobs.get(reward.log)
            for stage, reward in named
            if reward.log is not None
        ]
        return blobs.put(b"\n".join(texts), "text/plain; charset=utf-8")

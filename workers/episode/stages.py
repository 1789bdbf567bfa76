"""The stages of a task, each as a task of its own: what a harness is given, and what a grader judges."""

import msgspec

from orchard.schemas.campaigns import Budget
from orchard.schemas.tasks import StageChecks, Task, TaskStage
from orchard.workers.episode.machine import Machine
from orchard.workers.episode.preparation import Course, failed_set_up, solve
from orchard.workers.episode.totals import Totals


def stages_of(task: Task) -> tuple[TaskStage, ...]:
    return task.grading.stages if isinstance(task.grading, StageChecks) else ()


def stage_task(task: Task, number: int) -> Task:
    """The stage of that number, from 0, as a task. Its solution is known only if those of the stages before
    are: it builds on them."""
    stages = stages_of(task)
    stage = stages[number]
    known = all(each.gold_patch.strip() for each in stages[: number + 1])
    return msgspec.structs.replace(
        task,
        statement=stage.statement,
        grading=stage.check,
        gold_patch=stage.gold_patch if known else "",
        user=stage.user or msgspec.UNSET,
    )


def played(task: Task) -> list[Task]:
    """The tasks that models are asked: its stages, or the task itself."""
    return [stage_task(task, number) for number in range(len(stages_of(task)))] or [task]


def stage_budget(stage: TaskStage, budget: Budget, used: Totals) -> Budget:
    """The budget of a rollout until the end of a stage, before which it had `used` so much."""
    if stage.agent_seconds is None or budget.wall_for_all:
        return budget
    wall = used.seconds + stage.agent_seconds
    return msgspec.structs.replace(budget, wall_seconds=min(wall, budget.wall_seconds or wall))


async def set_up(task: Task, stage: TaskStage, machine: Machine, timeout: float) -> None:
    """Brings the sandbox to the beginning of a stage. Raises as `failed_set_up` says."""
    for text, user in ((stage.prepare, "root"), (stage.setup, stage.user or None)):
        if not text:
            continue
        outcome = await machine.run(text, timeout=timeout, cwd=task.workdir, env=task.environment, user=user)
        if outcome.returncode != 0:
            raise failed_set_up(task, f"set-up of {task.task_id}, stage {stage.name},", outcome)


class StageCourse(Course):
    """The course of a task until the end of one of its stages."""

    def __init__(self, task: Task, number: int) -> None:
        super().__init__(stage_task(task, number))
        self._stages = [(stage, stage_task(task, at)) for at, stage in enumerate(stages_of(task))][
            : number + 1
        ]

    async def set_up(self, machine: Machine, timeout: float) -> None:
        for stage, _ in self._stages:
            await set_up(self.task, stage, machine, timeout)

    async def solve(self, machine: Machine, timeout: float) -> None:
        for stage, alone in self._stages:
            await set_up(self.task, stage, machine, timeout)
            await solve(alone, machine, timeout)

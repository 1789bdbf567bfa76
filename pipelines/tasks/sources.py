"""Task sources that are plug-ins: anything that yields tasks, checked before one of them is imported."""

from collections.abc import Iterator, Mapping
from typing import Protocol

from orchard.pipelines.tasks.errors import TaskError
from orchard.schemas.quantities import InvalidQuantity, parse_bytes, parse_cores
from orchard.schemas.tasks import Task
from orchard.workers.graders import check_grading


class TaskSource(Protocol):
    """Where tasks come from."""

    def tasks(self, **options: str) -> Iterator[Task]:
        """All tasks. `options` are those of the command line; ones that it does not know are a TypeError."""


def tasks_of(source: TaskSource, name: str, options: Mapping[str, str]) -> list[Task]:
    """The tasks of a source.

    Raises TaskError for what is no task, for an id that comes twice, and for options that it does not take;
    PluginError for a task whose grader there is not.
    """
    found: dict[str, Task] = {}
    try:
        for number, task in enumerate(source.tasks(**options), 1):
            if not isinstance(task, Task):
                raise TaskError(f"item {number} of source {name} is a {type(task).__name__}, not a Task")
            if found.get(task.task_id, task) != task:
                raise TaskError(f"source {name} has two tasks with the id {task.task_id}: ids must be unique")
            parse_bytes(task.memory)
            parse_cores(task.cpu)
            check_grading(task)
            found[task.task_id] = task
    except (TypeError, InvalidQuantity) as error:
        raise TaskError(f"source {name}: {error}") from error
    return list(found.values())

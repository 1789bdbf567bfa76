"""Task sources of domains and plug-ins: anything that yields tasks, each of which is checked."""

from collections.abc import Iterator, Mapping
from typing import Protocol

from orchard.pipelines.domain import offered
from orchard.pipelines.tasks.errors import TaskError
from orchard.pipelines.tasks.left_out import LeftOut
from orchard.pipelines.tasks.registry import storable
from orchard.schemas.plugins import Kind, PluginError
from orchard.schemas.quantities import InvalidQuantity, parse_bytes, parse_cores
from orchard.schemas.tasks import Task, checks_of
from orchard.workers.discovery import load
from orchard.workers.graders import check_grading
from orchard.workers.plugins import names, need


class TaskSource(Protocol):
    """A source of tasks."""

    def tasks(self, **options: str) -> Iterator[Task]:
        """All tasks. `options` are those of the command line; ones that it does not know are a TypeError."""


def source_names() -> list[str]:
    """Names of all sources, sorted; nothing is loaded."""
    return sorted({*offered(lambda domain: domain.task_sources), *names(Kind.TASK_SOURCE)})


def task_source(name: str) -> TaskSource:
    """The source of that name, of a domain first. Raises PluginError where there is none."""
    of_domains = offered(lambda domain: domain.task_sources)
    found: TaskSource = (
        load(of_domains[name]) if name in of_domains else need(Kind.TASK_SOURCE, name, of_domains)
    )
    return found


def tasks_of(source: TaskSource, name: str, options: Mapping[str, str]) -> tuple[list[Task], list[LeftOut]]:
    """The tasks of a source, and its faulty items: another type, a duplicate id, an unknown grader.
    Raises TaskError for options that it does not take."""
    found: dict[str, Task] = {}
    left_out = []
    try:
        for number, item in enumerate(source.tasks(**options), 1):
            try:
                task = _checked(item)
                if found.setdefault(task.task_id, task) != task:
                    raise TaskError("its id is that of another task: ids must be unique")
            except (TaskError, InvalidQuantity, PluginError) as error:
                named = f", {item.task_id}" if isinstance(item, Task) else ""
                left_out.append(LeftOut(f"item {number}{named}", str(error)))
    except TypeError as error:
        raise TaskError(f"source {name}: {error}") from error
    return list(found.values()), left_out


def _checked(item: object) -> Task:
    if not isinstance(item, Task):
        raise TaskError(f"it is a {type(item).__name__}, not a Task")
    task = storable(item)
    parse_bytes(task.memory)
    parse_cores(task.cpu)
    check_grading(task)
    for check in checks_of(task.grading):
        if not check.timeout_seconds > 0:
            raise TaskError(f"its check has {check.timeout_seconds:g} s: give it more than 0")
    return task

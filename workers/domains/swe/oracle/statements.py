"""Finding the task that a conversation is about, by its statement."""

from collections.abc import Callable, Iterable

from orchard.schemas.tasks import Task


class StatementIndex:
    """The tasks of a source by their statements, read again when a conversation matches none."""

    def __init__(self, tasks: Callable[[], Iterable[Task]]) -> None:
        self._source = tasks
        self._by_first_line: dict[str, list[Task]] = {}

    def find(self, text: str) -> Task | None:
        """The task whose whole statement occurs in `text`, the longest if several do; reads no source."""
        lines = {line.strip() for line in text.splitlines()}
        found = [
            task
            for line in lines
            for task in self._by_first_line.get(line, ())
            if task.statement.strip() in text
        ]
        return max(found, key=lambda task: len(task.statement), default=None)

    def reload(self) -> None:
        """Read the source again. A later task of the same id replaces the earlier one."""
        latest = {task.task_id: task for task in self._source()}
        index: dict[str, list[Task]] = {}
        for task in latest.values():
            lines = task.statement.strip().splitlines()
            if lines:
                index.setdefault(lines[0].strip(), []).append(task)
        self._by_first_line = index

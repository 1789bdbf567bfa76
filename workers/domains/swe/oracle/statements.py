"""Finds the task that a conversation is about, by its statement."""

from collections.abc import Callable, Iterable

from orchard.schemas.tasks import Task


class StatementIndex:
    """Indexes a source's tasks by their statements; `reload` reads the source again."""

    def __init__(self, tasks: Callable[[], Iterable[Task]]) -> None:
        self._source = tasks
        self._by_first_line: dict[str, list[Task]] = {}

    def find(self, text: str) -> Task | None:
        """Returns the task whose whole statement occurs in `text`, the longest if several do. Reads no
        source."""
        lines = {line.strip() for line in text.splitlines()}
        found = [
            task
            for line in lines
            for task in self._by_first_line.get(line, ())
            if task.statement.strip() in text
        ]
        return max(found, key=lambda task: len(task.statement), default=None)

    def reload(self) -> None:
        """Reads the source again. A later task replaces an earlier one with the same id."""
        latest = {task.task_id: task for task in self._source()}
        index: dict[str, list[Task]] = {}
        for task in latest.values():
            lines = task.statement.strip().splitlines()
            if lines:
                index.setdefault(lines[0].strip(), []).append(task)
        self._by_first_line = index

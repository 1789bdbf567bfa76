"""Whether the log can hold a task: it is JSON in UTF-8."""

import msgspec

from orchard.pipelines.tasks.errors import TaskError
from orchard.schemas.tasks import Task


def storable(task: Task) -> Task:
    """The task. Raises TaskError for one with text that is no Unicode, as names of files that are not."""
    try:
        msgspec.json.encode(task)
    except UnicodeEncodeError as error:
        raise TaskError(f"it has text that is no Unicode: {error}") from error
    return task

"""Checks that the log can hold a task, and give it back: it is JSON in UTF-8, of the types of a task."""

import msgspec

from orchard.pipelines.tasks.errors import TaskError
from orchard.schemas.tasks import Task


def storable(task: Task) -> Task:
    """The task in the form that will be read. Raises TaskError for text that is no Unicode, such as names
    of files may be, and for values of other types, which no constructor refuses."""
    try:
        plain = msgspec.to_builtins(
            task, builtin_types=(bytes, bytearray)
        )  # no text, which they would become
        return msgspec.json.decode(msgspec.json.encode(msgspec.convert(plain, Task)), type=Task)
    except UnicodeEncodeError as error:
        raise TaskError(f"it has text that is no Unicode: {error}") from error
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise TaskError(f"it cannot be stored as a task: {error}") from error

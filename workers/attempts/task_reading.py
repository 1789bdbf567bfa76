"""Reads a task and checks that this worker can carry it out."""

import msgspec

from orchard.schemas.decoding import Unreadable, decode
from orchard.schemas.outcomes import AbortCause
from orchard.schemas.plugins import PluginError
from orchard.schemas.quantities import InvalidQuantity, parse_bytes, parse_cores
from orchard.schemas.requests import known_part
from orchard.schemas.tasks import Task
from orchard.workers.episode.worlds import blocks_network
from orchard.workers.failures import InfrastructureError
from orchard.workers.graders import check_grading

_TASKS = msgspec.json.Decoder(Task)


class NewerTask(Exception):
    """The task was written by a later version, with fields that this one would ignore."""


def read_task(raw: bytes, task_id: str) -> Task:
    """Reads the task in a blob. Raises INVALID_REQUEST if no version can carry it out, NewerTask if a later
    version can."""
    known, asked = known_part(raw, Task)
    if asked:
        raise NewerTask(
            f"task {task_id} has {', '.join(asked[:5])}, which only a later version knows: update the workers"
        )
    try:
        task = decode(_TASKS, known)
        parse_bytes(task.memory)
        parse_cores(task.cpu)
        check_grading(task)
        blocks_network(task)
    except (Unreadable, InvalidQuantity, PluginError) as error:
        raise InfrastructureError(AbortCause.INVALID_REQUEST, f"task {task_id}: {error}") from error
    return task

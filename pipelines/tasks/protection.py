"""Leaves out tasks whose label is below a minimum, counts them, and says what a missing label counts as."""

from collections import Counter
from collections.abc import Iterable

from orchard.pipelines.tasks.registry import StoredTask
from orchard.schemas.protection import UNLABELLED, Protected, is_at_least

BELOW = "below_min_protected"
"""Count of the tasks that are left out."""
WITHOUT_LABEL = "without_label"
"""Count of the tasks without a label, left out or not."""


def protected_tasks(
    tasks: Iterable[StoredTask], minimum: Protected | None, counts: Counter[str]
) -> list[StoredTask]:
    """The tasks whose label is at least `minimum`, all for None. Where there is a minimum, counts those BELOW
    it and those WITHOUT_LABEL."""
    if minimum is None:
        return list(tasks)
    found = []
    for task in tasks:
        counts[WITHOUT_LABEL] += task.protected is None
        if is_at_least(task.protected, minimum):
            found.append(task)
        else:
            counts[BELOW] += 1
    return found


def without_label(number: int) -> str:
    return (
        f"{number} tasks have no label, as they were not validated since there are labels, and count as "
        f"`{UNLABELLED}`: `orchard tasks validate TASK` gives them one"
    )

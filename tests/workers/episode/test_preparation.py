"""Whose fault is a set-up that failed? The task's only where nothing else can be the reason."""

import pytest

from orchard.schemas.outcomes import AbortCause
from orchard.schemas.tasks import Asked, StateCheck, Task
from orchard.workers.episode.machine import CommandOutcome
from orchard.workers.episode.preparation import failed_set_up

SHUT = Task(
    task_id="t", source="x", repo="x", image="i", statement="?", grading=StateCheck(files={}, command="true")
)
OPEN = Task(
    task_id="t",
    source="x",
    repo="x",
    image="i",
    statement="?",
    grading=StateCheck(files={}, command="true"),
    asks=Asked(network=True),
)


@pytest.mark.parametrize(
    ("task", "outcome", "cause", "said"),
    [
        (SHUT, {"returncode": 3}, AbortCause.TASK_BROKEN, "set-up exited with 3: no such thing"),
        (OPEN, {"returncode": 3}, AbortCause.SANDBOX_UNAVAILABLE, "network"),
        (SHUT, {"returncode": -1, "timed_out": True}, AbortCause.SANDBOX_UNAVAILABLE, "ran out of time"),
        (SHUT, {"returncode": 137, "out_of_memory": True}, AbortCause.SANDBOX_OUT_OF_MEMORY, "memory"),
        (OPEN, {"returncode": 137, "out_of_memory": True}, AbortCause.SANDBOX_OUT_OF_MEMORY, "memory"),
    ],
)
def test_it_is_broken_only_where_neither_memory_nor_time_nor_a_network_can_be_the_reason(
    task: Task, outcome: dict[str, int], cause: AbortCause, said: str
) -> None:
    seen = CommandOutcome(output="no such thing", seconds=1.0, **outcome)  # type: ignore[arg-type]
    error = failed_set_up(task, "set-up", seen, AbortCause.TASK_BROKEN)
    assert error.cause is cause and said in error.detail
    assert error.retryable is (cause is not AbortCause.TASK_BROKEN)

"""What repeated gradings prove of a task that is judged as a whole."""

from orchard.pipelines.tasks.proving import Proven, Refuted, judge_whole
from orchard.pipelines.tasks.validate import validation
from orchard.schemas.events import TaskValidated
from orchard.schemas.outcomes import Reward
from orchard.schemas.protection import Protected
from orchard.schemas.tasks import StateCheck, Task

TASK = Task(
    task_id="t",
    source="tests",
    repo="a/b",
    image="i",
    statement="s",
    grading=StateCheck(files={}, command="true"),
    gold_patch="touch it",
)


def _checked(resolved: bool, detail: str = "the check exited with 1") -> Reward:
    return Reward(value=1.0 if resolved else -1.0, resolved=resolved, grader="state-check", detail=detail)


def test_a_check_whose_verdict_changes_is_refused() -> None:
    passes, fails = _checked(True), _checked(False)
    for gold, empty in (([passes, fails], [fails, fails]), ([passes, passes], [fails, passes])):
        verdict = judge_whole(TASK, gold, empty)
        assert isinstance(verdict, Refuted)
        assert verdict.reason == "flaky"
    assert judge_whole(TASK, [passes] * 2, [fails] * 2) == Proven(task=TASK)


def test_a_verdict_carries_the_label_that_its_prover_gives_and_is_inside_without_one() -> None:
    proven = Proven(
        task=TASK, protected=Protected.BIT, protected_tests={"t": Protected.BIT}, protected_why="so"
    )
    event = validation(TASK, proven, 1.0).event
    assert isinstance(event, TaskValidated)
    assert (event.protected, event.protected_tests, event.protected_why) == ("bit", {"t": "bit"}, "so")
    unlabelled = validation(TASK, Proven(task=TASK), 1.0).event
    assert isinstance(unlabelled, TaskValidated) and unlabelled.protected == "inside"

"""What repeated gradings prove of a task that is judged as a whole."""

from orchard.pipelines.tasks.proving import Proven, Refuted, judge_whole
from orchard.schemas.outcomes import Reward
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

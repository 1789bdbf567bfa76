"""What repeated gradings prove: gold resolves, empty does not, unsteady tests go."""

from orchard.pipelines.domains.swe.proof import judge_tests
from orchard.pipelines.tasks.proving import Proven, Refuted
from orchard.schemas.outcomes import Reward
from orchard.schemas.tasks import SWETests, Task, task_hash

GRADING = SWETests(
    test_patch="", test_command="true", fail_to_pass=("fix", "fix2"), pass_to_pass=("keep", "keep2")
)
TASK = Task(
    task_id="t", source="tests", repo="a/b", image="i", statement="s", grading=GRADING, gold_patch="diff"
)


def _reward(**tests: str) -> Reward:
    statuses = {"fix": "PASSED", "fix2": "PASSED", "keep": "PASSED", "keep2": "PASSED", **tests}
    return Reward(value=0.0, resolved=False, grader="swe-tests", tests=statuses)


def _prove(gold: list[Reward], empty: list[Reward]) -> Proven | Refuted:
    return judge_tests(TASK, gold, empty)


FAILS = _reward(fix="FAILED", fix2="FAILED")


def test_a_sound_task_is_proven_as_it_is() -> None:
    verdict = _prove([_reward()] * 3, [FAILS] * 3)
    assert isinstance(verdict, Proven)
    assert verdict.task is TASK
    assert verdict.dropped == {}


def test_gold_that_never_resolves_rejects_the_task_and_names_the_test() -> None:
    verdict = _prove([_reward(keep="FAILED")] * 3, [FAILS] * 3)
    assert isinstance(verdict, Refuted)
    assert verdict.reason == "gold_does_not_resolve"
    assert "keep is FAILED" in verdict.detail


def test_a_task_that_is_solved_already_is_rejected() -> None:
    verdict = _prove([_reward()] * 3, [_reward()] * 3)
    assert isinstance(verdict, Refuted)
    assert verdict.reason == "empty_resolves"


def test_an_unsteady_test_is_dropped_and_makes_another_task() -> None:
    verdict = _prove([_reward(), _reward(keep="FAILED"), _reward()], [FAILS] * 3)
    assert isinstance(verdict, Proven)
    assert isinstance(verdict.task.grading, SWETests)
    assert verdict.task.grading.pass_to_pass == ("keep2",)
    assert list(verdict.dropped) == ["keep"]
    assert task_hash(verdict.task) != task_hash(TASK)


def test_a_test_that_is_unsteady_without_a_patch_is_dropped_too() -> None:
    verdict = _prove([_reward()] * 2, [FAILS, _reward(fix="FAILED")])
    assert isinstance(verdict, Proven)
    assert isinstance(verdict.task.grading, SWETests)
    assert verdict.task.grading.fail_to_pass == ("fix",)


def test_too_few_steady_tests_reject_the_task() -> None:
    verdict = _prove([_reward(), _reward(fix="FAILED", keep="ERROR", keep2="MISSING")], [FAILS] * 2)
    assert isinstance(verdict, Refuted)
    assert verdict.reason == "flaky"


def test_a_skipped_test_is_kept_in_one_list_and_fails_in_the_other() -> None:
    kept = _prove([_reward(keep="SKIPPED")] * 2, [FAILS] * 2)
    failed = _prove([_reward(fix="SKIPPED")] * 2, [FAILS] * 2)
    assert isinstance(kept, Proven)
    assert isinstance(failed, Refuted)

"""The step budget rises once, when the log says that the score does not."""

from itertools import count

import pytest

from orchard.pipelines.rl.plan import StepCurriculum, stopped_rising
from orchard.pipelines.rl.progress import RunProgress
from orchard.pipelines.rl.runs import RunError
from orchard.schemas.campaigns import Budget
from orchard.schemas.events import make_event, payload
from orchard.schemas.groups import PolicyUpdated
from tests.pipelines.rl.written_log import plan_of, run_settings, whole_group

CURRICULUM = StepCurriculum(steps=30, window=2, rise=0.1)
PLAN = plan_of(run_settings(budget=Budget(steps=15), curriculum=CURRICULUM, prompts_per_step=1, steps=9))


@pytest.mark.parametrize(
    ("scores", "stopped"),
    [
        ([], False),
        ([0.5, 0.5, 0.5], False),
        ([0.1, 0.1, 0.2, 0.3], False),
        ([0.1, 0.1, 0.2, 0.2], True),
        ([0.5, 0.5, 0.1, 0.1], True),
        ([0.9, 0.9, 0.1, 0.1, 0.9, 0.9], False),
    ],
    ids=str,
)
def test_it_is_the_newest_window_against_the_one_before(scores, stopped):
    assert stopped_rising(scores, CURRICULUM) is stopped


def run_with(*scores):
    """A log in which each policy came of one prompt, all of whose rollouts had this pass rate."""
    sequence = count(1)
    progress = RunProgress(PLAN)
    for prompt, score in enumerate(scores):
        rewards = (1.0, 1.0 if score == 1.0 else -1.0) if score else (-1.0, -1.0)
        update = PolicyUpdated(
            run="run", version=prompt + 1, step=prompt + 1, groups=(f"run.{prompt}",), position=1
        )
        told = make_event(update, id=f"u{prompt}", source="test", campaign="run")
        for event in (*whole_group(PLAN, prompt, rewards=rewards), told):
            progress.apply(event, next(sequence))
    return progress


def test_prompts_begun_before_the_raise_keep_their_budget():
    progress = run_with(0.0, 0.5, 0.5, 0.5)
    assert progress.raise_due() is None, "0.25, then 0.5: it rises"
    progress = run_with(0.0, 0.5, 0.5, 0.5, 0.5)
    raised = progress.raise_due()
    assert (raised.steps, raised.prompt, raised.version) == (30, 5, 5)
    assert (raised.before, raised.score) == (0.5, 0.5)
    assert progress.request(5, 0).budget.steps == 15, "not in the log yet"
    event = make_event(raised, id="run.budget.raised", source="test", campaign="run")
    progress.apply(event, 99)
    assert progress.raise_due() is None, "once"
    assert [progress.request(prompt, 1).budget.steps for prompt in (0, 4, 5, 6)] == [15, 15, 30, 30]
    assert progress.request(5, 1).rollout_id == PLAN.request(5, 1).rollout_id
    progress.apply(make_event(payload(event), id="again", source="test", campaign="run"), 100)
    assert progress.raised == raised, "the first in the log holds"


@pytest.mark.parametrize("steps", [0, 30])
def test_a_curriculum_must_raise_something(steps):
    with pytest.raises(RunError, match="a curriculum raises the budget"):
        plan_of(run_settings(budget=Budget(steps=steps), curriculum=CURRICULUM))

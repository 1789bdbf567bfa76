"""The time-outs that a task publishes hold, and nothing of the infrastructure ends before they do."""

import msgspec
import pytest

from orchard.schemas.blobs import BlobRef
from orchard.schemas.campaigns import Budget, CampaignSpec, ModelSpec, TaskRef, Timeouts, spec_hash
from orchard.schemas.tasks import Asked, StateCheck, SWETests, Task, task_hash
from orchard.workers.episode.budgets import as_published, within


def task(asks: Asked | msgspec.UnsetType, check: float = 600.0, solution: str = "") -> Task:
    return Task(
        task_id="t",
        source="s",
        repo="harbor",
        image="host",
        statement="Do it.",
        grading=StateCheck(files={}, command="true", timeout_seconds=check),
        gold_patch=solution,
        asks=asks,
    )


@pytest.mark.parametrize(
    ("asks", "check", "budget", "wall"),
    [
        (Asked(agent_seconds=12_000.0), 12_000.0, Budget(), 12_000.0),
        (Asked(agent_seconds=900.0), 900.0, Budget(), 900.0),
        (Asked(agent_seconds=900.0), 900.0, Budget(wall_seconds=60.0), 900.0),
        (Asked(agent_seconds=12_000.0), 600.0, Budget(wall_seconds=60.0, wall_for_all=True), 60.0),
        (Asked(agent_seconds=900.0), 600.0, Budget(wall_seconds=20_000.0, wall_for_all=True), 20_000.0),
        (Asked(creation_seconds=1800.0), 3600.0, Budget(), 3600.0),
    ],
)
def test_the_agent_has_the_time_of_its_task_and_all_that_follows_has_room(
    asks: Asked, check: float, budget: Budget, wall: float
) -> None:
    given, timeouts = as_published(task(asks, check, "true"), budget, Timeouts())
    assert within(given, timeouts).wall_seconds == wall, "no outer limit cuts it"
    assert timeouts.creation == max(300.0, asks.creation_seconds or 0.0)
    control = timeouts.creation + (asks.agent_seconds or 0.0) + check
    assert timeouts.grading >= max(1800.0, check + control)
    assert timeouts.rollout >= wall + timeouts.grading + 2 * timeouts.creation


def test_tasks_that_publish_nothing_have_the_campaigns_limits() -> None:
    given = Budget(wall_seconds=5.0), Timeouts(rollout=9.0)
    assert as_published(task(msgspec.UNSET), *given) == given
    patch = SWETests(test_patch="", test_command="", fail_to_pass=("t",))
    judged_by_tests = msgspec.structs.replace(task(msgspec.UNSET), grading=patch)
    assert as_published(judged_by_tests, *given) == given


@pytest.mark.parametrize("solution", ["", "true"])
def test_every_check_leaves_time_for_a_control(solution: str) -> None:
    """Else an agent that makes it hang would end in an abort, and not in a failure."""
    before = Timeouts()
    budget, timeouts = as_published(task(msgspec.UNSET, 1800.0, solution), Budget(), before)
    assert budget == Budget()
    assert timeouts.grading >= 2 * 1800.0 + before.creation
    assert timeouts.rollout - timeouts.grading == before.rollout - before.grading


def test_what_was_stored_before_keeps_its_hash() -> None:
    """A plan and a task of an earlier version, as that version hashed them."""
    before = task(msgspec.UNSET)
    assert not {"asks", "rewards"} & set(str(msgspec.to_builtins(before)).split("'"))
    assert task_hash(before) == task_hash(msgspec.json.decode(msgspec.json.encode(before), type=Task))
    ref = TaskRef(task_id="t", source="s", repo="r", blob=BlobRef(sha256="0" * 64, size=1))
    spec = CampaignSpec(name="c", tasks=(ref,), harnesses=("h",), models=(ModelSpec(name="m"),), samples=1)
    other = msgspec.structs.replace(spec, budget=Budget(wall_for_all=True))
    assert spec_hash(spec) == "22425b5f9a447319c034b000ea9c7600" != spec_hash(other)

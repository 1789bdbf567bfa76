"""Rewards of turns: what they may change of an advantage, which tokens they reach, and a trainer that waits
for them."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some

from orchard.pipelines.rl.coordinator import RunError, begin
from orchard.pipelines.rl.learner import Learner, Trained
from orchard.pipelines.rl.scoring import run_rubrics
from orchard.pipelines.rl.sequences import sequences
from orchard.pipelines.rl.settings import settings_from, settings_hash
from orchard.pipelines.rl.trainer import RlTrainer
from orchard.pipelines.rl.turn_rewards import ProcessReward, turn_advantages
from orchard.pipelines.sft.processes import Processes
from orchard.schemas.blobs import BlobRef
from orchard.schemas.events import make_event, payload
from orchard.schemas.groups import PolicyUpdated
from orchard.schemas.llm_calls import ModelKind
from orchard.schemas.requests import read_annotation_request
from orchard.schemas.values import AnnotationFacts, AnnotationFailed, RubricWritten, ValueAnnotated
from orchard.storage.blobs import BlobStore
from orchard.storage.reader import open_tables
from orchard.storage.writing.writer import Writer
from orchard.streams.publisher import Publisher
from orchard.streams.replay import replay
from tests.pipelines.policy.small_models import write_model
from tests.pipelines.rl.written_log import TASKS, conversation, plan_of, run_settings, whole_group

PROCESS = ProcessReward(teacher="teacher", model="judge", weight=0.5, limit=0.25)
HASH = "88f49c4f2a28eba28f60770edc9d210f"
"""Of these settings by the version before."""
ALONE = Processes(rank=0, count=1, device=torch.device("cpu"))


@given(
    some.lists(
        some.tuples(some.floats(-5, 5), some.integers(0, 2), some.lists(some.floats(-1, 1), max_size=5)),
        min_size=1,
    ),
    some.floats(0.01, 1),
    some.floats(0.01, 1),
)
def test_scores_never_exceed_the_outcomes_size(
    rollouts: list[tuple[float, int, list[float]]], weight: float, limit: float
) -> None:
    """Whatever a judge says, no advantage changes its sign or more than doubles; none comes from nothing."""
    process = ProcessReward(teacher="t", model="m", weight=weight, limit=limit)
    outcomes, groups = [one for one, _, _ in rollouts], [str(group) for _, group, _ in rollouts]
    found = turn_advantages(outcomes, groups, [rewards for *_, rewards in rollouts], process)
    for (outcome, _, rewards), turns in zip(rollouts, found, strict=True):
        assert len(turns) == len(rewards)
        for advantage in turns:
            assert abs(advantage - outcome) <= weight * abs(outcome) + 1e-9
            assert advantage * outcome >= 0


def test_the_formula_by_hand() -> None:
    """The mean of the group's four turns is 0.1; 0.35 above it is clipped at 0.25."""
    found = turn_advantages([1.0, -2.0, 3.0], ["a", "a", "b"], [[0.45, 0.1], [0.1, -0.25], []], PROCESS)
    assert found[0] == pytest.approx([1.5, 1.0])
    assert found[1] == pytest.approx([-2.0, -3.0])
    assert found[2] == []


def test_tokens_get_the_advantage_of_their_own_turn(model: Any) -> None:
    settings = run_settings(process=PROCESS)
    learner = Learner(settings, model, ALONE)
    rows = sequences(conversation(1, turns=3))
    batch = [
        Trained("a", "g", 1.0, True, rows, (0.5, -0.5, 0.0)),
        Trained("b", "g", -1.0, False, sequences(conversation(2, turns=3))),
    ]

    def rows_of(batch: list[Trained], found: list[float]) -> Any:
        return learner._rows(batch, found, learner._by_turn(batch, found))

    first, second = rows_of(batch, [2.0, -2.0])
    lengths = [len(record.ids) for record in conversation(1, turns=3)]
    assert first.advantages == pytest.approx(np.repeat([3.0, 1.0, 2.0], lengths))
    assert set(second.advantages) == {-2.0}, "a rollout that was not scored has the outcome's alone"
    later = sequences(conversation(1, turns=2), turns=[4, 1])
    (other,) = rows_of([Trained("a", "g", 1.0, True, later, (0.5, -0.5))], [2.0])
    assert set(other.advantages[: lengths[0]]) == {2.0}, "a step that the judge did not see"
    assert set(other.advantages[lengths[0] :]) == {1.0}
    beside = sequences(conversation(1, turns=2), turns=[-1, 1])
    (other,) = rows_of([Trained("a", "g", 1.0, True, beside, (0.5, -0.5))], [2.0])
    assert set(other.advantages[: lengths[0]]) == {2.0}, "an answer to another agent"


def test_the_mean_of_turns_is_over_the_whole_group_where_a_step_has_several_updates(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two groups of two and four updates: each has one rollout."""
    learner = Learner(run_settings(process=PROCESS, updates=4), model, ALONE)
    turns = [(0.5, -0.5), (0.1, 0.0), (0.25, -0.25), (-0.5, -0.5)]
    groups, rewards = ["a", "a", "b", "b"], [1.0, -1.0, 1.0, -1.0]
    batch = [
        Trained(f"r{at}", group, reward, reward > 0, sequences(conversation(at)), own)
        for at, (group, reward, own) in enumerate(zip(groups, rewards, turns, strict=True))
    ]
    seen: list[Any] = []
    make = learner._rows

    def spy(*told: Any) -> Any:
        seen.extend(make(*told))
        return []  # the model has fewer words than these rows

    monkeypatch.setattr(learner, "_rows", spy)
    learner.step(0, batch)
    outcomes = learner._outcomes(batch)
    expected = turn_advantages(outcomes, groups, turns, PROCESS)
    assert len(seen) == len(batch)
    for row, own in zip(seen, expected, strict=True):
        assert sorted(set(row.advantages.tolist())) == pytest.approx(sorted(set(own)))


def test_a_run_without_process_reward_keeps_its_hash() -> None:
    tree = {"run": "run", "model": "m", "out": "o"}
    plain = settings_from(dict(tree))
    scored = settings_from({**tree, "process": {"teacher": "t", "model": "judge"}})
    assert scored.process == ProcessReward(teacher="t", model="judge")
    assert settings_hash(plain) == HASH
    weighed = settings_from({**tree, "process": {"teacher": "t", "model": "judge", "weight": 0.4}})
    assert settings_hash(weighed) != settings_hash(scored)


def rubric_event(blob: BlobRef) -> Any:
    data = RubricWritten(
        task_id="t",
        task_hash="0" * 64,
        task=TASKS[0].blob,
        teacher="teacher",
        model="m",
        served_model="m",
        model_kind=ModelKind.MODEL,
        endpoint="default",
        prompt_version="rubric-1",
        input_hash="0" * 64,
        rubric=blob,
        criteria=3,
    )
    return make_event(data, id="rubric", source="test", campaign="tasks")


def verdict(rollout: str, *, failed: bool = False) -> Any:
    facts = AnnotationFacts(
        annotator="rubric:judge",
        model="judge",
        served_model="judge",
        model_kind=ModelKind.MODEL,
        endpoint="default",
        prompt_version="rubric-1",
        input_hash="0" * 64,
        steps=2,
    )
    told = msgspec.structs.asdict(facts)
    data = (
        AnnotationFailed(**told, fault="bad_score")
        if failed
        else ValueAnnotated(**told, base=0.0, key_steps=(), curve=(0.5, 0.5), turn_rewards=(0.5, 0.0))
    )
    return make_event(
        data, id=f"verdict-{rollout}", source="test", campaign="run", rollout_id=rollout, attempt=1
    )


@pytest.mark.long
async def test_the_trainer_asks_for_scores_and_waits_for_each_verdict(
    connection: Any, tmp_path: Path
) -> None:
    blobs = BlobStore(str(tmp_path / "store"))
    model = write_model(tmp_path / "model")
    settings = run_settings(str(model), str(tmp_path / "out"), process=PROCESS, steps=1)
    plan = plan_of(settings)
    publisher = Publisher(connection)
    stop = asyncio.Event()
    stop.set()
    await Writer(blobs.url, connection).run(stop)
    with open_tables(blobs.url) as tables, pytest.raises(RunError, match="5 of 5 tasks have no rubric"):
        run_rubrics(tables, plan.tasks, PROCESS)
    rubric = blobs.put(b"{}")
    await publisher.event(rubric_event(rubric))
    await Writer(blobs.url, connection).run(stop)
    start = await begin(connection, blobs, plan)
    trainer = RlTrainer(settings, plan, connection, blobs, ALONE, engines=[])
    asked = asyncio.Event()
    offered: list[Any] = []
    publish = publisher.offer_absent

    async def offer(entries: Any) -> Any:
        placed = await publish(entries)
        offered.extend(read_annotation_request(entry.body) for entry in entries)
        if len(offered) == 4:
            asked.set()
        return placed

    trainer._publisher.offer_absent = offer  # type: ignore[method-assign]
    running = asyncio.create_task(trainer.run(start))
    for prompt in (0, 1):
        await publisher.events(whole_group(plan, prompt))
    async with asyncio.timeout(120):
        await asked.wait()
        assert {request.rubric.sha256 for request in offered} == {rubric.sha256}
        assert all(0 < request.first_sequence < request.last_sequence for request in offered)
        *scored, last = sorted({request.rollout_id for request in offered})
        for rollout in scored:
            await publisher.event(verdict(rollout))
        assert not running.done(), "a member has no verdict yet"
        await publisher.event(verdict(last, failed=True))
        await running
    steps = [stored.event async for stored in replay(connection)]
    updates = [data for event in steps if event and isinstance(data := payload(event), PolicyUpdated)]
    assert [update.version for update in updates] == [1]

"""Policy versions are evaluated in the run: what a score is, who waits, what a killed process repeats."""

import asyncio
import signal
import sys
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
import torch

from orchard.pipelines.campaigns.scores import interval
from orchard.pipelines.rl.coordinator import Coordinator, begin
from orchard.pipelines.rl.evaluating import evaluated
from orchard.pipelines.rl.plan import RunPlan, StepCurriculum, plan_hash
from orchard.pipelines.rl.policies import BEST, Newest, policy_directory, write_best
from orchard.pipelines.rl.progress import RunProgress
from orchard.pipelines.rl.runs import make_plan, planned_by, without_held_out
from orchard.pipelines.rl.settings import TaskPool, settings_from, settings_hash
from orchard.pipelines.rl.trainer import RlTrainer
from orchard.pipelines.sft.processes import Processes
from orchard.pipelines.sft.settings import TrainingError
from orchard.schemas.blobs import BlobRef
from orchard.schemas.campaigns import Budget, EvaluationPlanned, RolloutRequest, TaskRef
from orchard.schemas.events import Event, make_event, payload
from orchard.schemas.groups import PolicyEvaluated, PolicyUpdated
from orchard.storage.blobs import BlobStore
from orchard.streams.connection import Connection
from orchard.streams.publisher import Publisher
from orchard.streams.replay import replay
from orchard.streams.server import EmbeddedServer
from tests.pipelines.policy.small_models import write_model
from tests.pipelines.rl.test_coordinator import (
    UNANSWERED,
    blobs,
    connection,
    fair,
    outcome,
    plan,
    train,
    workers,
)
from tests.pipelines.rl.written_log import TASKS, run_settings, whole_group

__all__ = ["blobs", "connection"]

HELD_OUT = tuple(
    TaskRef(task_id=f"held-{number}", source="suite", repo="c/d", blob=BlobRef(sha256="0" * 64, size=1))
    for number in range(3)
)


KILLED_AT = (
    *("before evaluation.planned", "after evaluation.planned"),
    *("before policy.evaluated", "after policy.evaluated"),
)


def evaluating_plan(**changes: object) -> RunPlan:
    return plan(held_out=HELD_OUT, eval_every=2, eval_samples=2, **changes)


def told(plan: RunPlan, version: int, score: float | None) -> Event:
    made = PolicyEvaluated(
        run=plan.name, version=version, evaluation=plan.eval_campaign(version), tasks=3, graded=6, resolved=1,
        ungraded=0, score=score, low=None, high=None,
    )  # fmt: skip
    return make_event(made, id=f"{plan.name}.evaluated.{version}", source="orchard/test", campaign=plan.name)


async def all_facts(connection: Connection, *kinds: type) -> list[msgspec.Struct]:
    found = [stored.event async for stored in replay(connection) if stored.event]
    return [fact for event in found if isinstance(fact := payload(event), kinds)]


def test_a_score_is_a_mean_over_tasks_of_what_was_graded() -> None:
    run = evaluating_plan()
    rewards = (1.0, -1.0, 1.0, UNANSWERED, None, None)
    requests = run.eval_requests(2)
    outcomes = {
        request.rollout_id: payload(outcome(request, 1, reward))
        for request, reward in zip(requests, rewards, strict=True)
    }
    made = evaluated(run, 2, outcomes)
    low, high = interval([0.5, 1.0])
    assert made == PolicyEvaluated(
        run="run", version=2, evaluation="run-v2", tasks=2, graded=3, resolved=2, ungraded=3,
        score=0.75, low=low, high=high,
    )  # fmt: skip
    strict = msgspec.structs.replace(run, unanswered=True)
    made = evaluated(strict, 2, outcomes)
    assert made is not None and (made.graded, made.score) == (4, 0.5), "where such rollouts train"
    none = {request.rollout_id: payload(outcome(request, 1, None)) for request in requests}
    made = evaluated(run, 2, none)
    assert made is not None and (made.score, made.low, made.ungraded) == (None, None, 6)
    del outcomes[requests[0].rollout_id]
    assert evaluated(run, 2, outcomes) is None


def test_each_so_many_th_version_and_the_last_is_evaluated_and_the_first_best_stays() -> None:
    run = evaluating_plan(steps=5)
    assert [version for version in range(6) if run.evaluates(version)] == [0, 2, 4, 5]
    seldom = msgspec.structs.replace(run, eval_every=10)
    assert [version for version in range(6) if seldom.evaluates(version)] == [0, 5], "more than all steps"
    assert run.is_evaluation("run-v2") and not run.is_evaluation("run-v3")
    assert not run.is_evaluation("run") and not run.is_evaluation("run-vx")
    progress = RunProgress(run)
    assert progress.evaluation_due and progress.best is None
    for version, score in ((0, 0.2), (2, 0.6), (4, 0.6), (5, None)):
        progress.apply(told(run, version, score), 1)
    assert progress.best == 2 and not progress.evaluation_due


def test_all_versions_have_the_steps_of_the_end() -> None:
    raised = evaluating_plan(budget=Budget(steps=15), curriculum=StepCurriculum(steps=30))
    assert {request.budget.steps for request in raised.eval_requests(0)} == {30}
    ids = [request.rollout_id for version in (0, 2) for request in raised.eval_requests(version)]
    assert len(set(ids)) == 12


@pytest.mark.parametrize("killed_at", [(), pytest.param(KILLED_AT, marks=pytest.mark.slow)])
async def test_no_rollout_is_evaluated_twice_wherever_the_coordinator_is_killed(
    nats_server: EmbeddedServer, connection: Connection, blobs: BlobStore, killed_at: tuple[str, ...]
) -> None:
    run = evaluating_plan()
    start = await begin(connection, blobs, run)
    served = list[int]()

    def judge(request: RolloutRequest, number: int) -> float | None:
        if not run.is_evaluation(request.campaign):
            return fair(request, number)
        version = int(request.campaign.removeprefix("run-v"))
        return 1.0 if request.sample or version else -1.0

    async def wait_for(version: int) -> None:
        served.append(version)

    async with asyncio.timeout(200), workers(connection, judge) as runs:
        for place in killed_at:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "tests.pipelines.rl.killed_coordinator"),
                *(nats_server.url, blobs.url, run.name, place),
            )
            assert await process.wait() == -signal.SIGKILL, place
        last = Coordinator(connection, run, wait_for, blobs=blobs)
        await asyncio.gather(train(connection, run, start), last.run(start))
    expected = [request.rollout_id for version in (0, 2, 4) for request in run.eval_requests(version)]
    assert [runs[name] for name in expected] == [1] * 18
    made = await all_facts(connection, PolicyEvaluated)
    assert [(one.version, one.score, one.graded) for one in made] == [(0, 0.5, 6), (2, 1.0, 6), (4, 1.0, 6)]
    assert len(await all_facts(connection, EvaluationPlanned)) == 3
    asked = Counter(fact.rollout_id for fact in await all_facts(connection, RolloutRequest))
    assert max(asked[name] for name in expected) == 1
    assert {2, 4} <= set(served)
    order = [
        (type(fact).__name__, fact.version)
        for fact in await all_facts(connection, PolicyEvaluated, PolicyUpdated)
    ]
    assert order == [
        ("PolicyEvaluated", 0), ("PolicyUpdated", 1), ("PolicyUpdated", 2), ("PolicyEvaluated", 2),
        ("PolicyUpdated", 3), ("PolicyUpdated", 4), ("PolicyEvaluated", 4),
    ]  # fmt: skip


async def test_a_rollout_that_nobody_answered_is_asked_again_and_counts_for_nothing(
    connection: Connection, blobs: BlobStore
) -> None:
    """The server answers one of the second version on its second try, and another never."""
    run = evaluating_plan(steps=2)
    late, never = [request.rollout_id for request in run.eval_requests(2)[:2]]
    start = await begin(connection, blobs, run)

    def judge(request: RolloutRequest, number: int) -> float | None:
        if not run.is_evaluation(request.campaign):
            return fair(request, number)
        waits = request.rollout_id == never or (request.rollout_id == late and number == 1)
        return UNANSWERED if waits else 1.0

    async with asyncio.timeout(100), workers(connection, judge) as runs:
        coordinator = Coordinator(connection, run, blobs=blobs)
        await asyncio.gather(train(connection, run, start), coordinator.run(start))
    assert (runs[late], runs[never]) == (2, run.max_tries)
    scores = [
        (one.version, one.score, one.graded, one.ungraded)
        for one in await all_facts(connection, PolicyEvaluated)
    ]
    assert scores == [(0, 1.0, 6, 0), (2, 1.0, 5, 1)]


async def test_the_trainer_waits_for_scores_and_keeps_the_best_policy(
    connection: Connection, blobs: BlobStore, tmp_path: Path
) -> None:
    directory, out = write_model(tmp_path / "model"), tmp_path / "out"
    settings = run_settings(str(directory), str(out), steps=4, staleness=0, eval_every=1, eval_tasks=())
    run = make_plan(settings, TASKS, held_out=HELD_OUT)
    start = await begin(connection, blobs, run)
    publisher = Publisher(connection)
    alone = Processes(rank=0, count=1, device=torch.device("cpu"))

    async def updates() -> int:
        return len(await all_facts(connection, PolicyUpdated))

    async def reaches(version: int) -> None:
        while await updates() < version:
            await asyncio.sleep(0.05)

    async def session(scores: Iterable[tuple[int, float]]) -> None:
        """A trainer until it has made the version after the last of these; without any, to its end."""
        trainer = asyncio.create_task(
            RlTrainer(settings, run, connection, blobs, alone, engines=()).run(start)
        )
        version = run.steps
        for version, score in scores:
            await reaches(version)
            if version < run.steps:
                for prompt in (2 * version, 2 * version + 1):
                    await publisher.events(whole_group(run, prompt, version=version))
            assert await updates() == version, "it trains only once this version has its score"
            await publisher.event(told(run, version, score))
        if version < run.steps:
            await reaches(version + 1)
            trainer.cancel()
        with suppress(asyncio.CancelledError):
            await trainer

    async with asyncio.timeout(200):
        out.mkdir()
        write_best(out, 7)
        unscored = asyncio.create_task(session([]))
        while (out / BEST).exists():
            await asyncio.sleep(0.05)
        unscored.cancel()
        with suppress(asyncio.CancelledError):
            await unscored
        await session([(0, 0.2), (1, 0.9)])
        await session([(2, 0.4), (3, 0.5), (4, 0.6)])
    best = msgspec.json.decode((out / BEST).read_bytes(), type=Newest)
    assert best.version == 1 and Path(best.path) == policy_directory(out, 1).absolute()
    left = sorted(place.name for place in (out / "policies").iterdir())
    assert left == ["version-000001", "version-000003", "version-000004"]


def test_settings_name_the_held_out_tasks_and_runs_without_keep_their_hashes() -> None:
    least = {"run": "r", "model": "m", "out": "o"}
    with pytest.raises(TrainingError, match="belong together"):
        settings_from(least | {"eval_every": 5})
    with pytest.raises(TrainingError, match="belong together"):
        settings_from(least | {"eval_tasks": [{"source": "s"}]})
    with pytest.raises(TrainingError, match="source"):
        settings_from(least | {"eval_every": 5, "eval_tasks": [{"limit": 3}]})
    made, plain = (
        settings_from(least | {"eval_every": 5, "eval_tasks": [{"source": "s"}]}),
        settings_from(least),
    )
    assert settings_hash(made) == settings_hash(plain), "what only measures makes no other policy"
    run, bare = make_plan(made, TASKS, held_out=HELD_OUT), make_plan(plain, TASKS)
    assert plan_hash(run) != plan_hash(bare)
    assert planned_by(made, run) and not planned_by(plain, run) and not planned_by(made, bare)
    assert without_held_out(TaskPool(), HELD_OUT).held_out.tasks == ("held-0", "held-1", "held-2")

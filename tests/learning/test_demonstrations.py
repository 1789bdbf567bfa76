"""`orchard demo-sft` and `orchard demo-rl`, small: a model learns from an oracle to repair modules that it
has not seen, and then from its own rollouts what the oracle could not teach it."""

import asyncio
from pathlib import Path

import pytest

from orchard.demo_rl import RlDemo, RlDemoResult, RlDemoSettings
from orchard.demo_sft import Demo, DemoResult, DemoSettings
from pipelines.sft.metrics import read_steps
from storage.reader import open_tables

SMALL = DemoSettings(
    tasks=300,
    samples=1,
    further=40,
    kinds=("sum", "difference", "larger", "smaller"),
    functions=24,
    mix={"resolves": 0.8, "wrong_edit": 0.2},
    held_out=24,
    slots=6,
    vocabulary=900,
    shape="tiny-test",
    epochs=14,
    batch=8,
    lr=1e-2,
    threads=1,
    answer_tokens=80,
)
SMALL_RL = RlDemoSettings(
    steps=5,
    prompts=4,
    lr=1e-3,
    pool=40,
    measured=2,
    hardest=1.0,
    samples=2,
)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demonstrations")


@pytest.fixture(scope="module")
def taught(store: Path) -> DemoResult:
    return asyncio.run(Demo(str(store), SMALL).run())


@pytest.mark.timeout(600)
def test_a_model_from_nothing_learns_what_the_oracle_does(store: Path, taught: DemoResult) -> None:
    """Real tasks, sandboxes, graders, dataset, training, server: the pass rate rises on held-out tasks."""
    assert (taught.before.value, taught.before.tasks) == (0.0, 24)
    assert taught.after.value >= 0.25, taught
    assert taught.after.tasks == 24
    losses = [step.loss for step in read_steps(store / "demo-sft" / "run" / "metrics.jsonl")]
    assert losses[-1] < 0.1 < 4.0 < losses[0]
    with open_tables(str(store)) as tables:
        (rows, unresolved) = tables.execute(
            "select any_value(rows), (select count(*) from values) from datasets"
        ).fetchall()[0]
        assert rows == taught.rows
        assert unresolved > 20, "unresolved trajectories have values, and their rising parts train"
        shared = tables.execute(
            "select count(*) from (select task_id from rollouts where campaign = 'demo-after' "
            "intersect select task_id from rollouts where campaign = 'demo-oracle')"
        ).fetchall()
        assert shared == [(0,)]


@pytest.fixture(scope="module")
def trained(store: Path, taught: DemoResult) -> RlDemoResult:
    assert taught.rows
    return asyncio.run(RlDemo(str(store), SMALL_RL).run())


@pytest.mark.timeout(600)
def test_a_policy_learns_from_rewards_what_imitation_did_not_teach(
    store: Path, trained: RlDemoResult
) -> None:
    """To read a module before changing it. Groups by BAR, weights reloaded while rollouts run, real tests."""
    assert trained.reads_after > trained.reads_before + 0.2, trained
    after = trained.after.value + trained.greedy_after.value
    assert after > trained.before.value + trained.greedy_before.value, trained
    assert trained.informative >= 20
    assert trained.aborted_members == 0
    with open_tables(str(store)) as tables:
        steps = tables.execute(
            "select step, version from policy_steps where run = ? order by step", [trained.run]
        ).fetchall()
    assert [version for _, version in steps] == [1, 2, 3, 4, 5]
    assert (store / "demo-rl" / "seeds.png").stat().st_size > 10_000

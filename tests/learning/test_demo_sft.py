"""`orchard demo-sft`, small: a model learns from an oracle to repair modules that neither has seen."""

import asyncio
from pathlib import Path

import pytest

from orchard.demo_sft import Demo, DemoResult, DemoSettings
from pipelines.sft.metrics import read_steps
from storage.reader import open_tables

SMALL = DemoSettings(
    tasks=300,
    samples=1,
    further=1,
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


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demonstrations")


@pytest.fixture(scope="module")
def taught(store: Path) -> DemoResult:
    return asyncio.run(Demo(str(store), SMALL).run())


@pytest.mark.timeout(1200)
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

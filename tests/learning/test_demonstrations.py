"""`orchard demo-sft`, small: a model learns from an oracle to repair modules that neither has seen."""

from pathlib import Path

import pytest

from orchard.demo_sft import Demo, DemoSettings
from pipelines.sft.metrics import read_steps
from storage.reader import open_tables

SMALL = DemoSettings(
    tasks=320,
    samples=1,
    further=1,
    kinds=("sum", "difference", "larger", "smaller"),
    held_out=24,
    slots=6,
    vocabulary=900,
    shape="tiny-test",
    epochs=14,
    batch=8,
    lr=1e-2,
)


@pytest.mark.timeout(600)
async def test_a_model_from_nothing_learns_what_the_oracle_does(tmp_path: Path) -> None:
    """Real tasks, sandboxes, graders, dataset, training, server: the pass rate rises on held-out tasks."""
    demo = Demo(str(tmp_path), SMALL)
    result = await demo.run()
    assert (result.before.value, result.before.tasks) == (0.0, 24)
    assert result.after.value >= 0.25, result
    assert result.after.tasks == 24
    losses = [step.loss for step in read_steps(demo.directory / "run" / "metrics.jsonl")]
    assert losses[-1] < 0.1 < 4.0 < losses[0]
    with open_tables(str(tmp_path)) as tables:
        (rows, unresolved) = tables.execute(
            "select any_value(rows), (select count(*) from values) from datasets"
        ).fetchall()[0]
        assert rows == result.rows
        assert unresolved > 50, "unresolved trajectories have values, and their rising parts train"
        shared = tables.execute(
            "select count(*) from (select task_id from rollouts where campaign = 'demo-after' "
            "intersect select task_id from rollouts where campaign = 'demo-oracle')"
        ).fetchall()
        assert shared == [(0,)]

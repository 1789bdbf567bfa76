"""`make demo-claw`, small: worlds are made and proven, a policy learns from the solver's log, then from
rewards of test scripts, and both are measured in two harnesses.

Too little training to do errands in worlds that it has not seen: see docs/benchmarks/assistants.md.
"""

import asyncio
from pathlib import Path

import pytest

from examples.domains.claw import HARNESSES, RL, SFT
from examples.run import example, run
from orchard.pipelines.sft.metrics import read_steps
from orchard.storage.reader import open_tables

pytestmark = pytest.mark.timeout(1800)

SMALL = {
    "worlds": 8,
    "tasks": 20,
    "samples": 2,
    "guesses": 0.5,
    "held_out_worlds": 4,
    "held_out": 6,
    "vocabulary": 900,
    "drills": 400,
    "drill_epochs": 2,
    "epochs": 20,
    "steps": 2,
    "prompts": 2,
    "size": 4,
    "threads": 1,
}


def test_a_policy_learns_errands_from_proven_worlds_and_the_rewards_of_their_scripts(tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    demo, values = example("claw", store, **SMALL)
    result = asyncio.run(run(demo, values))
    figures = result["figures"]

    assert figures["tasks"] >= SMALL["tasks"] + SMALL["held_out"] and figures["worlds"] == 12
    assert figures["mistakes"] > 0 and figures["missed"] == 0, "each seeded mistake was caught"
    drilled, taught = (
        [step.loss for step in read_steps(demo.directory / policy / "metrics.jsonl")]
        for policy in ("copies", SFT)
    )
    assert drilled[0] > 4.0 > drilled[-1] and taught[-1] < 0.5, (drilled, taught)
    cells = {(cell.harness, cell.model): cell for cell in result["results"].cells}
    assert set(cells) == {(harness, policy) for harness in HARNESSES for policy in (SFT, RL)}
    assert {(cell.requested, cell.graded) for cell in cells.values()} == {
        (SMALL["held_out"], SMALL["held_out"])
    }
    assert set(figures["looks"]) == {SFT, RL}
    assert (demo.directory / "report" / "matrix.png").stat().st_size > 10_000
    with open_tables(store) as tables:
        played = tables.execute(
            "select harness, count(*) filter (resolved) > 0, bool_and(model_kind = 'oracle') from rollouts "
            "where campaign = ? group by 1 order by 1",
            ["demo-claw-worlds-0"],
        ).fetchall()
        steps = tables.execute("select version from policy_steps order by step").fetchall()
        unlooked = tables.execute(
            "select count(*) from groups g join tasks t on t.task_id = g.task_id where t.state <> 'valid'"
        ).fetchall()
    assert played == [(harness, True, True) for harness in sorted(HARNESSES)]
    assert steps == [(1,), (2,)]
    assert unlooked == [(0,)], "only proven tasks are prompts"

    again = asyncio.run(run(*example("claw", store, **SMALL)))
    assert all(again[name] == result[name] for name in ("rows", "results")), "all of it was done"

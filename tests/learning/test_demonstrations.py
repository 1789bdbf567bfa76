"""`make demo-sft` and `make demo-rl`, small: a model learns from an oracle to repair modules new to it,
then from its own rollouts.

That it then repairs more takes more groups than a test has time for: see
docs/benchmarks/reinforcement-learning.md.
"""

import asyncio
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch

from examples.domains.swe import ORACLE
from examples.run import example, run
from orchard.configuration.config import ConfigError
from orchard.pipelines.domains.swe.repairs import Split, repair_tasks
from orchard.pipelines.models.directories import load_model
from orchard.pipelines.sft.metrics import read_steps
from orchard.storage.reader import open_tables

pytestmark = pytest.mark.timeout(1200)

SMALL: dict[str, Any] = {
    "tasks": 300,
    "samples": 1,
    "further": 40,
    "kinds": ["sum", "difference", "larger", "smaller"],
    "functions": 24,
    "mix": {"resolves": 0.8, "wrong_edit": 0.2},
    "held_out": 40,
    "slots": 6,
    "vocabulary": 900,
    "shape": "tiny-test",
    "epochs": 20,
    "batch": 8,
    "lr": 1e-2,
    "threads": 1,
    "answer_tokens": 80,
}
SMALL_RL: dict[str, Any] = {
    "steps": 3,
    "prompts": 4,
    "lr": 1e-3,
    "negative": 1.0,
    "pool": 40,
    "measured": 2,
    "samples": 1,
}
FIRST_GROUPS = """
select g.group_id, g.member.reward > 0, m.prompt_ids, m.token_ids
from (select group_id, unnest(members) as member from groups where run = ? and trained_step = 1) g
join messages m on m.rollout_id = g.member.rollout_id and m.attempt = g.member.attempt
where m.role = 'assistant'
"""
LAST_CHECKS = """
select r.task_id, arg_max(seen.content, seen.turn)
from rollouts r join messages said using (rollout_id) join messages seen using (rollout_id, turn)
where r.campaign = ? and r.resolved and said.content = 'Check.' and seen.role = 'tool' group by all
"""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demonstrations")


@pytest.fixture(scope="module")
def taught(store: Path) -> dict[str, Any]:
    return asyncio.run(run(*example("sft", str(store), **SMALL)))


@pytest.fixture(scope="module")
def trained(store: Path, taught: dict[str, Any]) -> dict[str, Any]:
    assert taught["rows"]
    return asyncio.run(run(*example("rl", str(store), **SMALL_RL)))


def preference(store: Path, run: str, model: Path) -> float:
    """How much likelier a model finds what the successes of the first groups say than what their failures
    say: nats a token, mean over groups."""
    policy = load_model(str(model)).eval()
    groups: dict[str, dict[bool, list[torch.Tensor]]] = {}
    with open_tables(str(store)) as tables:
        messages = tables.execute(FIRST_GROUPS, [run]).fetchall()
    for group, succeeded, prompt, said in messages:
        with torch.inference_mode():
            logits = policy(torch.tensor([prompt + said])).logits[0, len(prompt) - 1 : -1]
        chosen = logits.log_softmax(-1).gather(1, torch.tensor(said)[:, None])
        groups.setdefault(group, {True: [], False: []})[succeeded].append(chosen)
    assert len(groups) == SMALL_RL["prompts"]
    return fmean(
        (torch.cat(said[True]).mean() - torch.cat(said[False]).mean()).item() for said in groups.values()
    )


def test_a_model_from_nothing_learns_what_the_oracle_does(store: Path, taught: dict[str, Any]) -> None:
    """Real tasks, sandboxes, graders, dataset, training, server: the pass rate rises on held-out tasks."""
    assert (taught["before"].value, taught["before"].tasks) == (0.0, 40)
    assert taught["after"].value >= 0.2, taught
    assert taught["after"].tasks == 40
    losses = [step.loss for step in read_steps(store / "demo-sft" / "run" / "metrics.jsonl")]
    assert losses[-1] < 0.1 < 4.0 < losses[0]
    with open_tables(str(store)) as tables:
        (rows, unresolved) = tables.execute(
            "select any_value(rows), (select count(*) from values) from datasets"
        ).fetchall()[0]
        assert rows == taught["rows"]
        assert unresolved > 20, "unresolved trajectories have values, and their rising parts train"
        shared = tables.execute(
            "select count(*) from (select task_id from rollouts where campaign = 'demo-after' "
            "intersect select task_id from rollouts where campaign = 'demo-oracle')"
        ).fetchall()
        assert shared == [(0,)]


def test_what_the_oracle_sees_after_its_last_change_is_what_that_does(
    store: Path, taught: dict[str, Any]
) -> None:
    """Also where it mends a wrong change within a second: no bytecode of the wrong one may run."""
    tasks = {
        task.task_id: task
        for task in repair_tasks(SMALL["tasks"], 0, Split.TRAIN, SMALL["kinds"], SMALL["functions"])
    }
    with open_tables(str(store)) as tables:
        checks = tables.execute(LAST_CHECKS, [ORACLE]).fetchall()
    assert len(checks) > 200, taught
    for task_id, seen in checks:
        assert f"not {seen.strip()}. It should" in tasks[task_id].statement, task_id


def test_a_policy_comes_to_prefer_what_was_rewarded(store: Path, trained: dict[str, Any]) -> None:
    """Groups by BAR, weights reloaded while rollouts run, real tests, held-out tasks before and after."""
    name = trained["run"]
    policies = store / "demo-rl" / name / "policies"
    before = preference(store, name, store / "demo-sft" / "run" / "model")
    after = preference(store, name, max(policies.glob("version-*")))
    assert after > before + 0.1, (before, after, trained)
    assert trained["after"].value > trained["before"].value / 2 > 0.0, "it has not unlearned to repair"
    assert trained["figures"]["aborted_members"] == 0
    with open_tables(str(store)) as tables:
        steps = tables.execute(
            "select version from policy_steps where run = ? order by step", [name]
        ).fetchall()
    assert steps == [(number,) for number in range(1, SMALL_RL["steps"] + 1)]
    assert (store / "demo-rl" / "seeds.png").stat().st_size > 10_000


def test_other_settings_need_another_store(store: Path, trained: dict[str, Any]) -> None:
    assert trained["after"].tasks == SMALL["held_out"]
    other = SMALL_RL | {"samples": SMALL_RL["samples"] + 1}
    with pytest.raises(ConfigError, match="repeat them, or choose another --store"):
        asyncio.run(run(*example("rl", str(store), **other)))

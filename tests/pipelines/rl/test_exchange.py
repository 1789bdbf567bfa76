"""Groups for other trainers carry the sampled ids, and nothing is made up.

prime-rl is not on PyPI: its fields are those that github.com/PrimeIntellect-ai/prime-rl documents (2026).
verl's own types are tried by tests/pipelines/rl/with_verl.py, which needs ray; its fields are tested here.
"""

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from orchard.pipelines.rl.bar import BarSettings
from orchard.pipelines.rl.baselines import Overlong
from orchard.pipelines.rl.coordinator import RunError
from orchard.pipelines.rl.exchange import LAYOUTS, Terms, verl_batch
from orchard.pipelines.rl.loss_settings import Baseline
from orchard.pipelines.rl.sequences import sequences
from orchard.pipelines.rl.stepping import without
from orchard.schemas.events import payload
from orchard.schemas.protection import Protected
from tests.pipelines.rl.written_log import assembled, conversation, plan_of, run_settings

PLAN = plan_of(run_settings())
GROUP = payload(assembled(PLAN, 0, [0, 1], [1.0, -1.0]))
WHOLE = [sequences(conversation(seed)) for seed in (1, 2)]
REWRITTEN = [sequences([*conversation(3), *conversation(4)]), WHOLE[1]]
ADVANTAGE = 2**-0.5
TERMS = Terms(PLAN.slots, Baseline.NORMALIZED)


class TrainingSample(msgspec.Struct, array_like=True, omit_defaults=True):
    """What prime-rl's orchestrator sends to its trainer."""

    token_ids: list[int]
    mask: list[bool]
    logprobs: list[float]
    temperatures: list[float]
    env_name: str
    rl_weights: list[float] | None = None
    ce_weights: list[float] | None = None
    advantages: list[float] | None = None
    reward: float | None = None


def sampled(records, ids, mask):
    return [token for r in records for token, trains in zip(r[ids], r[mask], strict=True) if trains]


def all_sampled(members):
    return [t for rows in members for row in rows for t, m in zip(row.ids, row.mask, strict=True) if m]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_group_with_pictures_is_refused_and_not_sent_without_them(layout: str) -> None:
    seen = [[replace(row, images=["0" * 64]) for row in rows] for rows in WHOLE]
    with pytest.raises(RunError, match=r"has pictures.*verl-sft"):
        list(LAYOUTS[layout](GROUP, seen, TERMS))


def test_slime_samples_are_prompt_and_response():
    records = list(LAYOUTS["slime"](GROUP, WHOLE, TERMS))
    assert len(records) == 2, "exactly N samples in a group"
    for record, (row,) in zip(records, WHOLE, strict=True):
        length = record["response_length"]
        assert record["tokens"] == row.ids
        assert len(record["loss_mask"]) == len(record["rollout_log_probs"]) == length
        assert record["loss_mask"] == row.mask[-length:]
        assert sum(row.mask[:-length]) == 0
        assert record["weight_versions"] == ["0"]
    assert [record["metadata"]["advantage"] for record in records] == pytest.approx(
        [ADVANTAGE, -ADVANTAGE], rel=1e-5
    )
    assert [record["reward"] for record in records] == [1.0, -1.0]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_label_of_a_reward_is_in_the_record_of_its_rollout_alone(layout: str) -> None:
    group = payload(assembled(PLAN, 0, [0, 1], [1.0, -1.0], Protected.ECHO))
    records = [record.get("metadata", record) for record in LAYOUTS[layout](group, WHOLE, TERMS)]
    assert [record.get("protected") for record in records] == ["echo", None]


def test_slime_gets_the_sequences_of_a_rewritten_history_as_siblings():
    records = list(LAYOUTS["slime"](GROUP, REWRITTEN, TERMS))
    assert len(records) == 3
    numbers = [place for place, rows in enumerate(REWRITTEN) for _ in rows]
    assert [record["rollout_id"] - records[0]["rollout_id"] for record in records] == numbers
    assert [record["tokens"] for record in records] == [row.ids for rows in REWRITTEN for row in rows]


def test_slime_is_given_no_rollout_id_twice_though_a_group_lost_a_member():
    plan = plan_of(run_settings(bar=BarSettings(size=4, budget=4, interval=None)))
    rows = [sequences(conversation(seed)) for seed in range(4)]
    groups = [payload(assembled(plan, prompt, range(4), [1.0, -1.0, 1.0, -1.0])) for prompt in range(4)]
    short = [
        (group, rows) if group.prompt % 2 else without(group, rows, {group.members[1].rollout_id})
        for group in groups
    ]
    records = [record for one in short for record in LAYOUTS["slime"](*one, TERMS._replace(slots=plan.slots))]
    ids: dict[int, set[str]] = {}
    for record in records:
        ids.setdefault(record["rollout_id"], set()).add(record["metadata"]["rollout_id"])
    assert len(records) == len(ids) == 14
    assert all(len(rollouts) == 1 for rollouts in ids.values())


@pytest.mark.parametrize(
    ("baseline", "expected"), [("mean", [0.5, -1.5, 0.5, 0.5]), ("leave_one_out", [2 / 3, -2, 2 / 3, 2 / 3])]
)
def test_advantages_are_those_of_the_runs_own_baseline(baseline, expected):
    plan = plan_of(run_settings(bar=BarSettings(size=4, budget=4, interval=None)))
    group = payload(assembled(plan, 0, range(4), [1.0, -1.0, 1.0, 1.0]))
    rows = [sequences(conversation(seed)) for seed in range(4)]
    for layout, advantage in (
        ("slime", lambda record: record["metadata"]["advantage"]),
        ("verl", lambda record: record["advantage"]),
        ("prime-rl", lambda record: record["advantages"][-1]),
    ):
        records = LAYOUTS[layout](group, rows, Terms(plan.slots, Baseline(baseline)))
        assert [advantage(record) for record in records] == pytest.approx(expected), layout


def test_rewards_and_advantages_have_the_penalty_for_long_answers_taken_off():
    said = [sum(sum(row.mask[1:]) for row in rows) for rows in REWRITTEN]
    terms = TERMS._replace(overlong=Overlong(limit=max(said), buffer=max(said)))
    expected = [m.reward - n / max(said) for m, n in zip(GROUP.members, said, strict=True)]
    for layout in ("slime", "prime-rl", "verl"):
        assert {record["reward"] for record in LAYOUTS[layout](GROUP, REWRITTEN, terms)} == set(expected)


def test_prime_rl_arrays_have_the_full_length():
    records = list(LAYOUTS["prime-rl"](GROUP, REWRITTEN, TERMS._replace(temperature=0.7)))
    assert len(records) == 3
    assert sampled(records, "token_ids", "mask") == all_sampled(REWRITTEN)
    for record in records:
        arrays = ("mask", "logprobs", "temperatures", "advantages", "rl_weights", "ce_weights")
        assert {len(record[name]) for name in arrays} == {len(record["token_ids"])}
        assert set(record["temperatures"]) == {0.7}
        sample = TrainingSample(**{name: record[name] for name in TrainingSample.__struct_fields__})
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(sample), type=TrainingSample) == sample
        assert all((a != 0) == trains for a, trains in zip(record["advantages"], record["mask"], strict=True))


def test_verl_rows_carry_the_group_as_uid():
    records = list(LAYOUTS["verl"](GROUP, REWRITTEN, TERMS))
    assert {record["uid"] for record in records} == {"run.0"}
    assert sampled(records, "responses", "response_mask") == all_sampled(REWRITTEN)
    assert [record["prompts"] + record["responses"] for record in records] == [
        row.ids for rows in REWRITTEN for row in rows
    ]
    assert {(record["min_global_steps"], record["max_global_steps"]) for record in records} == {(0, 0)}


def test_a_batch_for_verl_has_prompts_at_the_left_and_responses_at_the_right():
    rows = list(LAYOUTS["verl"](GROUP, REWRITTEN, TERMS))
    batch = verl_batch(rows, pad=7)
    width = batch["prompts"].shape[1]
    assert batch["input_ids"].shape == batch["attention_mask"].shape == batch["position_ids"].shape
    for place, row in enumerate(rows):
        seen = batch["attention_mask"][place] == 1
        assert batch["input_ids"][place][seen].tolist() == row["prompts"] + row["responses"]
        assert batch["position_ids"][place][seen].tolist() == list(range(seen.sum()))
        assert seen[:width].sum() == len(row["prompts"])
        assert set(batch["input_ids"][place][~seen]) <= {7}
        trains = batch["response_mask"][place] == 1
        expected = [v for v, m in zip(row["rollout_log_probs"], row["response_mask"], strict=True) if m]
        assert batch["rollout_log_probs"][place][trains] == pytest.approx(expected)
        assert np.flatnonzero(batch["rm_scores"][place]).tolist() == [len(row["responses"]) - 1]
        assert batch["rm_scores"][place].sum() == row["reward"]
    assert batch["uid"].tolist() == ["run.0"] * 3

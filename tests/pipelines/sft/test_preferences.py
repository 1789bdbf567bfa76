"""DPO: the loss against trl's on the same numbers, and its gradient in a model against the plain formula."""

import copy
from collections import defaultdict
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
import torch
from trl import DPOTrainer

from orchard.pipelines.datasets.manifest import read_manifest, write_manifest
from orchard.pipelines.datasets.rows import TokenRow, read_tokens
from orchard.pipelines.models.directories import load_model, save_model
from orchard.pipelines.models.tiny import new_model
from orchard.pipelines.sft.adapters import add_adapter
from orchard.pipelines.sft.preferences import dpo_loss, preference_pairs
from orchard.pipelines.sft.processes import Processes
from orchard.pipelines.sft.settings import Lora, TrainingError, settings_from, settings_hash
from orchard.pipelines.sft.trainer import SftTrainer, train
from tests.pipelines.sft.small_runs import (
    SHAPE,
    VOCABULARY,
    token_rows,
    write_dataset,
    write_tokenizer,
)

ALONE = Processes(rank=0, count=1, device=torch.device("cpu"))
LEAST = {"dataset": "d", "out": "o", "model": "m", "context": 100}


def rows_of_tasks() -> list[TokenRow]:
    """Of task a two successes and three failures, of b one each, of c successes alone."""
    tasks = ["a", "a", "a", "a", "a", "b", "b", "c", "c"]
    good = [True, False, True, False, False, False, True, True, True]
    return [
        msgspec.structs.replace(row, task_id=task, resolved=resolved)
        for row, task, resolved in zip(token_rows(9), tasks, good, strict=True)
    ]


def test_pairs_are_of_one_task_and_every_row_is_in_one_at_most() -> None:
    pairs = preference_pairs(rows_of_tasks())
    names = [(good.rollout_id, bad.rollout_id) for good, bad in pairs]
    assert names == [("r0", "r1"), ("r2", "r3"), ("r6", "r5")]
    with pytest.raises(TrainingError, match="no resolved and unresolved example of one task"):
        preference_pairs([row for row in rows_of_tasks() if row.resolved])


def test_a_rollout_of_several_rows_is_in_one_pair() -> None:
    """Of a program that wrote its history anew, or gave work to other agents: the rows after the first."""
    rows = []
    for row in rows_of_tasks():
        others = [msgspec.structs.replace(row, example_id=f"{row.rollout_id}.1.{at}") for at in (1, 2)]
        rows += [row, *(others if row.resolved else [])]
    expected = preference_pairs(rows_of_tasks())
    found = preference_pairs(rows)
    assert [[row.example_id for row in pair] for pair in found] == [
        [row.example_id for row in pair] for pair in expected
    ]


def by_trl(policy: torch.Tensor, reference: torch.Tensor, beta: float) -> torch.Tensor:
    """The loss of trl's DPOTrainer of answers with one token each; [pairs, 2] as in `dpo_loss`."""
    flat = policy.T.reshape(-1, 1)
    nothing = torch.zeros_like(flat)
    said = SimpleNamespace(
        log_probs=flat,
        entropy=nothing,
        mean_logits=nothing,
        is_top1=torch.zeros(flat.shape, dtype=torch.bool),
    )
    mask = torch.ones(len(flat), 2, dtype=torch.int64)
    mask[:, 0] = 0
    trainer = SimpleNamespace(
        model=SimpleNamespace(training=True),
        accelerator=SimpleNamespace(device="cpu", gather=lambda x: x, gather_for_metrics=lambda x: x),
        aux_loss_enabled=False,
        ld_alpha=None,
        precompute_ref_logps=True,
        f_divergence_type="reverse_kl",
        loss_types=["sigmoid"],
        loss_weights=[1.0],
        label_smoothing=0.0,
        use_weighting=False,
        beta=beta,
        _metrics=defaultdict(lambda: defaultdict(list)),
        _total_train_tokens=0,
        _tp_size=1,
    )
    inputs = {
        "input_ids": torch.zeros(len(flat), 2, dtype=torch.int64),
        "attention_mask": torch.ones_like(mask),
        "completion_mask": mask,
        "ref_chosen_logps": reference[:, 0],
        "ref_rejected_logps": reference[:, 1],
    }
    loss: torch.Tensor = DPOTrainer._compute_loss(trainer, lambda **_: said, inputs, False)
    return loss


@pytest.mark.parametrize("beta", [0.1, 1.5])
def test_the_loss_is_that_of_trl(beta: float) -> None:
    random = torch.Generator().manual_seed(0)
    policy, reference = (-20 * torch.rand(6, 2, generator=random) for _ in range(2))
    ours, theirs = policy.clone().requires_grad_(), policy.clone().requires_grad_()
    loss, expected = dpo_loss(ours, reference, beta) / 6, by_trl(theirs, reference, beta)
    loss.backward()
    expected.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    torch.testing.assert_close(ours.grad, theirs.grad)


def plain_answer(model: torch.nn.Module, row: TokenRow) -> torch.Tensor:
    ids = torch.from_numpy(row.input_ids.astype(np.int64))
    logprobs = torch.log_softmax(model(input_ids=ids[None]).logits[0].float(), dim=-1)
    chosen = logprobs[:-1].gather(1, ids[1:, None])[:, 0]
    return chosen[torch.from_numpy(row.loss_mask[1:]) == 1].sum()


@pytest.mark.parametrize("lora", [False, True], ids=["weights", "adapter"])
@pytest.mark.parametrize("context", [60, 4096], ids=["a pair a pack", "one pack"])
def test_a_batch_has_the_plain_gradient_and_the_first_loss_is_log_2(lora: bool, context: int) -> None:
    model, start = (new_model(SHAPE, vocabulary=VOCABULARY, seed=3) for _ in range(2))
    if lora:
        add_adapter(model, Lora(rank=2), base="m", seed=0)
    settings = settings_from(LEAST | {"context": context, "dpo": {"beta": 0.5}, "global_batch": 3})
    before = None if lora else copy.deepcopy(start)
    trainer = SftTrainer(settings, rows_of_tasks(), model, ALONE, reference=before)
    pairs = trainer.examples
    assert trainer.backward(pairs, 3) / 3 == pytest.approx(float(np.log(2)), abs=1e-6)
    model.zero_grad()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(
                    0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
                )
    found = trainer.backward(pairs, 3) / 3
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    model.set_attn_implementation("sdpa")
    total = torch.zeros(())
    for good, bad in pairs:
        policy = plain_answer(model, good) - plain_answer(model, bad)
        with torch.no_grad():
            reference = plain_answer(start, good) - plain_answer(start, bad)
        total = total - torch.log(torch.sigmoid(0.5 * (policy - reference))) / 3
    total.backward()
    assert found == pytest.approx(total.item(), abs=1e-5)
    assert gradients
    for name, gradient in gradients.items():
        expected = model.get_parameter(name).grad
        torch.testing.assert_close(gradient, expected, atol=1e-5, rtol=1e-4, msg=name)


def test_a_pair_that_ties_moves_nothing() -> None:
    """The same answer as a success and as a failure, which a flaky grader makes: beside it others learn."""
    good, bad, *_ = preference_pairs(rows_of_tasks())[0]
    tie = (good, msgspec.structs.replace(good, rollout_id="again", resolved=False))
    model, start = (new_model(SHAPE, vocabulary=VOCABULARY, seed=3) for _ in range(2))
    settings = settings_from(LEAST | {"dpo": {}, "global_batch": 2})
    trainer = SftTrainer(settings, [good, bad], model, ALONE, reference=start)
    assert trainer.backward([tie], 1) == pytest.approx(float(np.log(2)), abs=1e-6)
    assert all(p.grad is None or p.grad.abs().max() < 1e-6 for p in model.parameters())
    model.zero_grad()
    trainer.backward([tie, (good, bad)], 2)
    both = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    trainer.backward([(good, bad)], 2)
    for name, gradient in both.items():
        torch.testing.assert_close(gradient, model.get_parameter(name).grad, atol=1e-6, rtol=1e-4)


@pytest.mark.long
def test_a_run_makes_successes_likelier_than_failures_and_resumes(tmp_path) -> None:
    rows = rows_of_tasks()
    dataset = write_dataset(tmp_path / "dataset", rows)
    manifest = msgspec.structs.replace(read_manifest(dataset), config='{"selection": {"preferences": 2}}')
    write_manifest(dataset, manifest)
    tokenizer = write_tokenizer(tmp_path / "tokenizer")
    save_model(new_model(SHAPE, vocabulary=VOCABULARY, seed=3), tmp_path / "start")
    given = {
        "dataset": str(dataset), "out": str(tmp_path / "out"), "model": str(tmp_path / "start"),
        "tokenizer": str(tokenizer), "context": 96, "threads": 1, "global_batch": 3, "lr": 3e-3,
    }  # fmt: skip
    with pytest.raises(TrainingError, match="failures to be told from successes"):
        train(settings_from(given | {"epochs": 1}))
    write_manifest(dataset, msgspec.structs.replace(manifest, config='{"selection": {}}'))
    with pytest.raises(TrainingError, match="`dpo` needs a dataset of preferences and test is none"):
        train(settings_from(given | {"epochs": 1, "dpo": {}}))
    write_manifest(dataset, manifest)
    settings = settings_from(given | {"epochs": 6, "checkpoint_every": 3, "dpo": {}})
    made = load_model(train(settings))
    start = load_model(tmp_path / "start")
    assert [row.task_id for row in read_tokens(dataset)] == [row.task_id for row in rows]
    with torch.no_grad():
        for good, bad in preference_pairs(rows):
            margins = [(plain_answer(m, good) - plain_answer(m, bad)).item() for m in (made, start)]
            assert margins[0] > margins[1]


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ({"dpo": {"beta": 0}}, "beta"),
        (
            {"dpo": {}, "model": None, "shape": "tiny-test", "tokenizer": "t"},
            "compares with the model it starts",
        ),
        ({"dpo": {}, "packing": False}, "leave `packing` out"),
    ],
)
def test_settings_that_make_no_preferences_are_refused(given: dict, fault: str) -> None:
    with pytest.raises(TrainingError, match=fault):
        settings_from(LEAST | given)


def test_runs_without_preferences_keep_their_hash() -> None:
    plain = settings_hash(settings_from(LEAST))
    assert settings_hash(settings_from(LEAST | {"dpo": {}})) != plain
    assert plain == "5015d47b78b72fa3afdaea0e"

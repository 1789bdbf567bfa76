"""bfloat16 weights cast once a step, with float32 masters: losses beside float32, and what a run keeps."""

import copy
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import torch

from orchard.pipelines.models.directories import load_model, load_tokenizer, save_model
from orchard.pipelines.models.tiny import new_model
from orchard.pipelines.sft import trainer as trainer_module
from orchard.pipelines.sft.loss import make_pack, summed_loss
from orchard.pipelines.sft.precision import BFloat16Copies
from orchard.pipelines.sft.settings import Lora, Precision
from orchard.pipelines.sft.trainer import MODEL, train
from tests.pipelines.moe import tiny_moe
from tests.pipelines.sft.small_runs import SHAPE, VOCABULARY, to_toml, token_rows
from tests.pipelines.sft.test_loss import CPU, trainer_of
from tests.pipelines.sft.test_runs import facts, weights

TOLERANCE = 2e-3
"""Greatest relative difference of a loss in bfloat16, as docs/training.md states it."""


def gradient(model) -> torch.Tensor:
    return torch.cat([weight.grad.flatten() for weight in model.parameters() if weight.grad is not None])


@pytest.mark.parametrize("changes", [{}, {"activation_checkpointing": True}, {"pack_tokens": 30}], ids=str)
def test_losses_equal_those_of_float32_within_the_tolerance(model, changes):
    rows = token_rows(20)
    plain = trainer_of(copy.deepcopy(model), rows, **changes)
    half = trainer_of(model, rows, precision="bfloat16", **changes)
    examples = [(row,) for row in rows]
    expected, found = plain.backward(examples, 100), half.backward(examples, 100)
    assert found == pytest.approx(expected, rel=TOLERANCE) and found != expected
    exact, rounded = gradient(plain.model), gradient(half.model)
    assert (rounded - exact).norm() < 0.03 * exact.norm()


def test_between_passes_a_model_is_float32_and_gradients_are_summed_in_it(model):
    passes = BFloat16Copies(model, CPU)
    rows = token_rows(6)
    alone = []
    for row in rows:
        with passes.in_use():
            assert model.dtype == torch.bfloat16
            summed_loss(model, make_pack([row], CPU)).backward()
        assert {weight.dtype for weight in model.parameters()} == {torch.float32}
        alone.append(gradient(model))
        assert torch.equal(alone[-1], alone[-1].bfloat16().float())
        model.zero_grad()
    with passes.in_use():
        for row in rows:
            summed_loss(model, make_pack([row], CPU)).backward()
    torch.testing.assert_close(gradient(model), torch.stack(alone).sum(0))


def test_a_pass_reads_the_weights_as_they_are(model):
    passes = BFloat16Copies(model, CPU)
    weight = model.get_parameter("model.layers.0.mlp.up_proj.weight")
    with torch.no_grad():
        weight.add_(1.0)
    with passes.in_use():
        seen = model.get_parameter("model.layers.0.mlp.up_proj.weight")
        assert torch.equal(seen, weight.bfloat16())
        assert model.lm_head.weight is model.model.embed_tokens.weight  # tied weights stay one


def test_a_small_update_is_not_lost(model):
    """1 + 1e-4 is 1 in bfloat16; of a thousand such updates the master keeps every one."""
    passes = BFloat16Copies(model, CPU)
    with torch.no_grad():
        weight = model.get_parameter("model.norm.weight").fill_(1.0)
        for _ in range(1000):
            with passes.in_use():
                weight.add_(1e-4)
    assert weight[0].item() == pytest.approx(1.1, abs=1e-4)


@pytest.mark.long
def test_a_run_in_bfloat16_resumes_bit_for_bit(run_settings, monkeypatch):
    whole, broken = (run_settings(name, precision="bfloat16", checkpoint_every=1) for name in ("w", "b"))
    train(whole)
    dies_once_at(2, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        train(broken)
    train(broken)
    assert weights(broken) == weights(whole) and facts(broken) == facts(whole)
    assert {weight.dtype for weight in load_model(Path(whole.out) / MODEL).parameters()} == {torch.float32}


def dies_once_at(place, monkeypatch):
    step, left = trainer_module.SftTrainer.step, [place]

    def dies(self, number):
        if left == [number]:
            left.clear()
            raise KeyboardInterrupt
        return step(self, number)

    monkeypatch.setattr(trainer_module.SftTrainer, "step", dies)


@pytest.mark.long
@pytest.mark.parametrize("experts", [False, True])
def test_an_adapter_in_bfloat16_learns_what_it_does_in_float32(run_settings, tmp_path, experts):
    settings = run_settings("plain")
    base = tiny_moe(VOCABULARY) if experts else new_model(SHAPE, vocabulary=VOCABULARY, seed=3)
    save_model(base, tmp_path / "base", tokenizer=load_tokenizer(settings.tokenizer))
    plain = msgspec.structs.replace(
        settings,
        model=str(tmp_path / "base"),
        shape=None,
        tokenizer=None,
        lora=Lora(rank=4, experts=experts),
        lr=1e-2,
    )
    half = msgspec.structs.replace(plain, out=str(tmp_path / "half"), precision=Precision.BFLOAT16)
    train(plain)
    merged = load_model(train(half))
    for exact, rounded in zip(facts(plain), facts(half), strict=True):
        assert rounded.loss == pytest.approx(exact.loss, rel=5 * TOLERANCE)
    for name, weight in base.named_parameters():
        if "norm" in name:  # has no adapter, and comes out as it went in
            assert torch.equal(merged.get_parameter(name), weight)


@pytest.mark.long
def test_what_is_frozen_comes_out_as_it_went_in(run_settings):
    still = load_model(train(run_settings("still", max_steps=1, lr=1e-30)))
    half = run_settings("half", max_steps=1, precision="bfloat16", freeze=["model.layers.0.*"])
    for name, weight in load_model(train(half)).named_parameters():
        assert torch.equal(weight, still.get_parameter(name)) == name.startswith("model.layers.0."), name


def test_preferences_in_bfloat16_have_a_reference_in_bfloat16(model):
    pairs = [
        msgspec.structs.replace(row, task_id=str(at // 2), resolved=at % 2 == 0)
        for at, row in enumerate(token_rows(8))
    ]
    reference = copy.deepcopy(model)
    trainer = trainer_of(model, pairs, precision="bfloat16", dpo={}, reference=reference)
    assert {weight.dtype for weight in reference.parameters()} == {torch.bfloat16}
    assert trainer.step(0).loss == pytest.approx(0.6931, abs=1e-4)  # log 2: policy and reference are one


@pytest.mark.slow
@pytest.mark.usefixtures("installed")
def test_torchrun_trains_in_bfloat16_on_two_cpus(run_settings, tmp_path):
    """FSDP2 over gloo."""
    one, two = (
        run_settings(name, precision="bfloat16", activation_checkpointing=True) for name in ("1", "2")
    )
    train(one)
    file = tmp_path / "two.toml"
    file.write_text(to_toml(two))
    command = [
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        "-m",
        "orchard",
        "sft",
        str(file),
    ]
    done = subprocess.run(
        [sys.executable, "-m", *command],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    for alone, sharded in zip(facts(one), facts(two), strict=True):
        assert sharded.loss == pytest.approx(alone.loss, rel=TOLERANCE)
        assert sharded.trained_tokens == alone.trained_tokens

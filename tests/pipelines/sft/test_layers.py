"""Compiled layers: few versions for packs of all lengths, and the steps of layers that are not compiled."""

import msgspec
import pytest
import torch
from torch._dynamo.utils import counters

from orchard.pipelines.models.errors import ModelError
from orchard.pipelines.models.tiny import new_model
from orchard.pipelines.sft import attention, layers
from orchard.pipelines.sft.attention import use_packed_attention
from orchard.pipelines.sft.layers import compiles, layers_of, prepare_layers
from orchard.pipelines.sft.settings import Lora, SftSettings, TrainingError
from orchard.pipelines.sft.trainer import train
from tests.pipelines.moe import tiny_moe
from tests.pipelines.sft.small_runs import SHAPE, VOCABULARY, token_rows
from tests.pipelines.sft.test_loss import trainer_of
from tests.pipelines.sft.test_precision import dies_once_at
from tests.pipelines.sft.test_runs import facts, weights

GPU, CPU, META = torch.device("cuda"), torch.device("cpu"), torch.device("meta")
GIVEN = SftSettings(dataset="d", out="o", model="m")


@pytest.fixture(autouse=True)
def compiled_anew():
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def versions() -> int:
    """Graphs that were compiled."""
    return counters["stats"]["unique_graphs"]


@pytest.mark.long
def test_a_layer_with_the_kernel_is_one_graph_for_packs_of_all_lengths(monkeypatch):
    """As on a GPU: traced without a break, on tensors without values."""
    monkeypatch.setattr(attention, "kernel_takes", lambda _: True)
    monkeypatch.setattr(layers, "COMPILER", {"backend": "aot_eager"})
    model = new_model(SHAPE, vocabulary=VOCABULARY, seed=3).to(META, torch.bfloat16)
    use_packed_attention(model)
    prepare_layers(model, checkpointing=False, compiled=True)
    for examples, tokens in ((1, 50), (4, 90), (7, 71), (9, 300)):
        hidden = torch.empty(
            1, tokens, SHAPE.hidden_size, device=META, dtype=torch.bfloat16, requires_grad=True
        )
        turns = torch.empty(1, tokens, SHAPE.head_dim, device=META, dtype=torch.bfloat16)
        for layer in layers_of(model):
            hidden = layer(
                hidden,
                attention_mask=None,
                position_embeddings=(turns, turns),
                cu_seq_lens_q=torch.empty(examples + 1, device=META, dtype=torch.int32),
                max_length_q=tokens - 1,
            )
        hidden.sum().backward()
    assert (versions(), dict(counters["graph_break"])) == (1, {})


@pytest.mark.long
@pytest.mark.parametrize("checkpointing", [False, True])
def test_steps_of_compiled_layers_are_those_of_others(monkeypatch, checkpointing):
    monkeypatch.setattr(layers, "COMPILER", {"backend": "aot_eager"})
    rows, losses, graphs = token_rows(40, longest=90), [], []
    for compiled in (False, True):
        model = new_model(SHAPE, vocabulary=VOCABULARY, seed=3)
        trainer = trainer_of(
            model,
            rows,
            compile=compiled,
            activation_checkpointing=checkpointing,
            global_batch=8,
            epochs=1,
            precision="bfloat16",
        )
        losses.append([])
        for number in range(trainer.plan.steps):
            losses[-1].append(trainer.step(number).loss)
            graphs.append(versions())
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    assert graphs[:5] == [0] * 5 and 0 < graphs[5] <= graphs[-1] <= 8
    assert graphs[-1] == graphs[-2]


@pytest.mark.slow
def test_a_run_with_compiled_layers_resumes_bit_for_bit(run_settings, monkeypatch):
    """By the compiler itself, for the CPU."""
    plain, whole, broken = (
        run_settings(name, compile=name != "plain", precision="bfloat16", checkpoint_every=1)
        for name in ("plain", "whole", "broken")
    )
    train(plain)
    train(whole)
    dies_once_at(2, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        train(broken)
    train(broken)
    assert weights(broken) == weights(whole)
    for compiled, other in zip(facts(whole), facts(plain), strict=True):
        assert compiled.loss == pytest.approx(other.loss, rel=2e-3)


def test_layers_are_compiled_on_a_gpu_where_they_can_be(monkeypatch):
    experts = msgspec.structs.replace(GIVEN, lora=Lora(experts=True))
    assert compiles(GIVEN, GPU) and not compiles(GIVEN, CPU)
    assert not compiles(experts, GPU) and not compiles(GIVEN, GPU, replays=True)
    assert not compiles(msgspec.structs.replace(GIVEN, compile=False), GPU)
    wanted = msgspec.structs.replace(GIVEN, compile=True)
    assert compiles(wanted, CPU)
    with pytest.raises(TrainingError, match=r"does not work with `lora.experts`: leave it out"):
        compiles(msgspec.structs.replace(experts, compile=True), GPU)
    with pytest.raises(TrainingError, match=r"does not work with `router_replay`"):
        compiles(wanted, GPU, replays=True)
    monkeypatch.setenv("PATH", "")
    assert not compiles(GIVEN, GPU)
    with pytest.raises(TrainingError, match="a machine without a C compiler"):
        compiles(wanted, GPU)


def test_a_model_without_known_layers_is_named():
    with pytest.raises(ModelError, match="Linear does not say what its layers are"):
        prepare_layers(torch.nn.Linear(2, 2), checkpointing=True, compiled=False)
    assert len(layers_of(tiny_moe(VOCABULARY))) == 2

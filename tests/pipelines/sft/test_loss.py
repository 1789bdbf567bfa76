"""Loss and gradient against a plain reference; packed examples do not see one another."""

from itertools import pairwise

import pytest
import torch
import torch.nn.functional as functional
from torch.nn.attention import varlen

from orchard.pipelines.models.errors import ModelError
from orchard.pipelines.models.tiny import ModelShape, new_model
from orchard.pipelines.sft import attention
from orchard.pipelines.sft.attention import use_packed_attention
from orchard.pipelines.sft.loss import make_pack, places, summed_loss
from orchard.pipelines.sft.precision import BFloat16Copies
from orchard.pipelines.sft.processes import Processes
from orchard.pipelines.sft.settings import settings_from
from orchard.pipelines.sft.trainer import SftTrainer
from tests.pipelines.sft.small_runs import SHAPE, VOCABULARY, token_rows

CPU = torch.device("cpu")
ALONE = Processes(rank=0, count=1, device=CPU)


def plain_step(model, rows):
    """The reference: every example by itself, all logits, a loop over tokens, one mean over the batch."""
    total, trained = torch.zeros(()), 0
    for row in rows:
        ids = torch.tensor(row.input_ids.tolist())
        logits = model(input_ids=ids[None], use_cache=False).logits[0]
        for place in range(1, len(ids)):
            if row.loss_mask[place]:
                scores = logits[place - 1] - logits[place - 1].max()
                total = total - (scores[ids[place]] - scores.exp().sum().log())
                trained += 1
    loss = total / trained
    loss.backward()
    gradient = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    return loss.item(), gradient


def trainer_of(model, rows, reference=None, **changes):
    settings = settings_from(
        {"dataset": "-", "out": "-", "model": "-", "global_batch": len(rows), "context": 100} | changes
    )
    return SftTrainer(settings, rows, model, ALONE, reference=reference)


@pytest.mark.long
@pytest.mark.parametrize(
    "changes",
    [{}, {"packing": False}, {"activation_checkpointing": True}, {"context": 4096}, {"pack_tokens": 30}],
    ids=["packed", "one by one", "activation checkpointing", "one pack", "small packs"],
)
def test_loss_and_gradient_equal_a_plain_reference(model, changes):
    rows = token_rows(20)
    expected, gradient = plain_step(model, rows)
    trainer = trainer_of(model, rows, **changes)
    trained = sum(int(row.loss_mask[1:].sum()) for row in rows)
    assert trainer.backward([(row,) for row in rows], trained) / trained == pytest.approx(expected, abs=1e-5)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, gradient[name], atol=1e-5, rtol=1e-5, msg=name)


def test_a_packed_example_has_the_logits_it_has_alone(model):
    rows = token_rows(7)
    pack = make_pack(rows, CPU)
    with torch.no_grad():
        alone = [model(input_ids=torch.tensor(row.input_ids)[None].long()).logits[0] for row in rows]
        use_packed_attention(model)
        packed = model(
            input_ids=pack.ids, position_ids=pack.positions, **places(pack), use_cache=False
        ).logits[0]
    torch.testing.assert_close(packed, torch.cat(alone), atol=1e-5, rtol=1e-5)


def test_no_gradient_crosses_from_one_example_to_another(model):
    """Exactly zero, not only small."""
    first, second = token_rows(2)
    use_packed_attention(model)
    pack = make_pack([first, second], CPU)
    embedded = model.get_input_embeddings()(pack.ids).detach().requires_grad_()
    logits = model(
        inputs_embeds=embedded, position_ids=pack.positions, **places(pack), use_cache=False
    ).logits
    logits[0, len(first.input_ids) :].square().sum().backward()
    crossing, own = embedded.grad[0].split(pack.lengths)
    assert crossing.abs().max() == 0
    assert own.abs().max() > 0


def test_a_sliding_window_stays_a_window_in_a_pack():
    config = new_model(SHAPE, vocabulary=VOCABULARY, seed=0).config
    config.use_sliding_window, config.sliding_window = True, 6
    config.layer_types = ["full_attention", "sliding_attention"]
    model = type(new_model(SHAPE, vocabulary=VOCABULARY, seed=0))(config)
    rows = token_rows(3)
    pack = make_pack(rows, CPU)
    with torch.no_grad():
        alone = [model(input_ids=torch.tensor(row.input_ids)[None].long()).logits[0] for row in rows]
        use_packed_attention(model)
        packed = model(
            input_ids=pack.ids, position_ids=pack.positions, **places(pack), use_cache=False
        ).logits[0]
    torch.testing.assert_close(packed, torch.cat(alone), atol=1e-5, rtol=1e-5)


def of_torch_2_11(query, key, value, starts, key_starts, longest, longest_key, *, scale, window_size):
    """What the kernel computes, one example after another."""
    assert query.dtype == key.dtype == value.dtype == torch.bfloat16
    assert query.shape == key.shape
    assert torch.equal(starts, key_starts)
    assert int(starts.diff().max()) == longest == longest_key
    parts = []
    for first, end in pairwise(starts.tolist()):
        q, k, v = (each[first:end].transpose(0, 1) for each in (query, key, value))
        band = torch.ones(end - first, end - first, dtype=torch.bool).tril()
        if window_size[0] >= 0:
            band = band.triu(-window_size[0])
        part = functional.scaled_dot_product_attention(q[None], k[None], v[None], attn_mask=band, scale=scale)
        parts.append(part[0].transpose(0, 1))
    return torch.cat(parts)


def of_torch_2_13(query, key, value, *places, enable_gqa=False, **options):
    assert enable_gqa
    key, value = (each.repeat_interleave(query.shape[1] // each.shape[1], dim=1) for each in (key, value))
    return of_torch_2_11(query, key, value, *places, **options)


@pytest.mark.parametrize("kernel", [of_torch_2_11, of_torch_2_13])
@pytest.mark.parametrize("window", [None, 6])
def test_a_gpu_in_bfloat16_attends_by_the_kernel(kernel, window, monkeypatch):
    config = new_model(SHAPE, vocabulary=VOCABULARY, seed=0).config
    config.use_sliding_window, config.sliding_window = window is not None, window
    config.layer_types = ["full_attention", "sliding_attention" if window else "full_attention"]
    model = type(new_model(SHAPE, vocabulary=VOCABULARY, seed=0))(config)
    pack = make_pack(token_rows(3), CPU)
    use_packed_attention(model)
    with BFloat16Copies(model, CPU).in_use():
        plain = summed_loss(model, pack)
        calls = []

        def counted(*places, **options):
            calls.append(options)
            return kernel(*places, **options)

        monkeypatch.setattr(attention, "kernel_takes", lambda value: value.dtype == torch.bfloat16)
        monkeypatch.setattr(varlen, "varlen_attn", counted)
        monkeypatch.setattr(attention, "SHARES_KEYS", kernel is of_torch_2_13)
        by_kernel = summed_loss(model, pack)
    assert len(calls) == config.num_hidden_layers
    torch.testing.assert_close(by_kernel, plain, atol=0.0, rtol=5e-3)


def test_layers_that_would_mix_examples_are_refused(model):
    model.config.layer_types = ["full_attention", "linear_attention"]
    with pytest.raises(ModelError, match=r"linear_attention.*`packing = false`"):
        use_packed_attention(model)


def test_only_masked_tokens_count(model):
    """What is not under the mask may change its target and changes no loss."""
    row = token_rows(1)[0]
    row.loss_mask[:] = 0
    row.loss_mask[2] = 1
    use_packed_attention(model)
    before = summed_loss(model, make_pack([row], CPU)).item()
    row.input_ids[3:] = (row.input_ids[3:] + 1) % VOCABULARY
    assert summed_loss(model, make_pack([row], CPU)).item() == pytest.approx(before, abs=1e-6)
    row.input_ids[2] = (row.input_ids[2] + 1) % VOCABULARY
    assert summed_loss(model, make_pack([row], CPU)).item() != pytest.approx(before, abs=1e-3)


def test_a_large_vocabulary_is_summed_in_parts(model, monkeypatch):
    rows = token_rows(6)
    use_packed_attention(model)
    whole = summed_loss(model, make_pack(rows, CPU))
    monkeypatch.setattr("orchard.pipelines.sft.loss._LOGIT_ROWS", 5)
    torch.testing.assert_close(summed_loss(model, make_pack(rows, CPU)), whole)


def test_wide_heads_share_keys():
    """Query heads in groups, an odd number of them."""
    shape = ModelShape(
        hidden_size=24,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=3,
        num_key_value_heads=1,
        head_dim=8,
    )
    model = new_model(shape, vocabulary=VOCABULARY, seed=0)
    rows = token_rows(4)
    expected, _ = plain_step(model, rows)
    trained = sum(int(row.loss_mask[1:].sum()) for row in rows)
    assert trainer_of(model, rows).backward([(row,) for row in rows], trained) / trained == pytest.approx(
        expected, abs=1e-5
    )

"""Qwen3-shaped models from scratch, small enough to learn on a CPU."""

from typing import Any

import msgspec
import torch
from transformers import PreTrainedTokenizerBase, Qwen3Config, Qwen3ForCausalLM

from orchard.pipelines.models.errors import ModelError


class ModelShape(msgspec.Struct, frozen=True, kw_only=True):
    """The dimensions of a Qwen3 model, without its vocabulary."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int = 4096
    rope_theta: float = 10_000.0
    tie_word_embeddings: bool = True


SHAPES = {
    "tiny-test": ModelShape(
        hidden_size=64,
        intermediate_size=160,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=16,
    ),
    "tiny-copy": ModelShape(
        hidden_size=64,
        intermediate_size=160,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=32,
    ),
    "tiny-half": ModelShape(
        hidden_size=96,
        intermediate_size=288,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=24,
    ),
    "tiny-1m": ModelShape(
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
    ),
    "tiny-2m": ModelShape(
        hidden_size=160,
        intermediate_size=448,
        num_hidden_layers=6,
        num_attention_heads=5,
        num_key_value_heads=5,
        head_dim=32,
    ),
}
SHAPES["tiny-far"] = msgspec.structs.replace(SHAPES["tiny-test"], rope_theta=1_000_000.0)
"""Presets by name. With 2,048 tokens of vocabulary they have 0.2, 0.2, 0.6, 1.05, 2.2 and 0.2 million
parameters. `tiny-copy` has the weights of `tiny-test` in two heads of 32, which learn sooner to copy
than four of 16. `tiny-far` has the rope_theta of Qwen3: what it learned to copy over 100 tokens it
soon copies over 1,500."""


def new_model(
    shape: ModelShape | str,
    *,
    vocabulary: int,
    seed: int,
    tokenizer: PreTrainedTokenizerBase | None = None,
) -> Qwen3ForCausalLM:
    """A model of `shape` (or of the preset of that name) in float32 with random weights of `seed`.

    `tokenizer` names the special tokens in the configuration. Raises ModelError for an unknown preset.
    """
    if isinstance(shape, str):
        if shape not in SHAPES:
            raise ModelError(f"no model shape is named {shape!r}: choose one of {', '.join(SHAPES)}")
        shape = SHAPES[shape]
    dimensions: dict[str, Any] = msgspec.structs.asdict(shape)
    theta = dimensions.pop("rope_theta")
    special: dict[str, Any] = {
        "bos_token_id": tokenizer.bos_token_id if tokenizer else None,
        "eos_token_id": tokenizer.eos_token_id if tokenizer else None,
        "pad_token_id": tokenizer.pad_token_id if tokenizer else None,
    }
    config = Qwen3Config(
        vocab_size=vocabulary,
        rope_parameters={"rope_type": "default", "rope_theta": theta},
        **dimensions,
        **special,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Qwen3ForCausalLM(config)


def parameters(model: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())

"""Small models with a trained tokenizer, for the policy server's tests."""

from pathlib import Path

import torch
from transformers import Qwen3ForCausalLM

from orchard.pipelines.datasets.tokenizer import train_tokenizer
from orchard.pipelines.models.directories import load_tokenizer, save_model
from orchard.pipelines.models.tiny import ModelShape, new_model

SHAPE = ModelShape(
    hidden_size=48,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    max_position_embeddings=16_384,
)

BASH = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "Run a command.",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}},
    },
}

TEXTS = ["Fix the bug in add.py, please. ls -la; cat add.py; pytest -q # all tests pass"] * 4


def sharp(model: Qwen3ForCausalLM) -> Qwen3ForCausalLM:
    """Weights that make distributions peaked, as trained ones are."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(3.0)
    return model


def write_model(
    directory: Path, *, seed: int = 0, shape: ModelShape = SHAPE, tokenizer: Path | None = None
) -> Path:
    """A model directory with a tokenizer of its own, or that of another directory."""
    if tokenizer is None:
        train_tokenizer(TEXTS, 340, directory)
    known = load_tokenizer(tokenizer or directory)
    model = sharp(new_model(shape, vocabulary=len(known), seed=seed, tokenizer=known))
    save_model(model, directory, tokenizer=known)
    return directory

"""A tiny mixture of experts, of the class of Qwen3-30B-A3B."""

import torch
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM


def tiny_moe(vocabulary: int, seed: int = 0, **changes: object) -> Qwen3MoeForCausalLM:
    """Two layers of eight experts, of which two see a token; routers are spread widely enough to move.
    `changes` are of the configuration."""
    config = Qwen3MoeConfig(
        vocab_size=vocabulary,
        hidden_size=32,
        intermediate_size=64,
        moe_intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        num_experts=8,
        num_experts_per_tok=2,
        norm_topk_prob=True,
    )
    config.update(changes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Qwen3MoeForCausalLM(config).eval()

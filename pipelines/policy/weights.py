"""The Qwen3 forward pass, written for decoding: few operations a layer, any mixture of sequences in a batch.

Reads the weights of a Hugging Face Qwen3 directory. Every row of a batch goes through the same kernels
whatever the other rows are, as long as there are ROWS or more of them.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as functional

from orchard.pipelines.models.directories import load_model
from orchard.pipelines.models.errors import ModelError

ROWS = 8
"""Products of few rows take another path, with other rounding: batches are padded to a multiple of this."""

Attend = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""(layer, query [tokens, heads, width], key, value [tokens, key heads, width]) to [tokens, heads * width]."""


class _Layer:
    """One layer's matrices, transposed and joined where they multiply the same vector."""

    def __init__(self, state: dict[str, torch.Tensor], prefix: str, heads: int, key_heads: int) -> None:
        def joined(*names: str) -> torch.Tensor:
            return torch.cat([state[f"{prefix}{name}.weight"] for name in names]).t().contiguous()

        attention = "self_attn."
        self.qkv = joined(*(f"{attention}{part}_proj" for part in "qkv"))
        self.out = joined(f"{attention}o_proj")
        self.gate_up = joined("mlp.gate_proj", "mlp.up_proj")
        self.down = joined("mlp.down_proj")
        self.before_attention = state[f"{prefix}input_layernorm.weight"]
        self.before_mlp = state[f"{prefix}post_attention_layernorm.weight"]
        norms = [state[f"{prefix}{attention}{part}_norm.weight"] for part in "qk"]
        self.head_norms = torch.stack([norms[0]] * heads + [norms[1]] * key_heads)


class Qwen3:
    """Weights in memory and the pass over them. Without gradients; safe to share between threads."""

    def __init__(self, config: Any, state: dict[str, torch.Tensor]) -> None:
        """`state` as `transformers` names it. Raises ModelError for what this pass does not compute."""
        _check(config)
        self.heads: int = config.num_attention_heads
        self.key_heads: int = config.num_key_value_heads
        self.width: int = config.head_dim
        self.vocabulary: int = config.vocab_size
        self.positions: int = config.max_position_embeddings
        self.epsilon: float = config.rms_norm_eps
        self.embedding = state["model.embed_tokens.weight"]
        self.layers = [
            _Layer(state, f"model.layers.{number}.", self.heads, self.key_heads)
            for number in range(config.num_hidden_layers)
        ]
        self.norm = state["model.norm.weight"]
        head = self.embedding if config.tie_word_embeddings else state["lm_head.weight"]
        self.head = head.t().contiguous()
        self.cosine, self.sine = _rotations(config.rope_parameters["rope_theta"], self.width, self.positions)
        self.cosine = self.cosine.to(self.embedding)
        self.sine = self.sine.to(self.embedding)

    @property
    def device(self) -> torch.device:
        return self.embedding.device

    @property
    def dtype(self) -> torch.dtype:
        return self.embedding.dtype

    @torch.inference_mode()
    def hidden(self, ids: torch.Tensor, positions: torch.Tensor, attend: Attend) -> torch.Tensor:
        """The last layer's vectors [tokens, size] of `ids` [tokens] at `positions` [tokens]."""
        stream = self.embedding[ids]
        cosine, sine = self.cosine[positions, None], self.sine[positions, None]
        for number, layer in enumerate(self.layers):
            stream = stream + attend(number, *self._heads(layer, stream, cosine, sine)) @ layer.out
            mixed = functional.rms_norm(stream, (stream.shape[1],), layer.before_mlp, self.epsilon)
            gate, up = torch.chunk(mixed @ layer.gate_up, 2, dim=1)
            stream = stream + (functional.silu(gate) * up) @ layer.down
        return stream

    @torch.inference_mode()
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[rows, vocabulary] in float32."""
        return (functional.rms_norm(hidden, (hidden.shape[1],), self.norm, self.epsilon) @ self.head).float()

    def _heads(
        self, layer: _Layer, stream: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Query, key and value of each token; query and key normalized and turned by position, together."""
        mixed = functional.rms_norm(stream, (stream.shape[1],), layer.before_attention, self.epsilon)
        both = self.heads + self.key_heads
        parts = (mixed @ layer.qkv).view(len(stream), both + self.key_heads, self.width)
        turned = functional.rms_norm(parts[:, :both], (self.width,), None, self.epsilon) * layer.head_norms
        swapped = turned.view(len(stream), both, 2, self.width // 2).flip(2).view_as(turned)
        turned = turned * cosine + swapped * sine
        return turned[:, : self.heads], turned[:, self.heads :], parts[:, both:]


def load_weights(directory: Path, *, device: torch.device, dtype: torch.dtype) -> Qwen3:
    """The Qwen3 model of a directory. Raises ModelError for any other architecture."""
    model = load_model(directory, dtype=dtype)
    state = {name: tensor.detach().to(device) for name, tensor in model.state_dict().items()}
    return Qwen3(model.config, state)


def _rotations(theta: float, width: int, positions: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and signed sines [positions, width]: a vector's halves are swapped before the sines apply."""
    turns = theta ** (-torch.arange(0, width, 2, dtype=torch.float32) / width)
    angles = torch.arange(positions, dtype=torch.float32)[:, None] * turns
    cosine, sine = angles.cos(), angles.sin()
    return torch.cat((cosine, cosine), dim=1), torch.cat((-sine, sine), dim=1)


def _check(config: Any) -> None:
    found = f"this is {config.model_type}"
    if config.model_type == "qwen3":
        rope = config.rope_parameters.get("rope_type", "default")
        layers = set(config.layer_types or ["full_attention"])
        if rope == "default" and layers == {"full_attention"} and not config.attention_bias:
            return
        found = f"this one has rope {rope!r}, layers {sorted(layers)} and bias {config.attention_bias}"
    raise ModelError(
        f"the policy server runs plain Qwen3 models and {found}: serve it with vLLM or SGLang, "
        "whose token fields are read as well"
    )

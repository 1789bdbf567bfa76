"""The Qwen3 forward pass, written for decoding: few operations a layer, any mixture of sequences in a batch.

Reads the weights of a Hugging Face directory of Qwen3, Qwen3-VL or Qwen2.5-VL. Every row of a batch goes
through the same kernels whatever the other rows are, as long as there are ROWS or more of them.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as functional

from orchard.pipelines.models.directories import load_model
from orchard.pipelines.models.errors import ModelError
from orchard.pipelines.models.picture_tokens import NEVER, never_said
from orchard.pipelines.policy.pictures import Features, Tower

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
        self.bias = self.head_norms = None
        if f"{prefix}{attention}q_proj.bias" in state:
            self.bias = torch.cat([state[f"{prefix}{attention}{part}_proj.bias"] for part in "qkv"])
        if f"{prefix}{attention}q_norm.weight" in state:
            norms = [state[f"{prefix}{attention}{part}_norm.weight"] for part in "qk"]
            self.head_norms = torch.stack([norms[0]] * heads + [norms[1]] * key_heads)


class Qwen3:
    """Weights in memory and the pass over them. Without gradients; safe to share between threads."""

    def __init__(self, config: Any, state: dict[str, torch.Tensor], visual: Any = None) -> None:
        """`state` has the names of `transformers`; `visual` is the vision tower of a model that has one.
        Raises ModelError for what this pass does not compute."""
        _check(config)
        self.tower = Tower(visual, config) if visual is not None else None
        self._unsaid = torch.tensor(never_said(config), dtype=torch.int64)
        config, tied = config.get_text_config(), config.tie_word_embeddings
        prefix = "model." if self.tower is None else "model.language_model."
        self.heads: int = config.num_attention_heads
        self.key_heads: int = config.num_key_value_heads
        self.width: int = getattr(config, "head_dim", None) or config.hidden_size // self.heads
        self.vocabulary: int = config.vocab_size
        self.positions: int = config.max_position_embeddings
        self.epsilon: float = config.rms_norm_eps
        self.embedding = state[f"{prefix}embed_tokens.weight"]
        self.layers = [
            _Layer(state, f"{prefix}layers.{number}.", self.heads, self.key_heads)
            for number in range(config.num_hidden_layers)
        ]
        self.norm = state[f"{prefix}norm.weight"]
        head = self.embedding if tied else state["lm_head.weight"]
        self.head = head.t().contiguous()
        self._unsaid = self._unsaid.to(self.device)
        self._axes = None if self.tower is None else _axes(config.rope_parameters, self.width).to(self.device)
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
    def hidden(
        self,
        ids: torch.Tensor,
        positions: torch.Tensor,
        attend: Attend,
        pictures: Sequence[tuple[int, Features]] = (),
    ) -> torch.Tensor:
        """The last layer's vectors [tokens, size] of `ids` [tokens] at `positions` [tokens]. In a model that
        sees, positions are [3, tokens], and `pictures` stand from these tokens on."""
        stream = self.embedding[ids]
        for first, seen in pictures:
            stream[first : first + len(seen.rows)] = seen.rows.to(stream)
        cosine, sine = self._turns(positions)
        for number, layer in enumerate(self.layers):
            stream = stream + attend(number, *self._heads(layer, stream, cosine, sine)) @ layer.out
            mixed = functional.rms_norm(stream, (stream.shape[1],), layer.before_mlp, self.epsilon)
            gate, up = torch.chunk(mixed @ layer.gate_up, 2, dim=1)
            stream = stream + (functional.silu(gate) * up) @ layer.down
            for first, seen in pictures:
                if number < len(seen.deep):
                    stream[first : first + len(seen.rows)] += seen.deep[number].to(stream)
        return stream

    @torch.inference_mode()
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits [rows, vocabulary] in float32."""
        found = (functional.rms_norm(hidden, (hidden.shape[1],), self.norm, self.epsilon) @ self.head).float()
        return found.index_fill_(1, self._unsaid, NEVER) if len(self._unsaid) else found

    def _turns(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines [tokens, 1, width] of positions."""
        if self._axes is None:
            return self.cosine[positions, None], self.sine[positions, None]
        places = positions[self._axes].t(), torch.arange(self.width, device=self.device)
        return self.cosine[places][:, None], self.sine[places][:, None]

    def _heads(
        self, layer: _Layer, stream: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Query, key and value of each token; query and key normalized and turned by position, together."""
        mixed = functional.rms_norm(stream, (stream.shape[1],), layer.before_attention, self.epsilon)
        both = self.heads + self.key_heads
        product = mixed @ layer.qkv
        if layer.bias is not None:
            product = product + layer.bias
        parts = product.view(len(stream), both + self.key_heads, self.width)
        turned = parts[:, :both]
        if layer.head_norms is not None:
            turned = functional.rms_norm(turned, (self.width,), None, self.epsilon) * layer.head_norms
        swapped = turned.reshape(len(stream), both, 2, self.width // 2).flip(2).reshape(turned.shape)
        turned = turned * cosine + swapped * sine
        return turned[:, : self.heads], turned[:, self.heads :], parts[:, both:]


def load_weights(directory: Path, *, device: torch.device, dtype: torch.dtype) -> Qwen3:
    """The model of a directory. Raises ModelError for any other architecture."""
    model = load_model(directory, dtype=dtype)
    visual = getattr(model.model, "visual", None)
    if visual is not None:
        visual = visual.to(device).eval().requires_grad_(False)
    state = {name: tensor.detach().to(device) for name, tensor in model.state_dict().items()}
    return Qwen3(model.config, state, visual)


def _axes(rope: dict[str, Any], width: int) -> torch.Tensor:
    """For each dimension of a head, which of the three positions rotates it."""
    sections = rope["mrope_section"]
    axes = torch.zeros(width // 2, dtype=torch.int64)
    if rope.get("mrope_interleaved"):
        for axis in (1, 2):
            axes[axis : 3 * sections[axis] : 3] = axis
    else:
        axes = torch.arange(3).repeat_interleave(torch.tensor(sections))
    return torch.cat((axes, axes))


def _rotations(theta: float, width: int, positions: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and signed sines [positions, width]: a vector's halves are swapped before the sines apply."""
    turns = theta ** (-torch.arange(0, width, 2, dtype=torch.float32) / width)
    angles = torch.arange(positions, dtype=torch.float32)[:, None] * turns
    cosine, sine = angles.cos(), angles.sin()
    return torch.cat((cosine, cosine), dim=1), torch.cat((-sine, sine), dim=1)


def _check(config: Any) -> None:
    found = f"this is {config.model_type}"
    config = config.get_text_config()
    if config.model_type in ("qwen3", "qwen3_vl_text", "qwen2_5_vl_text"):
        rope = config.rope_parameters.get("rope_type", "default")
        layers = set(getattr(config, "layer_types", None) or ["full_attention"])
        bias = getattr(config, "attention_bias", False)
        if rope in ("default", "mrope") and layers == {"full_attention"} and not bias:
            return
        found = f"this one has rope {rope!r}, layers {sorted(layers)} and bias {bias}"
    raise ModelError(
        f"the policy server runs plain Qwen3, Qwen3-VL and Qwen2.5-VL models and {found}: serve it with vLLM "
        "or SGLang, whose token fields are read as well"
    )

"""The model that is served: a causal model of `transformers`, with this server's attention.

The model computes everything but attention, which reads and fills the server's cache: any mixture of
sequences is a batch. Every row goes through the same kernels whatever the other rows are, as long as there
are ROWS or more of them.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from transformers import AttentionInterface, PreTrainedModel

from orchard.pipelines.models.directories import load_model
from orchard.pipelines.models.errors import ModelError
from orchard.pipelines.models.picture_tokens import NEVER, never_said
from orchard.pipelines.models.routers import Choices, Routers
from orchard.pipelines.policy.families import LENGTH_DEPENDENT, check_family, longest
from orchard.pipelines.policy.pictures import Features, Tower

ROWS = 8
"""Products of few rows take another path, with other rounding: batches are padded to a multiple of this."""

Attend = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor, float, int | None], torch.Tensor]
"""(layer, query [tokens, heads, width], key, value [tokens, key heads, width], scale, sliding window in
tokens or None) to [tokens, heads * width]."""
_SERVED = "orchard_served"


def _served(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    _: None,
    *,
    attend: Attend,
    scaling: float,
    sliding_window: int | None = None,
    **__: Any,
) -> tuple[torch.Tensor, None]:
    """Attention in the form in which `transformers` calls it; there is no mask, `attend` knows the rows."""
    query, key, value = (each[0].transpose(0, 1) for each in (query, key, value))
    return attend(module.layer_idx, query, key, value, scaling, sliding_window)[None], None


# Of an attention without a mask function, `transformers` makes no mask.
AttentionInterface.register(_SERVED, _served)


class ServedModel:
    """Without gradients; safe to share between threads."""

    def __init__(self, model: PreTrainedModel) -> None:
        """Takes the model over. Raises ModelError for a family that the server does not run."""
        config, text = model.config, model.config.get_text_config()
        check_family(config.to_dict())
        model.eval().requires_grad_(False)
        model.set_attn_implementation(_SERVED if text is config else {"text_config": _SERVED})
        visual = getattr(model.base_model, "visual", None)
        self.tower = None if visual is None else Tower(visual, config)
        self._decoder: Any = model.get_decoder()
        self._head: Any = model.get_output_embeddings()
        self._unsaid = torch.tensor(never_said(config), dtype=torch.int64, device=model.device)
        self.layers: int = text.num_hidden_layers
        self.heads: int = text.num_attention_heads
        self.key_heads: int = text.num_key_value_heads
        self.width: int = getattr(text, "head_dim", None) or text.hidden_size // self.heads
        self.vocabulary: int = text.vocab_size
        self.positions = longest(text.to_dict())
        self.device, self.dtype = model.device, model.dtype
        self._tensors = dict(chain(model.named_parameters(), model.named_buffers()))
        self.form: dict[str, object] = {name: each.shape for name, each in self._tensors.items()}
        """The shapes of its tensors, which new weights must have too."""
        self.recordable = not any(getattr(text, name, 0) for name in ("num_experts", "num_local_experts"))
        """Whether the kernels of a step are the same for all tokens; an expert's depend on who chose it."""
        self.routers = _routers(self._decoder)
        """Routers whose choices can be replayed; None where there are none."""
        for module in self._decoder.modules():
            if hasattr(module, "rope_type"):
                module.rope_type = _still(module.rope_type)

    def move_to(self, other: "ServedModel") -> None:
        """Copy the weights over those of `other`, which has the same form, and use them there."""
        for name, tensor in self._tensors.items():
            tensor.data = other._tensors[name].copy_(tensor)
        self._unsaid = other._unsaid

    @torch.inference_mode()
    def hidden(
        self,
        ids: torch.Tensor,
        positions: torch.Tensor,
        attend: Attend,
        pictures: Sequence[tuple[int, Features]] = (),
        note: Callable[[Choices], None] | None = None,
    ) -> torch.Tensor:
        """The last layer's vectors [tokens, size] of `ids` [tokens] at `positions` [tokens]. In a model that
        sees, positions are [3, tokens], and `pictures` stand from these tokens on. `note` takes what the
        routers choose."""
        stream = self._decoder.get_input_embeddings()(ids)
        shown = torch.zeros(len(ids), dtype=torch.bool, device=ids.device)
        for first, seen in pictures:
            stream[first : first + len(seen.rows)] = seen.rows.to(stream)
            shown[first : first + len(seen.rows)] = True
        deep = zip(*(seen.deep for _, seen in pictures), strict=True)
        added = [torch.cat(layer) for layer in deep]
        given = {"visual_pos_masks": shown[None], "deepstack_visual_embeds": added} if added else {}
        recording: AbstractContextManager[Choices] = nullcontext([])
        if self.routers is not None and note is not None:
            recording = self.routers.recording()
        with recording as choices:
            found = self._decoder(
                inputs_embeds=stream[None],
                position_ids=positions.unsqueeze(-2),
                use_cache=False,
                attend=attend,
                **given,
            )
        if note is not None:
            note(choices)
        vectors: torch.Tensor = found.last_hidden_state[0]
        return vectors

    @torch.inference_mode()
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits [rows, vocabulary] in float32."""
        found: torch.Tensor = self._head(hidden).float()
        return found.index_fill_(1, self._unsaid, NEVER) if len(self._unsaid) else found


def _routers(model: torch.nn.Module) -> Routers | None:
    try:
        return Routers(model)
    except ModelError:
        return None


def _still(rope: Any) -> Any:
    """A rope type, or one for each kind of layers, that reads no lengths from the device: sequences are too
    short to change the rotation (`families.longest`)."""
    if isinstance(rope, dict):
        return {layer: _still(kind) for layer, kind in rope.items()}
    return "default" if rope in LENGTH_DEPENDENT else rope


def load_weights(directory: Path, *, device: torch.device, dtype: torch.dtype) -> ServedModel:
    """The model of a directory. Raises ModelError for a family that the server does not run."""
    return ServedModel(load_model(directory, dtype=dtype).to(device))

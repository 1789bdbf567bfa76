"""Attention over packed examples: no token sees another example's, and no work is done on a mask.

Registered with `transformers` under a name, so every architecture that takes its attention from there can
use it. Each example is attended to by itself: on the GPU in half precision by one variable-length kernel,
elsewhere by one causal call for each example.
"""

from inspect import signature
from typing import Any

import torch
import torch.nn.functional as functional
from torch.nn.attention import varlen
from transformers import AttentionInterface, PreTrainedModel

from orchard.pipelines.models.errors import ModelError

PACKED = "orchard_packed"
SHARES_KEYS = "enable_gqa" in signature(varlen.varlen_attn).parameters
"""Whether torch's kernel takes fewer heads of keys than of queries; not in torch 2.11."""
_SEPARABLE = {"full_attention", "sliding_attention"}


def use_packed_attention(model: PreTrainedModel) -> None:
    """Make a model attend within examples only; it must then be called with `cu_seq_lens_q` and
    `max_length_q`.

    Raises ModelError for architectures whose layers carry state from token to token by other means.
    """
    config = model.config.get_text_config()
    strange = set(getattr(config, "layer_types", None) or ()) - _SEPARABLE
    if strange:
        raise ModelError(
            f"{config.model_type} has layers of type {', '.join(sorted(strange))}, which would mix packed "
            "examples: set `packing = false`"
        )
    # Of an attention without a mask function, `transformers` makes no mask.
    AttentionInterface.register(PACKED, packed_attention)
    try:
        # A vision tower keeps its own attention: each picture is seen whole, not from its begin on.
        model.set_attn_implementation({"text_config": PACKED} if config is not model.config else PACKED)
    except ValueError as error:
        raise ModelError(
            f"{config.model_type} cannot use another attention ({error}): set `packing = false`"
        ) from error


def packs_examples(model: torch.nn.Module) -> bool:
    """Whether `use_packed_attention` has prepared the model."""
    config: Any = model.config
    return getattr(config.get_text_config(), "_attn_implementation", None) == PACKED


def packed_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    cu_seq_lens_q: torch.Tensor | None = None,
    max_length_q: int | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Causal attention within each of the examples that lie one after another in the sequence.

    `query` is [1, heads, tokens, width], `key` and `value` may have fewer heads; `cu_seq_lens_q` is where
    examples begin and the last one ends, int32 [examples + 1], and `max_length_q` the longest one's tokens.
    Returns [1, tokens, heads, width].
    """
    del module, attention_mask
    if options.get("softcap") is not None or cu_seq_lens_q is None or max_length_q is None or dropout:
        raise ModelError("this architecture's attention has no packed form here: set `packing = false`")
    if kernel_takes(value):
        query, key = query.to(value.dtype), key.to(value.dtype)
        attended = _by_kernel(query, key, value, scaling, sliding_window, cu_seq_lens_q, max_length_q)
    else:
        attended = _by_example(query, key, value, scaling, sliding_window, cu_seq_lens_q)
    return attended, None


def kernel_takes(value: torch.Tensor) -> bool:
    """Whether the variable-length kernel can attend to these values."""
    return value.is_cuda and value.dtype in (torch.bfloat16, torch.float16)


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _by_example(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scaling: float | None,
    window: int | None,
    starts: torch.Tensor,
) -> torch.Tensor:
    lengths = starts.diff().tolist()
    parts = zip(*(torch.split(each, lengths, dim=2) for each in (query, key, value)), strict=True)
    attended = [_one(q, k, v, scaling, window) for q, k, v in parts]
    return torch.cat(attended, dim=2).transpose(1, 2)


def _one(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float | None, window: int | None
) -> torch.Tensor:
    length = query.shape[2]
    grouped = query.shape[1] != key.shape[1]
    if window is None or length <= window:
        return functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, scale=scaling, enable_gqa=grouped
        )
    seen = torch.ones(length, length, dtype=torch.bool, device=query.device)
    band = seen.tril() & seen.triu(1 - window)
    return functional.scaled_dot_product_attention(
        query, key, value, attn_mask=band, scale=scaling, enable_gqa=grouped
    )


def _by_kernel(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scaling: float | None,
    window: int | None,
    starts: torch.Tensor,
    longest: int,
) -> torch.Tensor:
    options: dict[str, Any] = {"window_size": (-1 if window is None else window - 1, 0), "scale": scaling}
    if (groups := query.shape[1] // key.shape[1]) > 1:
        if SHARES_KEYS:
            options["enable_gqa"] = True
        else:
            key, value = (each.repeat_interleave(groups, dim=1) for each in (key, value))
    q, k, v = (each[0].transpose(0, 1).contiguous() for each in (query, key, value))
    attended = varlen.varlen_attn(q, k, v, starts, starts, longest, longest, **options)
    assert isinstance(attended, torch.Tensor)
    return attended[None]

"""Vision-language models from scratch, of the real classes, small enough to learn on a CPU."""

from typing import Any

import msgspec
import torch
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
)
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from orchard.pipelines.models.errors import ModelError
from orchard.pipelines.models.picture_tokens import PICTURE_TOKENS
from orchard.pipelines.models.tiny import SHAPES, ModelShape


class VisionShape(msgspec.Struct, frozen=True, kw_only=True):
    """The dimensions of a vision tower, and the size of the pictures it is given."""

    family: str = "qwen3_vl"
    """Model family: `qwen3_vl` or `qwen2_5_vl`."""
    text: str
    """Shape of the language model, of `tiny.SHAPES`."""
    hidden_size: int
    depth: int
    heads: int
    patch: int
    """Pixels of a patch's side."""
    merge: int
    """Patches of a token's side."""
    pixels: int
    """Maximum pixels of a picture, after scaling."""
    deepstack: tuple[int, ...] = ()
    """Layers whose features go to the first layers of the language model; of Qwen3-VL alone."""
    places: int = 256
    """Learned positions of patches, a square number; of Qwen3-VL alone."""
    places_std: float | None = None
    """Standard deviation of the learned positions at the start; None: what the class sets, 0.02. Beside
    pixels that is next to nothing."""
    mean: float = 0.5
    """Mean of pixels, which is subtracted; then they are divided by `std`."""
    std: float = 0.5


SIGHTS = {
    "tiny-vision-test": VisionShape(
        text="tiny-test", hidden_size=32, depth=3, heads=2, patch=4, merge=2, pixels=32 * 32, deepstack=(0, 1)
    ),
    "tiny-vision-test-2.5": VisionShape(
        family="qwen2_5_vl",
        text="tiny-test",
        hidden_size=32,
        depth=2,
        heads=2,
        patch=4,
        merge=2,
        pixels=32 * 32,
    ),
    "tiny-vision": VisionShape(
        text="tiny-half",
        hidden_size=64,
        depth=2,
        heads=4,
        patch=8,
        merge=2,
        pixels=80 * 80,
        places=100,
        places_std=0.5,
        mean=0.85,
        std=0.25,
    ),
}
"""Presets by name. `tiny-vision` has 0.6 million parameters with 768 tokens of vocabulary, and 25 tokens
for a picture. Its pixels count from the light ground of the pages that it sees."""


def new_vision_model(
    shape: str, *, tokenizer: PreTrainedTokenizerBase, seed: int
) -> tuple[PreTrainedModel, Qwen2VLImageProcessorPil]:
    """A model in float32 with random weights of `seed`, and its image processor.

    Raises ModelError for an unknown shape, and for a tokenizer without the tokens of pictures.
    """
    if shape not in SIGHTS:
        raise ModelError(f"no model shape is named {shape!r}: choose one of {', '.join([*SHAPES, *SIGHTS])}")
    sight = SIGHTS[shape]
    text = SHAPES[sight.text]
    known = tokenizer.get_vocab()
    if missing := [token for token in PICTURE_TOKENS if token not in known]:
        raise ModelError(
            f"the tokenizer has no {missing[0]}, which stands for pictures: train one with "
            "`orchard dataset tokenizer --pictures`"
        )
    start, image, end, video = (known[token] for token in PICTURE_TOKENS)
    marks = {
        "image_token_id": image,
        "video_token_id": video,
        "vision_start_token_id": start,
        "vision_end_token_id": end,
        "tie_word_embeddings": text.tie_word_embeddings,
    }
    words = _words(text, len(tokenizer), tokenizer, sight)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: PreTrainedModel = (
            Qwen3VLForConditionalGeneration(
                Qwen3VLConfig(text_config=words, vision_config=_tower(sight, text), **marks)
            )
            if sight.family == "qwen3_vl"
            else Qwen2_5_VLForConditionalGeneration(
                Qwen2_5_VLConfig(text_config=words, vision_config=_tower(sight, text), **marks)
            )
        )
        if sight.places_std is not None:
            torch.nn.init.normal_(model.model.visual.pos_embed.weight, std=sight.places_std)
    for name in ("bos", "eos", "pad"):
        setattr(model.generation_config, f"{name}_token_id", getattr(tokenizer, f"{name}_token_id"))
    return model, _processor(sight)


def _words(
    text: ModelShape, vocabulary: int, tokenizer: PreTrainedTokenizerBase, sight: VisionShape
) -> dict[str, Any]:
    """The configuration of the language model: the three positions share its pairs of dimensions, the first
    with what is left over."""
    side = text.head_dim // 2 * 3 // 8
    sections = [text.head_dim // 2 - 2 * side, side, side]
    rope = {"rope_type": "default", "rope_theta": text.rope_theta, "mrope_section": sections}
    if sight.family == "qwen3_vl":
        rope["mrope_interleaved"] = True
    words = {
        "vocab_size": vocabulary,
        "hidden_size": text.hidden_size,
        "intermediate_size": text.intermediate_size,
        "num_hidden_layers": text.num_hidden_layers,
        "num_attention_heads": text.num_attention_heads,
        "num_key_value_heads": text.num_key_value_heads,
        "max_position_embeddings": text.max_position_embeddings,
        "rope_parameters": rope,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "tie_word_embeddings": text.tie_word_embeddings,
    }
    if sight.family == "qwen3_vl":
        words["head_dim"] = text.head_dim
    return words


def _tower(sight: VisionShape, text: ModelShape) -> dict[str, Any]:
    own: dict[str, Any] = (
        {"num_position_embeddings": sight.places, "deepstack_visual_indexes": list(sight.deepstack)}
        if sight.family == "qwen3_vl"
        else {
            "window_size": 4 * sight.patch * sight.merge,
            "fullatt_block_indexes": [sight.depth - 1],
        }
    )
    return {
        "depth": sight.depth,
        "hidden_size": sight.hidden_size,
        "intermediate_size": 3 * sight.hidden_size,
        "num_heads": sight.heads,
        "patch_size": sight.patch,
        "spatial_merge_size": sight.merge,
        "out_hidden_size": text.hidden_size,
        **own,
    }


def _processor(sight: VisionShape) -> Qwen2VLImageProcessorPil:
    return Qwen2VLImageProcessorPil(
        patch_size=sight.patch,
        merge_size=sight.merge,
        temporal_patch_size=2,
        size={"shortest_edge": (sight.patch * sight.merge) ** 2, "longest_edge": sight.pixels},
        image_mean=[sight.mean] * 3,
        image_std=[sight.std] * 3,
    )

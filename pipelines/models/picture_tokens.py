"""The tokens by which models know pictures; importable without torch."""

from typing import Any

PICTURE_TOKENS = ("<|vision_start|>", "<|image_pad|>", "<|vision_end|>", "<|video_pad|>")
"""Tokens of tokenizers for vision-language models, as Qwen's name them."""


def picture_token(config: Any) -> int | None:
    """The token that pictures consist of, by a model's configuration; None for a model of text alone."""
    token: int | None = getattr(config, "image_token_id", None)
    return token


NEVER = -1e9
"""Replaces the logit of a token that no model may say: a probability of exactly 0."""


def never_said(config: Any) -> list[int]:
    """Tokens that stand for pictures and videos: a model that said one would seem to show a picture.
    Servers and trainers exclude them alike, so that both compute the same probabilities."""
    tokens = (getattr(config, f"{kind}_token_id", None) for kind in ("image", "video"))
    size = config.get_text_config().vocab_size
    return [token for token in tokens if token is not None and token < size]

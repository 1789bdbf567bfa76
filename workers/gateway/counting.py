"""Estimates the tokens of a request, because only the upstream has the tokenizer."""

from orchard.workers.episode.pictures import picture_of_url
from orchard.workers.gateway.wire_types import ProgramRequest, as_json

_TOKEN_BYTES = 4
_TOKEN_PIXELS = 750
"""The factors from Anthropic's documentation."""


def estimated_tokens(ask: ProgramRequest) -> int:
    texts = [each.text + as_json(each.tool_calls) for each in ask.messages]
    size = sum(len(text.encode()) for text in [*texts, as_json(ask.tools)])
    pictures = (picture_of_url(url) for each in ask.messages for url in each.images)
    pixels = sum(picture.width * picture.height for picture in pictures if picture)
    return -(-size // _TOKEN_BYTES) + -(-pixels // _TOKEN_PIXELS)

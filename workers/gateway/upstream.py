"""Builds requests to the upstream from the recorded path, never from the program's copy of it. Pure.

So at each call the model reads its own reasoning, its arguments as it wrote them and the same masked keys,
and prompts share prefixes.
"""

import re
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import msgspec

from orchard.schemas.campaigns import ModelSpec
from orchard.workers.episode.prompts import text_part, url_part
from orchard.workers.gateway.wire_types import ProgramRequest

_MARK = re.compile(r"\[image [0-9a-f]+\]")


def messages_of(messages: Sequence[dict[str, Any]], images: Mapping[str, str]) -> list[dict[str, Any]]:
    """Returns chat messages for the upstream. `images` maps marks to URLs of pictures that are not in the
    record; those in a tool's result follow in a user message, because a result is text."""
    sent: list[dict[str, Any]] = []
    shown: list[dict[str, Any]] = []
    for message in messages:
        if message["role"] != "tool" and shown:
            sent.append({"role": "user", "content": shown})
            shown = []
        content = message["content"]
        parts = [text_part(content)] if isinstance(content, str) else content
        found = _found(parts, images) if images else []
        if message["role"] == "tool":
            shown += [part for mark in found for part in (text_part(mark), url_part(images[mark]))]
        elif message["role"] in ("user", "system") and found:
            split = (_parts(part["text"], images) if "text" in part else [part] for part in parts)
            message = message | {"content": [*chain.from_iterable(split)]}
        sent.append(message)
    return [*sent, {"role": "user", "content": shown}] if shown else sent


def _found(parts: Sequence[dict[str, Any]], images: Mapping[str, str]) -> list[str]:
    return [mark for part in parts for mark in _MARK.findall(part.get("text", "")) if mark in images]


def _parts(text: str, images: Mapping[str, str]) -> list[dict[str, Any]]:
    parts, at = list[dict[str, Any]](), 0
    for mark in _MARK.finditer(text):
        if (url := images.get(mark[0])) is None:
            continue
        parts += [text_part(before)] if (before := text[at : mark.start()]) else []
        parts.append(url_part(url))
        at = mark.end()
    return parts + ([text_part(text[at:])] if text[at:] else [])


def sampling_of(ask: ProgramRequest, spec: ModelSpec) -> tuple[ModelSpec, dict[str, Any]]:
    """Returns the model with the lower of two token limits, and the fields that a program adds to its
    request. The campaign's temperature overrides the program's, so that harnesses can be compared."""
    limits = [limit for limit in (spec.max_tokens, ask.max_tokens) if limit is not None]
    sampled = {"temperature": ask.temperature, "top_p": ask.top_p}
    given = {name: value for name, value in sampled.items() if value is not None}
    return msgspec.structs.replace(spec, max_tokens=min(limits, default=None)), given | ask.fields

"""Reads the token counts of a reply. Pure. A count that is missing or cannot be true is not known."""

from collections.abc import Mapping
from typing import Any

from orchard.schemas.llm_calls import Usage

_MOST_TOKENS = 10**9
_BESIDE = ("cache_read_input_tokens", "cache_creation_input_tokens")


def usage_of(raw: object, *, said: bool) -> Usage:
    """Returns the counts under `usage`, in OpenAI's words or in Anthropic's. `said` tells whether the answer
    holds anything: if it does, it has tokens, as every prompt has."""
    found = raw if isinstance(raw, Mapping) else {}
    prompt, cached = _read(found)
    completion = _sampled(found, prompt)
    details = _inside(found, "completion_tokens_details", "output_tokens_details")
    reasoning = _count(details, "reasoning_tokens") or _count(found, "reasoning_tokens")
    return Usage(
        prompt_tokens=_at_least(cached, prompt) or None,
        completion_tokens=_at_least(reasoning, completion if completion or not said else None),
        cached_tokens=cached,
        reasoning_tokens=reasoning,
    )


def _sampled(usage: Mapping[str, Any], prompt: int | None) -> int | None:
    """Returns the tokens that were sampled. Gemini and xAI count the thoughts among them in the total
    alone."""
    completion, total = _count(usage, "completion_tokens", "output_tokens"), _count(usage, "total_tokens")
    if completion is None or prompt is None or total is None:
        return completion
    return max(completion, total - prompt)


def _read(usage: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """Returns the tokens of the prompt, and those of them that came from a cache. Anthropic counts what its
    cache has read and written beside the others, OpenAI within."""
    cached = _count(_inside(usage, "prompt_tokens_details", "input_tokens_details"), "cached_tokens")
    if "prompt_tokens" in usage or "input_tokens" not in usage:
        return _count(usage, "prompt_tokens"), cached
    fresh, read, written = (_count(usage, name) for name in ("input_tokens", *_BESIDE))
    unread = any(usage.get(name) is not None and _count(usage, name) is None for name in _BESIDE)
    beside = (read or 0) + (written or 0)
    return (None if fresh is None or unread else fresh + beside), read if read is not None else cached


def _inside(usage: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    found = (usage.get(name) for name in names)
    return next((one for one in found if isinstance(one, Mapping)), {})


def _count(usage: Mapping[str, Any], *names: str) -> int | None:
    """Returns the first of the counts that is present, if it is valid: no text, no fraction, not below
    zero."""
    value = next((usage[name] for name in names if name in usage), None)
    return value if type(value) is int and 0 <= value <= _MOST_TOKENS else None


def _at_least(part: int | None, whole: int | None) -> int | None:
    """Returns `whole`, unless it is less than its part and so cannot be true."""
    return None if part is not None and whole is not None and whole < part else whole

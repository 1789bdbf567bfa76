"""Reads how an answer ends, and whether a reply reports a failure. Pure.

The finish reasons are an allow-list: any other value is no ending.
"""

from collections.abc import Iterator, Mapping
from typing import Any

UNPARSED = "unparsed"
"""Finish reason of an answer that its server could not parse: Orchard's word, no server's."""
_ENDINGS = {
    "stop": ("eos", "eos_token", "stop_sequence", "end_turn"),
    "length": ("max_tokens", "model_length"),
    "tool_calls": ("tool_use",),
    "function_call": (),
    "content_filter": ("safety", "sensitive"),
    UNPARSED: ("malformed_function_call", "malformed_tool_use", "malformed_model_output"),
}
"""OpenAI's words, and what servers of its API write for the same, some in capitals: Together (eos), TGI
(eos_token, stop_sequence), routers that pass on Anthropic's and Gemini's words, Mistral (model_length), Z.ai
(sensitive), Gemini and Bedrock for a call that they cannot parse (malformed_...). Not among them: vLLM's and
SGLang's `abort`, OpenRouter's `error`, Ollama's `load`, DeepSeek's `insufficient_system_resource`, Z.ai's
`network_error`."""
_KNOWN = {word: ending for ending, others in _ENDINGS.items() for word in (ending, *others)}
_FILTER = "function_call_filter: "
"""Prefix of Gemini's finish reason in its OpenAI-compatible API."""
_NOT_YET = ("", "null")


def ending(reason: object) -> str | None:
    """Returns OpenAI's word for a `finish_reason`, which SGLang's engine writes as an object with a `type`.
    None if it is no known ending."""
    word = reason.get("type") if isinstance(reason, Mapping) else reason
    return _KNOWN.get(word.lower().removeprefix(_FILTER)) if isinstance(word, str) else None


def is_given(reason: object) -> bool:
    """Whether a `finish_reason` has a value: chunks before the last one have none."""
    return reason is not None and not (isinstance(reason, str) and reason.lower() in _NOT_YET)


def failure(reply: object) -> object:
    """Returns the failure that a decoded reply, or a chunk of a stream, reports anywhere; None without
    one."""
    if isinstance(reply, Mapping) and reply.get("object") == "error":
        return reply
    return next((place["error"] for place in _places(reply) if _is_error(place.get("error"))), None)


def _places(reply: object) -> Iterator[Mapping[str, Any]]:
    """Yields the objects in which servers put an `error`."""
    if not isinstance(reply, Mapping):
        return
    yield reply
    choices = reply.get("choices")
    for choice in choices if isinstance(choices, list) else ():
        if isinstance(choice, Mapping):
            parts = (choice, choice.get("message"), choice.get("delta"))
            yield from (part for part in parts if isinstance(part, Mapping))


def _is_error(value: object) -> bool:
    """Whether an `error` reports one: null, "" and objects of such values do not."""
    return any(map(bool, value.values())) if isinstance(value, Mapping) else bool(value)

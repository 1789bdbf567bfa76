"""Reads a generated text back into a message, by the form in which the chat template writes one.

The form is Qwen's and Hermes's: `<think>` text `</think>`, then text, then `<tool_call>` JSON
`</tool_call>` for each call. What does not follow it to the letter stays text: a half-made call is not
repaired.
"""

import re

import msgspec

from orchard.schemas.decoding import Unreadable, decode
from orchard.schemas.identity import digest
from orchard.schemas.messages import ToolCall

_THINKING = re.compile(r"\s*<think>\n?(.*?)\n?</think>\n*(.*)", re.DOTALL)
_OPENED = re.compile(r"(.*?)\n?</think>\n*(.*)", re.DOTALL)
_CALL = re.compile(r"\s*<tool_call>(.*?)</tool_call>", re.DOTALL)
_OPEN, _CLOSE = "<tool_call>", "</tool_call>"


class _Call(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    arguments: msgspec.Raw


_CALLS = msgspec.json.Decoder(_Call)


class AssistantMessage(msgspec.Struct, frozen=True, kw_only=True):
    """An assistant message with OpenAI's fields."""

    content: str
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()


def read_message(
    text: str, *, calls: bool, thinking: bool, source: object, opened: bool = False
) -> AssistantMessage:
    """The message in `text`, which has no end mark.

    `calls` and `thinking` say whether the template writes them at all; `opened`, that the prompt has begun
    the thinking already. `source` is hashed into the calls' ids: equal answers to equal prompts have equal
    ids.
    """
    reasoning = ""
    if thinking and (match := (_OPENED if opened else _THINKING).fullmatch(text)):
        reasoning, text = match[1], match[2]
    if calls and _OPEN in text:
        before = text.index(_OPEN)
        found = _read_calls(text[before:], source)
        if found is not None:
            return AssistantMessage(
                content=text[:before].removesuffix("\n"), reasoning=reasoning, tool_calls=found
            )
    return AssistantMessage(content=text, reasoning=reasoning)


def _read_calls(text: str, source: object) -> tuple[ToolCall, ...] | None:
    """All calls of a text that consists of calls; None when anything in it is something else."""
    calls: list[ToolCall] = []
    end = 0
    for match in _CALL.finditer(text):
        if match.start() != end:
            return None
        end = match.end()
        try:
            call = decode(_CALLS, match[1].strip().encode())
        except (Unreadable, UnicodeEncodeError):
            return None
        arguments = bytes(call.arguments).decode()
        if not arguments.startswith("{"):
            return None
        name = f"call_{digest([source, len(calls)])}"
        calls.append(ToolCall(id=name, name=call.name, arguments=arguments))
    return tuple(calls) if calls and not text[end:].strip() else None

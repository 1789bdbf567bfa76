"""Reads a generated text back into a message, by the form in which the chat template writes one.

That is `<think>` text `</think>`, then text, then the calls in the form of the model's family. What does not
follow it to the letter stays text: a half-made call is not repaired.
"""

import json
import re
from collections.abc import Callable

import msgspec

from orchard.schemas.decoding import Unreadable, decode
from orchard.schemas.identity import digest
from orchard.schemas.messages import ToolCall

_THINKING = re.compile(r"\s*<think>\n?(.*?)\n?</think>\n*(.*)", re.DOTALL)
_OPENED = re.compile(r"(.*?)\n?</think>\n*(.*)", re.DOTALL)
_CALL = re.compile(r"\s*<tool_call>(.*?)</tool_call>", re.DOTALL)
_FENCED = re.compile(
    r"\n?<｜tool▁call▁begin｜>function<｜tool▁sep｜>([^\n]*)\n```json\n(.*?)\n```<｜tool▁call▁end｜>",
    re.DOTALL,
)
_FENCED_CALLS = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")

_ID_LENGTH = 9
"""Mistral's templates take ids of nine letters and digits, and no others."""


class _Call(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    arguments: msgspec.Raw


class _Parameters(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    parameters: msgspec.Raw


class _Numbered(_Call, forbid_unknown_fields=True):
    id: str = ""


Found = list[tuple[str, msgspec.Raw]]
"""Name and arguments of each call."""


def _tagged(text: str) -> Found | None:
    """Qwen's and Hermes's: JSON between tags."""
    found: Found = []
    end = 0
    for match in _CALL.finditer(text):
        if match.start() != end:
            return None
        end = match.end()
        call = decode(msgspec.json.Decoder(_Call), match[1].strip().encode())
        found.append((call.name, call.arguments))
    return None if text[end:].strip() else found


def _listed(text: str) -> Found | None:
    """Mistral's: a list in JSON."""
    calls = decode(msgspec.json.Decoder(list[_Numbered]), text.removeprefix("[TOOL_CALLS]").strip().encode())
    return [(call.name, call.arguments) for call in calls]


def _fenced(text: str) -> Found | None:
    """DeepSeek-V3's: JSON in fences between control tokens."""
    begin, close = _FENCED_CALLS
    text = text.strip()
    if not text.endswith(close):
        return None
    text, end, found = text[len(begin) : -len(close)], 0, []
    for match in _FENCED.finditer(text):
        if match.start() != end:
            return None
        end = match.end()
        found.append((match[1], msgspec.Raw(match[2].encode())))
    return None if text[end:] else found


def _bare(text: str) -> Found | None:
    """Llama's: objects of JSON with `parameters`, and `;` between them."""
    found: Found = []
    while text:
        _, end = json.JSONDecoder().raw_decode(text)
        call = decode(msgspec.json.Decoder(_Parameters), text[:end].encode())
        found.append((call.name, call.parameters))
        text = text[end:].strip()
        if text and not text.startswith(";"):
            return None
        text = text.removeprefix(";").strip()
    return found


FORMS: dict[str, Callable[[str], Found | None]] = {
    "<tool_call>": _tagged,
    "[TOOL_CALLS]": _listed,
    _FENCED_CALLS[0]: _fenced,
    '{"name": "': _bare,
}
"""How calls are read, by the text with which they begin. Each returns None for a text that is something else
besides calls, or raises."""


def form_of(written: str) -> str | None:
    """The form of FORMS in which an answer was written."""
    return next((opening for opening in FORMS if opening in written), None)


class AssistantMessage(msgspec.Struct, frozen=True, kw_only=True):
    """An assistant message with OpenAI's fields."""

    content: str
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()


def read_message(
    text: str, *, calls: str | None, thinking: bool, source: object, opened: bool = False
) -> AssistantMessage:
    """The message in `text`, which has no end mark.

    `calls` is the form of FORMS, None where the template writes none; `thinking` says whether it writes
    thinking at all; `opened`, that the prompt has begun
    the thinking already. `source` is hashed into the calls' ids: equal answers to equal prompts have equal
    ids.
    """
    reasoning = ""
    if thinking and (match := (_OPENED if opened else _THINKING).fullmatch(text)):
        reasoning, text = match[1], match[2]
    if calls and calls in text:
        before = text.index(calls)
        found = _read_calls(text[before:], FORMS[calls], source)
        if found:
            return AssistantMessage(
                content=text[:before].removesuffix("\n"), reasoning=reasoning, tool_calls=found
            )
    return AssistantMessage(content=text, reasoning=reasoning)


def _read_calls(text: str, read: Callable[[str], Found | None], source: object) -> tuple[ToolCall, ...]:
    """All calls of a text that consists of calls; none when anything in it is something else."""
    try:
        found = read(text) or []
        written = [(name, _json_object(arguments)) for name, arguments in found]
    except (Unreadable, ValueError, RecursionError):
        return ()
    return tuple(
        ToolCall(id=digest([source, number])[:_ID_LENGTH], name=name, arguments=arguments)
        for number, (name, arguments) in enumerate(written)
    )


def _json_object(raw: msgspec.Raw) -> str:
    """The text of an object in JSON. Raises Unreadable or ValueError for anything else."""
    decode(msgspec.json.Decoder(dict[str, msgspec.Raw]), bytes(raw))
    return bytes(raw).decode()

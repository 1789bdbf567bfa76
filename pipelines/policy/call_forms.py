"""The forms in which models write calls, and how each is read.

Each reader returns None for a text that is something else besides calls, or raises.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from orchard.schemas.decoding import decode

Found = list[tuple[str, msgspec.Raw]]
"""Name and arguments of each call."""
Tools = Sequence[Mapping[str, Any]]

_CALL = re.compile(r"\s*<tool_call>(.*?)</tool_call>", re.DOTALL)
_FENCED = re.compile(
    r"\n?<｜tool▁call▁begin｜>function<｜tool▁sep｜>([^\n]*)\n```json\n(.*?)\n```<｜tool▁call▁end｜>",
    re.DOTALL,
)
_FENCED_CALLS = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")


@dataclass(frozen=True)
class CallForm:
    opening: str
    """The text with which calls begin."""
    read: Callable[[str, Tools], Found | None]
    """Reads a text that begins with `opening`, of a model that was offered these tools."""


class _Call(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    arguments: msgspec.Raw


class _Parameters(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    parameters: msgspec.Raw


class _Numbered(_Call, forbid_unknown_fields=True):
    id: str = ""


def _tagged(text: str, _: Tools) -> Found | None:
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


def _listed(text: str, _: Tools) -> Found | None:
    """Mistral's: a list in JSON."""
    calls = decode(msgspec.json.Decoder(list[_Numbered]), text.removeprefix("[TOOL_CALLS]").strip().encode())
    return [(call.name, call.arguments) for call in calls]


def _fenced(text: str, _: Tools) -> Found | None:
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


def _bare(text: str, _: Tools) -> Found | None:
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


TAGGED = CallForm("<tool_call>", _tagged)
FORMS = (
    TAGGED,
    CallForm("[TOOL_CALLS]", _listed),
    CallForm(_FENCED_CALLS[0], _fenced),
    CallForm('{"name": "', _bare),
)


def form_of(written: str) -> CallForm | None:
    """The form of FORMS in which an answer was written."""
    return next((form for form in FORMS if form.opening in written), None)

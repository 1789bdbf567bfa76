"""Reads calls in a form that is learned from a chat template: from what it writes for calls that are known.

Between the words of a call (its name, the names and values of its arguments) a template writes fixed text.
Arguments stand as one object in JSON, or one by one: then texts are bare, and other values are JSON.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from orchard.pipelines.policy.call_forms import CallForm, Found, Tools

Calls = Sequence[tuple[str, Mapping[str, Any]]]
"""Name and arguments of each call."""
Write = Callable[[Calls], str]
"""Writes an answer of calls alone, as the template does, without its end mark. Raises ValueError."""

_WORD = re.compile(r"[^\s<>{}\[\]()\"'|]+")
_PYTHON = {"True": "true", "False": "false", "None": "null"}
_TYPES = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}
_ONE, _TWO = ("probe", {"alpha": "one"}), ("other", {"beta": "two"})
_TOOLS = [
    {
        "name": "probe",
        "parameters": {"properties": {"alpha": {"type": "string"}, "beta": {"type": ["object", "integer"]}}},
    }
]
_PROOFS: tuple[Calls, ...] = (
    [_ONE],
    [("probe", {})],
    [("probe", {"alpha": "12", "beta": 12})],
    [("probe", {"alpha": 'a "b"\n\n<c> \\d', "beta": {"c": [1, None, "é"]}})],
)


def learned_form(write: Write, id_of: str) -> CallForm | None:
    """The form in which calls are written, None where it is not understood: every call of a few that differ
    must be read back as it was, and two calls as they were or not at all. `id_of` is a pattern of the ids
    that `write` gives calls."""
    for learn in (_objects, _values):
        try:
            form = learn(write, id_of)
            if form is None or not all(_read(form, write(calls)) == list(calls) for calls in _PROOFS):
                continue
            if _leaves_several(form, write):
                return form
        except ValueError:
            continue
    return None


def _read(form: CallForm, text: str) -> list[tuple[str, Any]] | None:
    at = text.find(form.opening)
    found = form.read(text[at:], _TOOLS) if at >= 0 else None
    return None if found is None else [(name, json.loads(bytes(raw))) for name, raw in found]


def _leaves_several(form: CallForm, write: Write) -> bool:
    """Whether two calls are read as they were, or not read."""
    calls = [_ONE, _TWO]
    try:
        return _read(form, write(calls)) in (None, calls)
    except ValueError:
        return True


@dataclass(frozen=True)
class _Frame:
    """Fixed text around calls. White space in it counts as any white space."""

    opening: str
    named: re.Pattern[str]
    """What follows a name."""
    another: re.Pattern[str] | None
    """What stands between two calls, None where an answer has one call."""
    closing: re.Pattern[str]

    def read(self, text: str, arguments: Callable[[str, str, int], tuple[msgspec.Raw, int]]) -> Found | None:
        """Read calls; `arguments` reads those of the named tool, from a place in the text, and returns where
        they end. Raises ValueError."""
        found: Found = []
        at = len(self.opening)
        while True:
            name = _WORD.match(text, at)
            if name is None:
                return None
            # The longest name that is followed by what follows a name.
            for end in range(name.end(), name.start(), -1):
                if named := self.named.match(text, end):
                    break
            else:
                return None
            raw, at = arguments(text[name.start() : end], text, named.end())
            found.append((text[name.start() : end], raw))
            if (closed := self.closing.match(text, at)) and not text[closed.end() :].strip():
                return found
            if self.another is None or not (following := self.another.match(text, at)):
                return None
            at = following.end()


def _objects(write: Write, id_of: str) -> CallForm | None:
    """Arguments as an object in JSON."""
    text = write([_ONE])
    for written in (json.dumps(_ONE[1]), json.dumps(_ONE[1], separators=(",", ":"))):
        if written in text:
            break
    else:
        return None
    opening, mid, closing = _cut(text, _ONE[0], written)
    other = written.replace("alpha", "beta").replace("one", "two")
    frame = _frame(write, opening, mid, closing, (written, _TWO[0], other), id_of)

    def arguments(_: str, text: str, at: int) -> tuple[msgspec.Raw, int]:
        end = json.JSONDecoder().raw_decode(text, at)[1]
        return msgspec.Raw(text[at:end].encode()), end

    return CallForm(frame.opening, lambda text, _: frame.read(text, arguments)) if frame else None


def _values(write: Write, id_of: str) -> CallForm | None:
    """Arguments one by one."""
    text = write([("probe", {**_ONE[1], **_TWO[1]})])
    opening, mid, paired, following, again, closing = _cut(text, "probe", "alpha", "one", "beta", "two")
    before_key = _prefix(mid[::-1], following[::-1])[::-1]
    value_end = following.removesuffix(before_key)
    if paired != again or not paired or not before_key or not value_end or not closing.startswith(value_end):
        return None
    closing = closing.removeprefix(value_end)
    mid = mid.removesuffix(before_key)
    frame = _frame(write, opening, mid, closing, (f"one{value_end}", _TWO[0], ""), id_of)
    if frame is None:
        return None
    begins = re.compile(_loose(before_key) if before_key.strip() else re.escape(before_key))
    ends = re.compile(
        f"{re.escape(value_end)}(?={begins.pattern}|{frame.closing.pattern}"
        + (f"|{frame.another.pattern})" if frame.another else ")")
    )

    def read(text: str, tools: Tools) -> Found | None:
        def arguments(name: str, text: str, at: int) -> tuple[msgspec.Raw, int]:
            found: dict[str, Any] = {}
            while begun := begins.match(text, at):
                key_end = text.index(paired, begun.end())
                value_at = key_end + len(paired)
                end = ends.search(text, value_at)
                if end is None:
                    raise ValueError("a value does not end")
                key = text[begun.end() : key_end]
                found[key] = _value(text[value_at : end.start()], _types(tools, name, key))
                at = end.end()
            return msgspec.Raw(json.dumps(found, ensure_ascii=False).encode()), at

        return frame.read(text, arguments)

    return CallForm(frame.opening, read)


def _frame(
    write: Write, opening: str, mid: str, closing: str, calls: tuple[str, str, str], id_of: str
) -> _Frame | None:
    """`calls` has the end of the first call's words, the name of the second and the end of its words."""
    lead = _prefix(opening, write([]))
    opening = opening.removeprefix(lead).strip()
    if not opening or re.search(id_of, opening):
        return None
    try:
        _, another, _ = _cut(write([_ONE, _TWO]), *calls[:2])
    except ValueError:
        another = None
    named = re.sub(r"\d+", r"\\d+", _loose(mid, id_of))
    return _Frame(
        opening,
        re.compile(named),
        re.compile(_loose(another, id_of)) if another is not None else None,
        re.compile(_loose(closing, id_of)),
    )


def _prefix(first: str, second: str) -> str:
    """The text with which both begin."""
    while not second.startswith(first):
        first = first[:-1]
    return first


def _cut(text: str, *words: str) -> list[str]:
    """The texts around words that follow one another. Raises ValueError where one is missing."""
    pieces = []
    for word in words:
        before, found, text = text.partition(word)
        if not found:
            raise ValueError(f"{word} is not written")
        pieces.append(before)
    return [*pieces, text]


def _loose(text: str, id_of: str = "") -> str:
    """A pattern of a text in which any white space stands for white space, and any id for an id."""
    pattern = r"\s*".join(re.escape(part) for part in re.split(r"\s+", text))
    return re.sub(id_of, lambda _: r"[^\s<>\"']*", pattern) if id_of else pattern


def _types(tools: Tools, name: str, key: str) -> set[str]:
    """Types of JSON that a tool's argument may have; of an argument that no tool has, `string`."""
    for tool in tools:
        function = tool.get("function", tool)
        if function.get("name") == name:
            properties = (function.get("parameters") or {}).get("properties") or {}
            if isinstance(schema := properties.get(key), Mapping):
                return set(_schema_types(schema))
    return {"string"}


def _schema_types(schema: Mapping[str, Any]) -> Sequence[str]:
    kinds = schema.get("type") or []
    found = [kinds] if isinstance(kinds, str) else list(kinds)
    for choice in (*(schema.get("anyOf") or ()), *(schema.get("oneOf") or ())):
        found += _schema_types(choice)
    return found


def _value(text: str, types: set[str]) -> Any:
    """A value of one of the types, of any type where none are known; a text where it is nothing else."""
    if types == {"string"}:
        return text
    try:
        value = json.loads(_PYTHON.get(text.strip(), text))
    except (ValueError, RecursionError):
        return text
    kind = _TYPES.get(type(value), "array" if isinstance(value, list) else "object")
    fits = not types or kind in types or (kind == "integer" and "number" in types)
    return text if "string" in types and not fits else value

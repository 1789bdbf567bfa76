"""Writes the reference of events."""

import re
from enum import Enum
from typing import get_type_hints

import msgspec

from orchard.configuration.fields import describe, docstrings, named, summary
from orchard.reference.glossary import FIELDS
from orchard.reference.page import anchor, code, page, table
from orchard.schemas.events import EVENT_TYPES, Event

_INTRODUCTION = """\
Everything that happens is an event: an immutable JSON record in the NATS stream `ORCHARD_EVENTS` and a
row of the table [`events`](tables.md#events). The envelope uses the attribute names of CloudEvents;
`type` says which of the payloads below is in `data`. Fields are only ever added, with a default, so a
field that has a default may be missing. A type that a version does not know is kept as it is. The
subjects are in [asyncapi.json](../schemas/asyncapi.json), the JSON Schema in
[schema.json](../schemas/schema.json)."""

_KINDS = {struct.__name__: kind for kind, struct in EVENT_TYPES.items()}


def events() -> str:
    """Text of the page: the envelope, each event type, and the records inside them."""
    types = [(f"[`{kind}`]({anchor(kind)})", summary(struct)) for kind, struct in EVENT_TYPES.items()]
    sections = [f"### {kind}\n\n{summary(each)}\n\n{_fields(each)}" for kind, each in EVENT_TYPES.items()]
    shared = [
        f"### {one.__name__}\n\n{summary(one)}\n\n{_members(one) if issubclass(one, Enum) else _fields(one)}"
        for one in sorted(_parts(), key=lambda one: one.__name__)
    ]
    return page(
        "Events",
        _INTRODUCTION,
        "## The envelope",
        _fields(Event),
        "## Types",
        table(("type", "what happened"), types),
        *sections,
        "## Parts of events",
        *shared,
    )


def _parts() -> set[type[msgspec.Struct] | type[Enum]]:
    """Structs and enumerations among the types of fields, at any depth."""
    found: set[type[msgspec.Struct] | type[Enum]] = set()
    waiting: list[type[msgspec.Struct]] = [Event, *EVENT_TYPES.values()]
    while waiting:
        hints = get_type_hints(waiting.pop(), include_extras=True).values()
        new = {one for hint in hints for one in named(hint)} - found
        found |= new
        waiting += [one for one in new if issubclass(one, msgspec.Struct)]
    return found - set(EVENT_TYPES.values())


def _fields(struct: type[msgspec.Struct]) -> str:
    rows = [
        (
            code(one.name),
            _linked(one.type),
            code("null" if one.default == "none" else one.default),
            one.meaning,
        )
        for one in describe(struct, FIELDS)
    ]
    return table(("field", "type", "default", "meaning"), rows)


def _linked(words: str) -> str:
    """Describes a field's type, with a link if it is the payload of an event."""

    def section(link: re.Match[str]) -> str:
        kind = _KINDS.get(link[1])
        return f"[`{kind}`]({anchor(kind)})" if kind else link[0]

    return re.sub(r"\[(\w+)\]\(#\w+\)", section, words)


def _members(enumeration: type[Enum]) -> str:
    said = docstrings(enumeration)
    return table(("value", "meaning"), [(code(one.value), said.get(one.name, "")) for one in enumeration])

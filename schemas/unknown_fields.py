"""Tells which unknown fields of a request ask for something that only a later version can do (decision 0073).

A field that a version adds has a default that stands for "as before": null, false, 0 or something empty. So
the version before may pass over an unknown field with such a value, and over no other: whoever wrote it means
something by it.
"""

from functools import cache
from typing import Any

import msgspec

from orchard.schemas.decoding import Unreadable, decode

_ANY: msgspec.json.Decoder[Any] = msgspec.json.Decoder()


def is_as_before(value: object) -> bool:
    """Whether a field with this value asks for nothing."""
    return value in (None, False, 0, "", [], {}, ())


def known_part(document: bytes, kind: type[msgspec.Struct]) -> tuple[bytes, list[str]]:
    """Removes the fields that `kind`, and the structs in it, do not have from a JSON document; returns it
    with the paths of those that ask for something. Other faults of the document stay."""
    try:
        value = decode(_ANY, document)
        unknown: list[str] = []
        asked: list[str] = []
        known = _known(value, kind, "", unknown, asked)
        return (msgspec.json.encode(known), asked) if unknown else (document, [])
    except (Unreadable, ValueError, OverflowError, RecursionError):
        return document, []  # the reader of `kind` says what is wrong


def _known(value: Any, kind: Any, path: str, unknown: list[str], asked: list[str]) -> Any:
    if not isinstance(value, dict):
        return value
    fields = _fields(kind)
    found = {}
    for name, inner in value.items():
        place = f"{path}{name}"
        if name in fields:
            of = fields[name]
            found[name] = inner if of is None else _known(inner, of, f"{place}.", unknown, asked)
        else:
            unknown.append(place)
            if not is_as_before(inner):
                asked.append(place)
    return found


@cache
def _fields(kind: type[msgspec.Struct]) -> dict[str, type[msgspec.Struct] | None]:
    """Maps the wire name of each field of a struct to the struct that the field holds, if it holds one."""
    info = msgspec.inspect.type_info(kind)
    assert isinstance(info, msgspec.inspect.StructType)
    return {each.encode_name: _struct(each.type) for each in info.fields}


def _struct(type_: msgspec.inspect.Type) -> type[msgspec.Struct] | None:
    """Returns the one struct that a field holds, None for several: these are tagged, and an unknown tag is an
    error."""
    if isinstance(type_, msgspec.inspect.Metadata):
        return _struct(type_.type)
    if isinstance(type_, msgspec.inspect.UnionType):
        found = [inner for inner in map(_struct, type_.types) if inner is not None]
        return found[0] if len(found) == 1 else None
    if isinstance(type_, msgspec.inspect.StructType) and type_.tag is None:
        return type_.cls
    return None

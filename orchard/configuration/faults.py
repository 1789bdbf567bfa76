"""Finds where a tree of plain values is not what a type wants, and says what is wrong there.

msgspec names a place inside a table of free names as `[...]`; here each such table is looked into.
"""

import types
from collections.abc import Iterator
from difflib import get_close_matches
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin

import msgspec


class ConfigFault(NamedTuple):
    """A value that cannot be."""

    path: tuple[str, ...]
    reason: str


def fault(value: Any, shape: Any, path: tuple[str, ...] = ()) -> ConfigFault | None:
    """The first value that its type refuses, as deep as it can be named; None where there is none."""
    try:
        msgspec.convert(value, shape)
        return None
    except msgspec.ValidationError as error:
        reason = str(error).partition(" - at `$")[0]
    for key, inner, kind in _inside(value, shape):
        if kind is None:
            return ConfigFault((*path, key), _no_key(path, key, inner))
        if found := fault(inner, kind, (*path, key)):
            return found
    return ConfigFault(path, _quoted(value, shape) or reason)


def members(shape: Any) -> list[Any]:
    """The types that an annotation allows."""
    if get_origin(shape) is Annotated:
        return members(get_args(shape)[0])
    if get_origin(shape) in (Union, types.UnionType):
        return [one for each in get_args(shape) for one in members(each)]
    return [shape]


def parts(shape: Any) -> dict[str, Any]:
    """The types of a struct's fields by their names; of a dictionary with names as keys under `*`."""
    if isinstance(shape, type) and issubclass(shape, msgspec.Struct):
        return {field.encode_name: field.type for field in msgspec.structs.fields(shape)}
    return {"*": get_args(shape)[1]} if get_origin(shape) is dict else {}


def _inside(value: Any, shape: Any) -> Iterator[tuple[str, Any, Any]]:
    """Key, value and type of what is in a table; where there is no such key no type, and the keys that there
    are in place of the value."""
    for kind in members(shape):
        known = parts(kind)
        if known and isinstance(value, dict):
            for key, inner in value.items():
                wanted = known.get(key, known.get("*"))
                yield (key, list(known), None) if wanted is None else (key, inner, wanted)


def _no_key(path: tuple[str, ...], key: str, known: list[str]) -> str:
    close = get_close_matches(key, known, n=1, cutoff=0.6)
    hint = f", did you mean {'.'.join((*path, close[0]))}?" if close else ""
    return f"there is no such key{hint}"


def _quoted(value: Any, shape: Any) -> str:
    """The mistake of a number or truth value in quotes; empty for any other. Other texts may be secrets, and
    are not repeated."""
    if not isinstance(value, str) or str in members(shape):
        return ""
    try:
        meant = msgspec.convert(value, shape, strict=False)
    except msgspec.ValidationError:
        return ""
    text = str(meant).lower() if isinstance(meant, bool) else repr(meant)
    return f"Expected a value without quotes, got the text {value!r}: did you mean {text}?"

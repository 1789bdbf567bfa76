"""Finds the first value in a tree that its type refuses, and describes the fault.

msgspec names a place inside a table of free names as `[...]`; here each such table is looked into.
"""

import types
from collections.abc import Iterator
from difflib import get_close_matches
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin

import msgspec


class ConfigFault(NamedTuple):
    """A value that its type refuses."""

    path: tuple[str, ...]
    reason: str


def fault(value: Any, shape: Any, path: tuple[str, ...] = ()) -> ConfigFault | None:
    """Finds the first value that its type refuses, as deep as it can be named; None if there is none."""
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
    if get_origin(shape) is Annotated:
        return members(get_args(shape)[0])
    if get_origin(shape) in (Union, types.UnionType):
        return [one for each in get_args(shape) for one in members(each)]
    return [shape]


def parts(shape: Any) -> dict[str, Any]:
    """Types of a struct's fields by name; of a dictionary's values under `*`."""
    if isinstance(shape, type) and issubclass(shape, msgspec.Struct):
        return {field.encode_name: field.type for field in msgspec.structs.fields(shape)}
    return {"*": get_args(shape)[1]} if get_origin(shape) is dict else {}


def _inside(value: Any, shape: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yields key, value and type of each entry of a table. For an unknown key the type is None and the
    value is the list of known keys."""
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
    """Describes a number or boolean in quotes; empty for other texts, which may be secrets and are not
    repeated."""
    if not isinstance(value, str) or str in members(shape):
        return ""
    try:
        meant = msgspec.convert(value, shape, strict=False)
    except msgspec.ValidationError:
        return ""
    text = str(meant).lower() if isinstance(meant, bool) else repr(meant)
    return f"Expected a value without quotes, got the text {value!r}: did you mean {text}?"

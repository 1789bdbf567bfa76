"""Finds the first value in a tree that its type refuses, and describes the fault.

msgspec names a place inside a table of free names as `[...]`; here each such table is looked into.
"""

import math
import re
import types
from collections.abc import Iterator
from difflib import get_close_matches
from enum import Enum
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

import msgspec


class ConfigFault(NamedTuple):
    """A value that its type refuses."""

    path: tuple[str, ...]
    reason: str

    @property
    def key(self) -> str:
        """Dotted key, with the number of an entry of a list as `[0]`."""
        return ".".join(self.path).replace(".[", "[")


_SECRET = re.compile("key|token|secret|password|_env$|url|replicas|header", re.IGNORECASE)
"""Keys whose values may be secrets, or have some inside: they are not repeated."""
_SHOWN = 60
_UNIT = re.compile(r"(\d+(?:\.\d+)?) ?([A-Za-z]{1,3})")
_SECONDS = {"ms": 0.001, "s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}


def fault_sentence(value: Any, shape: Any, error: msgspec.ValidationError) -> str:
    """Key and reason of the first value that its type refuses, with the value and what may be meant."""
    found = fault(value, shape) or ConfigFault((), str(error))
    return ": ".join(filter(None, (found.key, found.reason)))


def not_finite(value: Any, path: tuple[str, ...] = ()) -> str | None:
    """Dotted key of the first number in a tree that is not finite, which JSON cannot hold; None without."""
    if isinstance(value, float):
        return None if math.isfinite(value) else ConfigFault(path, "").key
    if isinstance(value, dict):
        inner = [(str(key), one) for key, one in value.items()]
    else:
        inner = [(f"[{at}]", one) for at, one in enumerate(value)] if isinstance(value, list | tuple) else []
    return next((key for name, one in inner if (key := not_finite(one, (*path, name)))), None)


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
        if not isinstance(inner, dict) and key in _named(shape):
            meant = ConfigFault((*path, "NAME", key), "").key
            return ConfigFault((*path, key), f"there is no such key, did you mean {meant}?")
        if found := fault(inner, kind, (*path, key)):
            return found
    reason = reason.removeprefix("Object ").replace("`object", "`table")
    if (key := _culprit(value, shape)) and key not in reason:
        path = (*path, key)
    said = _quoted(value, shape) or _with_unit(value, shape, path)
    return ConfigFault(path, said or reason + _value(value, shape, path))


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
    for kind in _meant(value, members(shape)):
        known = parts(kind)
        if known and isinstance(value, dict):
            for key, inner in value.items():
                wanted = known.get(key, known.get("*"))
                if key != _tag_field(kind):
                    yield (key, list(known), None) if wanted is None else (key, inner, wanted)
        elif isinstance(value, list) and get_origin(kind) in (list, tuple):
            for number, inner in enumerate(value):
                yield f"[{number}]", inner, get_args(kind)[0]


def _tag_field(kind: Any) -> str | None:
    return (
        kind.__struct_config__.tag_field
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct)
        else None
    )


def _meant(value: Any, kinds: list[Any]) -> list[Any]:
    """Of the structs that are told apart by a tag, the one that the value names."""
    return [
        kind
        for kind in kinds
        if (tag := _tag_field(kind)) is None
        or not isinstance(value, dict)
        or value.get(tag) == kind.__struct_config__.tag
    ]


def _named(shape: Any) -> set[str]:
    """Keys of the tables that stand under free names."""
    return {key for kind in members(shape) for inner in members(parts(kind).get("*")) for key in parts(inner)}


def _culprit(value: Any, shape: Any) -> str:
    """The key without which a table would be accepted; empty if there is none, or several."""
    if not isinstance(value, dict):
        return ""
    found = [key for key in value if _accepted({name: value[name] for name in value if name != key}, shape)]
    return found[0] if len(found) == 1 else ""


def _accepted(value: Any, shape: Any) -> bool:
    try:
        msgspec.convert(value, shape)
    except msgspec.ValidationError:
        return False
    return True


def _no_key(path: tuple[str, ...], key: str, known: list[str]) -> str:
    longer = [name for name in known if len(key) > 2 and name.startswith(key)]
    if close := get_close_matches(key, known, n=1, cutoff=0.6) or longer:
        return f"there is no such key, did you mean {ConfigFault((*path, close[0]), '').key}?"
    return f"there is no such key: there is {', '.join(known)}"


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


def _with_unit(value: Any, shape: Any, path: tuple[str, ...]) -> str:
    """Describes a number with a unit where a plain one is expected; empty for all else."""
    given = _UNIT.fullmatch(value) if isinstance(value, str) else None
    if given is None or not {int, float} & set(members(shape)):
        return ""
    seconds = _SECONDS.get(given[2]) if path and path[-1].endswith(("seconds", "wait", "heartbeat")) else None
    meant = f"did you mean {float(given[1]) * seconds:g}?" if seconds else "write it without a unit"
    return f"Expected a number{' of seconds' if seconds else ''}, got the text {value!r}: {meant}"


def _value(value: Any, shape: Any, path: tuple[str, ...]) -> str:
    """The refused value, and the values there are if they can be listed."""
    if isinstance(value, str) and (choices := list(_choices(shape))):
        close = get_close_matches(value, choices, n=1, cutoff=0.6)
        return f": did you mean {close[0]!r}?" if close else f": choose one of {', '.join(choices)}"
    if isinstance(value, float) and value.is_integer() and int in members(shape):
        return f" (it is {value!r}): did you mean {int(value)}?"
    secret = isinstance(value, str) and (not path or any(map(_SECRET.search, path)))
    if secret or isinstance(value, dict | list) or len(repr(value)) > _SHOWN:
        return ""
    return f" (it is {str(value).lower() if isinstance(value, bool) else repr(value)})"


def _choices(shape: Any) -> Iterator[str]:
    for kind in members(shape):
        if get_origin(kind) is Literal:
            yield from (one for one in get_args(kind) if isinstance(one, str))
        elif isinstance(kind, type) and issubclass(kind, Enum):
            yield from (one.value for one in kind if isinstance(one.value, str))

"""Fields of structs and members of enumerations, described from type hints and docstrings."""

import ast
import inspect
import re
import textwrap
import types
from collections.abc import Iterator, Mapping
from datetime import datetime
from enum import Enum
from functools import cache
from itertools import pairwise
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import msgspec

from orchard.schemas.quantities import Unit

_PLAIN = {
    str: "text",
    bytes: "bytes",
    int: "integer",
    float: "number",
    bool: "true or false",
    object: "anything",
    Any: "anything",
    datetime: "time",
    types.NoneType: "null",
    msgspec.Raw: "JSON",
}
_UNBOUNDED = 1e9
"""Upper bounds from here on are sanity limits and are not documented."""


class FieldDescription(NamedTuple):
    """Description of a field for readers."""

    name: str
    type: str
    unit: str
    default: str
    """Default as TOML or JSON; empty if a value is required."""
    meaning: str


def describe(struct: type[msgspec.Struct], meanings: Mapping[str, str]) -> Iterator[FieldDescription]:
    """Describes the fields of a struct. `meanings` describe fields without a docstring. Raises KeyError
    for a field that has neither."""
    hints = get_type_hints(struct, include_extras=True)
    documented = docstrings(struct)
    for field in msgspec.structs.fields(struct):
        hint = hints[field.name]
        yield FieldDescription(
            field.encode_name,
            in_words(hint),
            next((unit.name for unit in _extras(hint) if isinstance(unit, Unit)), ""),
            _default(field),
            documented.get(field.name) or meanings[field.name],
        )


@cache
def docstrings(owner: type) -> Mapping[str, str]:
    """Docstrings of attributes by name, without the last full stop; inherited ones too."""
    found: dict[str, str] = {}
    for one in reversed(owner.__mro__):
        if not one.__module__.startswith("orchard."):
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(one))).body[0].body  # type: ignore[attr-defined]
        for statement, below in pairwise(body):
            target = getattr(statement, "target", None) or getattr(statement, "targets", [None])[0]
            if isinstance(target, ast.Name) and isinstance(below, ast.Expr):
                found[target.id] = re.sub(r"(?<!\.)\.$", "", " ".join(ast.literal_eval(below.value).split()))
    return found


def summary(owner: type) -> str:
    """Docstring of a class on one line; empty if it has none of its own."""
    text = owner.__dict__.get("__doc__") or ""
    return "" if text.startswith(f"{owner.__name__}(") else " ".join(text.split())


def named(hint: Any) -> Iterator[type[msgspec.Struct] | type[Enum]]:
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct | Enum):
        yield hint
    for part in get_args(hint):
        yield from named(part)


def in_words(hint: Any) -> str:
    """Describes a type hint to readers who do not know Python's."""
    arguments = get_args(hint)
    match get_origin(hint):
        case None if isinstance(hint, type) and issubclass(hint, msgspec.Struct | Enum):
            return f"[{hint.__name__}](#{hint.__name__.lower()})"
        case None:
            return _PLAIN[hint]
        case origin if origin is Annotated:
            return in_words(arguments[0]) + _bounds(hint)
        case origin if origin is Literal:
            return " or ".join(f"`{one}`" for one in arguments)
        case origin if origin is Union or origin is types.UnionType:
            return " or ".join(in_words(one) for one in arguments if one is not msgspec.UnsetType)
        case origin if origin is dict:
            return f"table: name to {in_words(arguments[1])}"
        case origin if origin is tuple and Ellipsis not in arguments:
            return f"list of {len(arguments)}: {', '.join(map(in_words, arguments))}"
        case _:
            return f"list of {in_words(arguments[0])}"


def _extras(hint: Any) -> Iterator[Any]:
    """Yields the metadata of a hint's annotations, at any depth."""
    if get_origin(hint) is Annotated:
        yield from hint.__metadata__
    for part in get_args(hint):
        yield from _extras(part)


def _bounds(hint: Any) -> str:
    told = []
    for meta in hint.__metadata__:
        if isinstance(meta, msgspec.Meta):
            told += [f"> {meta.gt:g}"] if meta.gt is not None else []
            told += [f"≥ {meta.ge:g}"] if meta.ge is not None else []
            told += [f"≤ {meta.le:g}"] if meta.le is not None and meta.le < _UNBOUNDED else []
    return f", {', '.join(told)}" if told else ""


def _default(field: msgspec.structs.FieldInfo) -> str:
    if field.default_factory is not msgspec.NODEFAULT:
        value = field.default_factory()
    elif field.default is msgspec.NODEFAULT:
        return ""
    else:
        value = field.default
    return in_toml(value)


def in_toml(value: Any) -> str:
    """Formats a value as in a file; `none` for None."""
    match value:
        case None | msgspec.UNSET:
            return "none"
        case bool():
            return str(value).lower()
        case Enum():
            return in_toml(value.value)
        case str():
            return f'"{value}"'
        case int() if value >= 10_000:
            return f"{value:_}"
        case float():
            return f"{value:_.10g}" if abs(value) >= 1e-4 or value == 0 else f"{value:g}"
        case list() | tuple():
            return f"[{', '.join(map(in_toml, value))}]"
        case dict():
            pairs = ", ".join(f"{key} = {in_toml(one)}" for key, one in value.items())
            return f"{{ {pairs} }}" if pairs else "{}"
        case msgspec.Struct():
            return "as listed"
        case _:
            return str(value)

"""Writes the configuration as TOML, with a comment for each key: its documentation and its default."""

import json
import re
from collections.abc import Iterator
from textwrap import wrap
from typing import Any

import msgspec
from msgspec.inspect import DictType, StructType, Type, UnionType

from orchard.configuration.fields import describe, summary

WIDTH = 100
HEAD = (
    "Every key with the value that holds here; one that is not set is a comment. In the environment, "
    "ORCHARD_WORKER__SLOTS=4 sets worker.slots."
)


def as_toml(config: msgspec.Struct) -> str:
    """Text of a file that loads as `config`. A key without a value is a comment."""
    return "\n".join([*_comment(HEAD), "", *_table(config, ())]) + "\n"


def _table(values: msgspec.Struct, path: tuple[str, ...]) -> Iterator[str]:
    """Lines of a struct: its values, then its tables."""
    texts, below = told(type(values)), list[str]()
    for field in msgspec.structs.fields(values):
        value, name = getattr(values, field.name), field.encode_name
        inner = struct_of(msgspec.inspect.type_info(field.type))
        if isinstance(value, msgspec.Struct):
            below += [
                "",
                *_comment(_summary(type(value))),
                _header((*path, name)),
                *_table(value, (*path, name)),
            ]
        elif inner is not None:
            below += ["", *_comment(texts.get(field.name, "")), *_tables(value, inner, (*path, name))]
        else:
            default = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
            yield from _comment(_described(texts.get(field.name, ""), value, default))
            yield _line(name, value)
    yield from below


def _tables(
    values: dict[str, msgspec.Struct], inner: type[msgspec.Struct], path: tuple[str, ...]
) -> Iterator[str]:
    """Lines of a table for each name; without any, an example as a comment."""
    for name, each in values.items():
        yield from ["", _header((*path, name)), *_table(each, (*path, name))]
    if not values:
        texts = told(inner)
        yield f"# {_header((*path, 'NAME'))}"
        for field in msgspec.structs.fields(inner):
            yield from _comment(texts.get(field.name, ""))
            yield f"# {field.encode_name} = ..."


def struct_of(kind: Type) -> type[msgspec.Struct] | None:
    match kind:
        case DictType(value_type=StructType(cls=shape)):
            return shape
        case UnionType(types=types):
            return next((found for one in types if (found := struct_of(one))), None)
    return None


def told(shape: type[msgspec.Struct]) -> dict[str, str]:
    """Comment of each key, with its unit if the text does not name it."""
    tables = dict.fromkeys(shape.__struct_fields__, "")
    return {
        one.name: one.meaning.replace(". None:", ". Not set:").replace("None:", "not set:")
        + (f" ({one.unit})" if one.unit else "")
        for one in describe(shape, tables)
    }


def _summary(shape: type[msgspec.Struct]) -> str:
    return re.sub(r" \(configuration section .*?\)", "", summary(shape))


def _described(text: str, value: Any, default: Any) -> str:
    if value == default or default is msgspec.NODEFAULT:
        return text
    return f"{text} Default: {'none' if default is None else toml_value(default)}.".strip()


def _comment(text: str) -> list[str]:
    return [f"# {line}" for line in wrap(text, WIDTH - 2)]


def _header(path: tuple[str, ...]) -> str:
    return f"[{'.'.join(map(_key, path))}]"


def _line(name: str, value: Any) -> str:
    return f"# {name} =   (not set)" if value is None else f"{name} = {toml_value(value)}"


def _key(name: str) -> str:
    return name if name.replace("-", "").replace("_", "").isalnum() and name.isascii() else json.dumps(name)


def toml_value(value: Any) -> str:
    """Formats a plain value as TOML; JSON strings are TOML strings, but for DEL."""
    match value:
        case bool():
            return str(value).lower()
        case dict():
            pairs = (
                f"{_key(str(name))} = {toml_value(each)}" for name, each in value.items() if each is not None
            )
            return "{ " + ", ".join(pairs) + " }" if value else "{}"
        case list() | tuple():
            return f"[{', '.join(map(toml_value, value))}]"
        case str():
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case _:
            return repr(value)

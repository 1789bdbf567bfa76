"""Derives columns from the fields of a struct: names, Arrow types and values.

A field is a column of its name. A blob is `<name>_sha256`; a nested struct contributes its own fields; a
tuple is a list, and a dictionary a map.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import msgspec
import pyarrow as pa
from msgspec import inspect

from orchard.schemas.blobs import BlobRef
from orchard.schemas.messages import MessageNode

Row = dict[str, Any]

TEXT = pa.string()
TIME = pa.timestamp("us", "UTC")
INT = pa.int64()
REAL = pa.float64()
FLAG = pa.bool_()

_PLAIN: dict[type[inspect.Type], pa.DataType] = {
    inspect.StrType: TEXT,
    inspect.EnumType: TEXT,
    inspect.DateTimeType: TIME,
    inspect.IntType: INT,
    inspect.FloatType: REAL,
    inspect.BoolType: FLAG,
}


def columns(payload: type[msgspec.Struct]) -> dict[str, pa.DataType]:
    """Columns of a struct's fields, in their order."""
    found: dict[str, pa.DataType] = {}
    for field in _fields(payload):
        kind = _present(field.type)
        if not isinstance(kind, inspect.StructType):
            found[field.name] = _arrow(kind)
        elif kind.cls is BlobRef:
            found[_sha256(field.name)] = TEXT
        else:
            found |= columns(kind.cls)
    return found


def values(data: msgspec.Struct) -> Row:
    """Values of a struct by column, perhaps with additional names."""
    row = msgspec.structs.asdict(data)
    for name, put in _conversions(type(data)):
        if row[name] is not None:
            put(row, row[name])
    return row


def _fields(payload: type[msgspec.Struct]) -> tuple[inspect.Field, ...]:
    """The fields except messages, which are rows of their own events."""
    described = inspect.type_info(payload)
    assert isinstance(described, inspect.StructType)
    return tuple(field for field in described.fields if not _is_message(_present(field.type)))


def _is_message(kind: inspect.Type) -> bool:
    return isinstance(kind, inspect.StructType) and kind.cls is MessageNode


def _present(kind: inspect.Type) -> inspect.Type:
    if not isinstance(kind, inspect.UnionType):
        return kind
    (present,) = (one for one in kind.types if not isinstance(one, inspect.NoneType))
    return present


def _arrow(kind: inspect.Type) -> pa.DataType:
    match kind:
        case inspect.VarTupleType(item_type=item):
            return pa.list_(_arrow(item))
        case inspect.DictType(key_type=key, value_type=value):
            return pa.map_(_arrow(key), _arrow(value))
        case inspect.StructType(fields=fields):
            return pa.struct([(field.name, _arrow(_present(field.type))) for field in fields])
    return _PLAIN[type(kind)]


def _sha256(field: str) -> str:
    return f"{field.removesuffix('_blob')}_sha256"


_Put = Callable[[Row, Any], None]


@cache
def _conversions(payload: type[msgspec.Struct]) -> tuple[tuple[str, _Put], ...]:
    """Fields whose values need a conversion, each with the function that puts them into a row."""
    found = [(field.name, _conversion(field.name, _present(field.type))) for field in _fields(payload)]
    return tuple((name, put) for name, put in found if put is not None)


def _conversion(name: str, kind: inspect.Type) -> _Put | None:
    def blob(row: Row, value: BlobRef) -> None:
        row[_sha256(name)] = value.sha256

    def inner(row: Row, value: msgspec.Struct) -> None:
        row |= values(value)

    def pairs(row: Row, value: dict[str, Any]) -> None:
        row[name] = list(value.items())

    def structs(row: Row, value: tuple[msgspec.Struct, ...]) -> None:
        row[name] = [msgspec.structs.asdict(one) for one in value]

    match kind:
        case inspect.StructType(cls=cls):
            return blob if cls is BlobRef else inner
        case inspect.DictType():
            return pairs
        case inspect.VarTupleType(item_type=inspect.StructType()):
            return structs
    return None

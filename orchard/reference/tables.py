"""Writes the reference of tables and views."""

from collections.abc import Iterator, Mapping
from tempfile import TemporaryDirectory
from typing import get_type_hints

import msgspec
import pyarrow as pa

from orchard.configuration.fields import docstrings, named
from orchard.reference.glossary import COLUMNS, FIELDS, TABLES, VIEWS
from orchard.reference.page import anchor, code, page, table
from orchard.schemas.events import Event
from orchard.storage.reader import open_tables
from orchard.storage.tables import EVENTS, ROWS

_INTRODUCTION = """\
Query them with `orchard sql "select ..."`, or from Python with
`orchard.storage.reader.open_tables(STORE)`, which gives a DuckDB connection. Ask the **views**: they
count each event once and know which attempt of a rollout was accepted. The **stored tables** (`select *
from tables.rollouts_all`) have a row for each event. Times are UTC, durations seconds, sizes bytes.
Nothing is lost with a table: `orchard store rebuild` makes all of them again from `events`."""


def tables() -> str:
    """Text of the page: examples of queries, then every view and table with its columns."""
    with TemporaryDirectory() as store, open_tables(store) as connection:
        shown, stored = (
            {name: connection.sql(f"select * from {schema}{name}").to_arrow_table().schema for name in names}
            for schema, names in (("", VIEWS), ("tables.", TABLES))
        )
    return page(
        "Tables and views",
        _INTRODUCTION,
        "## What to ask",
        table(("view", "rows"), [(f"[`{name}`]({anchor(name)})", text) for name, text in VIEWS.items()]),
        *(f"## {name}\n\n{VIEWS[name]}.\n\n{_view(name, schema, stored)}" for name, schema in shown.items()),
        "# Stored tables",
        *(f"## tables.{name}\n\n{TABLES[name]}.\n\n{_columns(name, each)}" for name, each in stored.items()),
    )


def _view(view: str, schema: pa.Schema, stored: Mapping[str, pa.Schema]) -> str:
    """Columns of a view; a view with the columns of a table refers to that table."""
    whole = {name: each for name, each in stored.items() if set(each.names) <= set(schema.names)}
    base = max(whole, key=lambda name: len(whole[name]), default=None)
    if base is None:
        return _columns(view, schema)
    said = f"All columns of [`tables.{base}`]({anchor(f'tables.{base}')})"
    more = pa.schema([column for column in schema if column.name not in whole[base].names])
    return f"{said}, and:\n\n{_columns(view, more)}" if len(more) else f"{said}."


def _columns(name: str, schema: pa.Schema) -> str:
    said = FIELDS | _said(f"{name}_all") | _said(name) | COLUMNS.get(name, {})
    return table(
        ("column", "type", "meaning"),
        [(code(column.name), _in_words(column.type), said[column.name]) for column in schema],
    )


def _said(name: str) -> dict[str, str]:
    """Docstrings of the fields behind the columns of a table, or of a view of its name. Those of inner
    structs count for names that the outer one does not have."""
    sources = [Event] if name == EVENTS else [struct for struct, (place, _) in ROWS.items() if place == name]
    found: dict[str, str] = {}
    for struct in sources:
        for one in reversed(list(_structs(struct))):
            found |= {
                name: text for name, text in docstrings(one).items() if name not in struct.__struct_fields__
            }
        found |= docstrings(struct)
    return found


def _structs(owner: type) -> Iterator[type]:
    for hint in get_type_hints(owner, include_extras=True).values():
        for one in named(hint):
            if issubclass(one, msgspec.Struct):
                yield one


def _in_words(kind: pa.DataType) -> str:
    match kind:
        case pa.ListType():
            return f"list of {_in_words(kind.value_type)}"
        case pa.MapType():
            return f"map of {_in_words(kind.key_type)} to {_in_words(kind.item_type)}"
        case pa.StructType():
            return f"struct ({', '.join(field.name for field in kind)})"
        case _ if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            return "text"
        case _ if pa.types.is_boolean(kind):
            return "boolean"
        case _ if pa.types.is_timestamp(kind):
            return "time"
        case _ if pa.types.is_floating(kind):
            return "number"
        case _:
            return "integer"

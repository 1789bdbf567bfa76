"""Maps an event to its row in a derived table: pure, one event at a time, without memory of others.

What needs several events (the accepted outcome, the state of a task, conservation) is a view
(`orchard.storage.views`). An unreadable event gives a row of `unreadable_all`, never silence.
"""

import hashlib
import json
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from orchard.schemas import events as e
from orchard.schemas.campaigns import RolloutRequest
from orchard.schemas.messages import Image, MessageNode
from orchard.schemas.positions import stream_of
from orchard.schemas.subjects import is_misplaced
from orchard.storage import columns
from orchard.storage.columns import Row, values
from orchard.storage.log import REFUSALS, Fact
from orchard.storage.tables import ROWS, SCHEMAS

UNREADABLE = "unreadable_all"


@cache
def derivation(table: str) -> str:
    """Digest of what decides which rows of a derived table follow from which events: their types and forms,
    the columns, and the code of this module and of `columns`."""
    types = e.EVENT_TYPES | {name: e.EVENT_TYPES[kind] for name, kind in e.NEXT_NAMES.items()}
    forms = {
        kind: [msgspec.json.schema(struct), ROWS.get(struct)]
        for kind, struct in types.items()
        if table in (UNREADABLE, *ROWS.get(struct, ())[:1])
    }
    plain = json.loads(json.dumps(forms), object_hook=_undocumented)
    digest = hashlib.sha256(json.dumps([plain, str(SCHEMAS[table])], sort_keys=True).encode())
    for module in (__file__, columns.__file__):
        digest.update(Path(module).read_bytes())
    return digest.hexdigest()[:16]


def _undocumented(form: dict[str, Any]) -> dict[str, Any]:
    """Leave out the documentation of a JSON schema; properties may have the same names, but are no texts."""
    return {
        name: value
        for name, value in form.items()
        if name not in ("title", "description") or not isinstance(value, str)
    }


def derive(fact: Fact) -> tuple[str, Row] | None:
    """Return an event's table and its row there; None for types without a table."""
    data = e.payload(fact.event)
    if isinstance(data, e.UnreadablePayload):
        return unreadable(fact, data.reason)
    if type(data) not in ROWS:
        return None
    if is_misplaced(fact.event, fact.subject, stream_of(fact.sequence)):
        return unreadable(fact, f"{fact.event.type} outside its rollout's done subject")
    table, words = ROWS[type(data)]
    row = values(data)
    row |= words
    if own := _OWN.get(type(data)):
        row |= own(data)
    row |= _place(fact)
    return table, row


def unreadable(fact: Fact, reason: str) -> tuple[str, Row]:
    """Return the row that says why an event could not become a row."""
    return UNREADABLE, _place(fact) | {"type": fact.event.type, "reason": reason}


def derive_tables(facts: Iterable[Fact]) -> dict[str, pa.Table]:
    found: dict[str, list[tuple[Fact, Row]]] = {}
    for fact in facts:
        if derived := derive(fact):
            found.setdefault(derived[0], []).append((fact, derived[1]))
    refused: list[tuple[Fact, Row]] = []
    tables: dict[str, pa.Table] = {}
    for name in list(found):
        if name != UNREADABLE:
            tables[name] = _fitting(name, found[name], refused)
    refused += found.get(UNREADABLE, [])
    if refused:
        refused.sort(key=lambda pair: pair[0].sequence)
        tables[UNREADABLE] = _table(UNREADABLE, [row for _, row in refused])
    return {name: table for name, table in tables.items() if table.num_rows}


def _fitting(name: str, pairs: list[tuple[Fact, Row]], refused: list[tuple[Fact, Row]]) -> pa.Table:
    """Build a table from the rows; those with a value no column can hold (a number over 64 bits) are
    refused."""
    try:
        return _table(name, [row for _, row in pairs])
    except REFUSALS:
        parts = [SCHEMAS[name].empty_table()]
        for fact, row in pairs:
            try:
                parts.append(_table(name, [row]))
            except REFUSALS as error:
                refused.append((fact, unreadable(fact, f"a value does not fit its column: {error}")[1]))
        return pa.concat_tables(parts)


def _table(name: str, rows: list[Row]) -> pa.Table:
    """Raises one of REFUSALS, also for a time that Python and DuckDB cannot represent (year 0)."""
    table = pa.Table.from_pylist(rows, schema=SCHEMAS[name])
    for field, column in zip(table.schema, table.columns, strict=True):
        if pa.types.is_timestamp(field.type):
            pc.min_max(column).as_py()
    return table


def _place(fact: Fact) -> Row:
    event = fact.event
    return {
        "sequence": fact.sequence,
        "time": event.time,
        "event_id": event.id,
        "campaign": event.campaign,
        "rollout_id": event.rollout_id,
        "attempt": event.attempt,
    }


def _message(data: MessageNode) -> Row:
    return {
        "content_length": data.content_blob.size if data.content_blob else len(data.content),
        "reasoning_length": len(data.reasoning),
        "token_ids": data.tokens and data.tokens.ids,
        "images": _images(data.images),
    }


def _images(images: tuple[Image, ...]) -> list[Row] | None:
    return [
        {
            "sha256": image.blob.sha256,
            "size": image.blob.size,
            "media_type": image.media_type,
            "width": image.width,
            "height": image.height,
            "at": image.at,
            "caption": image.caption,
        }
        for image in images
    ] or None


def _request(data: RolloutRequest) -> Row:
    return {
        "task_source": data.task.source,
        "task_sha256": data.task.blob.sha256,
        "model": data.model.name,
        "model_kind": data.model.kind,
    }


_OWN: dict[type, Callable[[Any], Row]] = {
    MessageNode: _message,
    RolloutRequest: _request,
    e.TaskImported: lambda data: {"blob_size": data.blob.size},
}
"""Columns of a payload in addition to its fields."""

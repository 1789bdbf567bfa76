"""Exports the column layout of the released Orchard SWE set."""

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from orchard.pipelines.datasets.exporters.chat import PLAIN_MESSAGE, messages_of, schema_of
from orchard.pipelines.datasets.exporters.interface import EXTRAS, Exporter, Record, both, plain, text_only
from orchard.pipelines.datasets.rows import Row
from orchard.pipelines.domains.swe.released_rows import LAYOUT


def _released(row: Row) -> Iterator[Record]:
    keys = PLAIN_MESSAGE.names
    metadata = {
        "instance_id": row.task_id,
        "repo": row.repo,
        "source": row.task_source,
        "model": row.model,
        "sample_idx": row.sample,
        "verify_status": "resolved" if row.resolved else "unresolved",
        EXTRAS: plain(row),
    }
    yield {
        "messages": [
            {key: message[key] for key in keys} for message in map(_thoughts_inside, messages_of(row))
        ],
        "tools": row.tools,
        "metadata": json.dumps(metadata, ensure_ascii=False),
    }


def _thoughts_inside(message: dict[str, Any]) -> dict[str, Any]:
    """The released layout has no column for reasoning; its teachers' thoughts stand in the content."""
    if not message["reasoning_content"]:
        return message
    return {**message, "content": f"<think>\n{message['reasoning_content']}\n</think>\n{message['content']}"}


def _no_reasoning_column(row: Row) -> Iterator[str]:
    if '"reasoning_content"' in row.messages:
        yield "reasoning apart from the text: it stands in the content between <think> tags"


RELEASED = Exporter(
    name=LAYOUT,
    consumer="the column layout of the released Orchard SWE set",
    schema=schema_of(messages=pa.list_(PLAIN_MESSAGE), tools=pa.string(), metadata=pa.string()),
    project=_released,
    losses=both(text_only, _no_reasoning_column),
    always=("turns that train, but for our key `orchard` in the metadata, which others do not read",),
)

"""Reads and writes the released Orchard SWE layout.

Known flaws of the released rows are flagged, not mended; only a last call without an answer gets an
empty one, so that the conversation stays one.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import pyarrow as pa

from orchard.pipelines.datasets.errors import DatasetError
from orchard.pipelines.datasets.exporters.chat import PLAIN_MESSAGE, messages_of, schema_of
from orchard.pipelines.datasets.exporters.interface import EXTRAS, Exporter, Record, both, plain, text_only
from orchard.pipelines.datasets.foreign import (
    ROLES,
    Foreign,
    ReleasedMessage,
    decoded,
    next_node,
    parquet_rows,
    sample_of,
    thought,
)
from orchard.pipelines.datasets.rows import Row
from orchard.pipelines.tasks.left_out import LeftOut
from orchard.pipelines.trajectories.reading import LEAKED_ERRORS, assistants
from orchard.schemas.messages import MessageNode, Role, ToolCall
from orchard.schemas.outcomes import ExitStatus
from orchard.storage.blobs import BlobStore

LAYOUT = "orchard-swe"
COLUMNS = ("messages", "tools", "metadata")


class _Metadata(msgspec.Struct, frozen=True):
    """`sample_idx` is not used: parts of one trajectory have the same one, and other files have it again."""

    instance_id: str
    verify_status: Literal["resolved", "unresolved"]
    repo: str = ""
    source: str = ""
    model: str = ""


def read_swe_rows(files: Sequence[Path], _: BlobStore, harness: str) -> Iterator[Foreign | LeftOut]:
    """The LayoutReader of these rows."""
    return released(parquet_rows(files, COLUMNS), harness)


def released(
    rows: Iterable[tuple[int, dict[str, Any] | LeftOut]], harness: str
) -> Iterator[Foreign | LeftOut]:
    """Trajectories of the released layout, attributed to `harness`, and the rows that are none."""
    for number, row in rows:
        if isinstance(row, LeftOut):
            yield row
            continue
        try:
            yield _foreign(number, row, harness)
        except DatasetError as error:
            yield LeftOut(f"row {number}", str(error))


def _foreign(number: int, row: dict[str, Any], harness: str) -> Foreign:
    """The trajectory of a row. Raises DatasetError with what is wrong."""
    metadata = decoded("metadata", row["metadata"], _Metadata)
    tools = decoded("tools", row["tools"] or "[]", list[dict[str, Any]])
    try:
        messages = msgspec.convert(row["messages"] or [], list[ReleasedMessage])
    except msgspec.ValidationError as error:
        raise DatasetError(f"messages: {error}") from error
    nodes = _nodes(messages)
    content = [[message.said for message in messages], tools, decoded("metadata", row["metadata"], Any)]
    return Foreign(
        task_id=metadata.instance_id,
        source=metadata.source,
        repo=metadata.repo,
        harness=harness,
        model=metadata.model,
        sample=sample_of(content),
        row=number,
        nodes=nodes,
        exit_status=ExitStatus.SUBMITTED if assistants(nodes)[-1].tool_calls else ExitStatus.FINISHED,
        resolved=metadata.verify_status == "resolved",
        layout=LAYOUT,
        tools=row["tools"] or "[]",
        metadata=row["metadata"],
        flags=tuple(_flags(nodes, len(messages))),
    )


def _nodes(messages: Sequence[ReleasedMessage]) -> list[MessageNode]:
    nodes: list[MessageNode] = []
    for message in messages:
        role, content = ROLES[message.role], message.content or ""
        reasoning, content = thought(content) if role is Role.ASSISTANT else ("", content)
        calls = tuple(
            ToolCall(id=call.id or "", name=call.function.name or "", arguments=call.function.arguments or "")
            for call in message.tool_calls or ()
        )
        nodes.append(next_node(nodes, role, content, reasoning, calls, message.tool_call_id or ""))
    if not any(node.role is Role.ASSISTANT for node in nodes):
        raise DatasetError("messages: no message of the assistant")
    if nodes[-1].tool_calls:
        nodes.append(next_node(nodes, Role.TOOL, "", "", (), nodes[-1].tool_calls[0].id))
    return nodes


def _flags(path: list[MessageNode], messages: int) -> Iterator[str]:
    if any(node.content.lstrip().startswith(LEAKED_ERRORS) for node in path if node.role is Role.TOOL):
        yield "leaked_infrastructure_error"
    if len(path) > messages:
        yield "unanswered_last_call"
    if not any(node.reasoning or node.content for node in path if node.role is Role.ASSISTANT):
        yield "no_reasoning"


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

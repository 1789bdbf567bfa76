"""Reads rows of the released Orchard SWE layout as trajectories.

Known flaws of the released rows are flagged, not mended; only a last call without an answer gets an
empty one, so that the conversation stays one.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from orchard.pipelines.datasets.errors import DatasetError
from orchard.pipelines.datasets.importing import (
    ROLES,
    Foreign,
    ReleasedMessage,
    decoded,
    next_node,
    parquet_rows,
    sample_of,
    thought,
)
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

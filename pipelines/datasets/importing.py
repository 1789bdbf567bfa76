"""The way back: rows in the released Orchard SWE layout become rollouts of ours, event by event.

Each row is a rollout of one attempt in a campaign, with its own tools and metadata kept as they were. Known
flaws of the released rows are flagged, not mended; only a last call without an answer gets an empty one, so
that the conversation stays one.
"""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq

from orchard.pipelines.datasets.errors import DatasetError
from orchard.pipelines.trajectories import LEAKED_ERRORS
from orchard.schemas import events as e
from orchard.schemas.campaigns import ModelSpec, RolloutRequest, TaskRef
from orchard.schemas.datasets import TrajectoryImported
from orchard.schemas.identity import check_name, rollout_id
from orchard.schemas.llm_calls import ModelKind
from orchard.schemas.messages import MessageNode, Role, ToolCall, node_id
from orchard.schemas.outcomes import ExitStatus, Reward
from orchard.schemas.tasks import SWETests, Task
from orchard.storage.blobs import BlobStore, slimmed
from orchard.streams.publisher import Publisher

LAYOUT = "orchard-swe"
SOURCE = "orchard/dataset/import"
_READ_ROWS = 64
_COLUMNS = ("messages", "tools", "metadata")


class _Metadata(msgspec.Struct, frozen=True):
    instance_id: str
    repo: str = ""
    source: str = ""
    model: str = ""
    sample_idx: int = 0
    verify_status: str = ""


@dataclass(frozen=True)
class Imported:
    """What came of an import."""

    rollouts: int
    there_already: int
    flags: dict[str, int]


def read_released(files: Sequence[Path]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Rows with their number over all files. Raises DatasetError for files in another layout."""
    number = 0
    for path in files:
        try:
            file = pq.ParquetFile(path)
        except (OSError, ValueError) as error:
            raise DatasetError(
                f"{path} is no Parquet file ({error}): give files of the released set"
            ) from error
        with file:
            missing = set(_COLUMNS) - set(file.schema_arrow.names)
            if missing:
                raise DatasetError(
                    f"{path} has no column {', '.join(sorted(missing))}: the released layout has "
                    f"{', '.join(_COLUMNS)}"
                )
            for batch in file.iter_batches(_READ_ROWS, columns=list(_COLUMNS)):
                for row in batch.to_pylist():
                    yield number, row
                    number += 1


async def import_released(
    publisher: Publisher,
    blobs: BlobStore,
    rows: Iterator[tuple[int, dict[str, Any]]],
    *,
    campaign: str,
    dataset: str,
    harness: str,
) -> Imported:
    """Publish the events of each row, unless its rollout has an outcome already. Raises DatasetError for a
    row that is not in the layout, and what publishing raises."""
    check_name(campaign)
    done, there, flags = 0, 0, Counter[str]()
    for number, row in rows:
        events = events_of(blobs, number, row, campaign=campaign, dataset=dataset, harness=harness)
        last = events[-1]
        if await publisher.outcome(last.rollout_id or "") is not None:
            there += 1
            continue
        await publisher.events(events[:-1])
        await publisher.terminal(last)
        done += 1
        flags.update(e.payload(events[2]).flags)
    return Imported(done, there, dict(flags))


def events_of(
    blobs: BlobStore, number: int, row: dict[str, Any], *, campaign: str, dataset: str, harness: str
) -> list[e.Event]:
    """The events of one row: request, start, import, messages, reward, outcome."""
    metadata = _metadata(number, row)
    path = _path(number, row["messages"] or [])
    statement = next((node.content for node in path if node.role is Role.USER), "")
    rollout = rollout_id(campaign, metadata.instance_id, harness, metadata.model, number)
    task = Task(
        task_id=metadata.instance_id,
        source=metadata.source,
        repo=metadata.repo,
        image="",
        statement=statement,
        grading=SWETests(test_patch="", test_command="", fail_to_pass=()),
    )
    blob = blobs.put(msgspec.json.encode(task), "application/json")
    ref = TaskRef(task_id=task.task_id, source=task.source, repo=task.repo, blob=blob)
    request = RolloutRequest(
        rollout_id=rollout,
        campaign=campaign,
        task=ref,
        harness=harness,
        model=ModelSpec(name=metadata.model or "unknown"),
        sample=number,
    )
    resolved = metadata.verify_status == "resolved"
    turns = [node for node in path if node.role is Role.ASSISTANT]
    exit_status = ExitStatus.SUBMITTED if turns[-1].tool_calls else ExitStatus.FINISHED
    now = datetime.now(UTC)
    finished = e.RolloutFinished(
        task_id=task.task_id,
        task_source=task.source,
        repo=task.repo,
        harness=harness,
        model=request.model.name,
        model_kind=ModelKind.MODEL,
        sample=number,
        worker="import",
        started_at=now,
        seconds=0.0,
        turns=len(turns),
        status=exit_status.status,
        exit_status=exit_status,
        reward=1.0 if resolved else -1.0,
        resolved=resolved,
        leaf=path[-1].node_id,
    )
    imported = TrajectoryImported(
        dataset=dataset,
        row=number,
        layout=LAYOUT,
        tools=row["tools"] or "[]",
        metadata=row["metadata"],
        flags=tuple(_flags(path, len(row["messages"] or []))),
    )
    started = e.RolloutStarted(worker="import", request_sequence=0, deliveries=1)
    reward = Reward(value=finished.reward or 0.0, resolved=resolved, grader="imported")
    nodes = [slimmed(blobs, node) for node in path]
    return [
        e.make_event(
            data,
            id=f"{rollout}.import.{index}",
            source=SOURCE,
            campaign=campaign,
            rollout_id=rollout,
            attempt=None if data is request else 1,
            time=now,
        )
        for index, data in enumerate([request, started, imported, *nodes, reward, finished])
    ]


def _metadata(number: int, row: dict[str, Any]) -> _Metadata:
    try:
        found = msgspec.json.decode(row["metadata"], type=_Metadata)
        tools = json.loads(row["tools"] or "[]")
    except (msgspec.DecodeError, ValueError, TypeError) as error:
        raise DatasetError(f"row {number} is not in the released layout ({error})") from error
    if not isinstance(tools, list) or found.verify_status not in ("resolved", "unresolved"):
        raise DatasetError(
            f"row {number} is not in the released layout: `tools` must be a JSON list and `verify_status` "
            "resolved or unresolved"
        )
    return found


def _path(number: int, messages: list[dict[str, Any]]) -> list[MessageNode]:
    nodes: list[MessageNode] = []
    for message in messages:
        try:
            role = Role(message["role"])
        except ValueError as error:
            raise DatasetError(f"row {number} has a message of role {message['role']!r}") from error
        reasoning, content = _thought(message.get("content") or "") if role is Role.ASSISTANT else ("", "")
        calls = tuple(
            ToolCall(
                id=call.get("id") or "",
                name=call["function"]["name"] or "",
                arguments=call["function"]["arguments"] or "",
            )
            for call in message.get("tool_calls") or ()
        )
        nodes.append(
            _node(
                nodes,
                role,
                content if role is Role.ASSISTANT else message.get("content") or "",
                reasoning,
                calls,
                message.get("tool_call_id") or "",
            )
        )
    if not any(node.role is Role.ASSISTANT for node in nodes):
        raise DatasetError(f"row {number} has no assistant message")
    if nodes[-1].tool_calls:
        nodes.append(_node(nodes, Role.TOOL, "", "", (), nodes[-1].tool_calls[0].id))
    return nodes


def _node(
    before: list[MessageNode],
    role: Role,
    content: str,
    reasoning: str,
    calls: tuple[ToolCall, ...],
    answers: str,
) -> MessageNode:
    parent = before[-1].node_id if before else None
    turn = sum(node.role is Role.ASSISTANT for node in before) + (role is Role.ASSISTANT)
    return MessageNode(
        node_id=node_id(parent, role, content, calls, answers),
        parent=parent,
        role=role,
        turn=turn,
        content=content,
        reasoning=reasoning,
        tool_calls=calls,
        tool_call_id=answers,
    )


def _thought(content: str) -> tuple[str, str]:
    """Reasoning and text of a content that begins with a thought between tags."""
    head, mark, rest = content.partition("</think>")
    if not mark or not head.startswith("<think>"):
        return "", content
    return head.removeprefix("<think>").strip("\n"), rest.removeprefix("\n")


def _flags(path: list[MessageNode], messages: int) -> Iterator[str]:
    if any(node.content.lstrip().startswith(LEAKED_ERRORS) for node in path if node.role is Role.TOOL):
        yield "leaked_infrastructure_error"
    if len(path) > messages:
        yield "unanswered_last_call"
    if not any(node.reasoning or node.content for node in path if node.role is Role.ASSISTANT):
        yield "no_reasoning"

"""The way back: trajectories of others become rollouts of ours, event by event. Here are those in the
released Orchard SWE layout.

Each row is a rollout of one attempt in a campaign, with its own tools and metadata kept as they were. Known
flaws of the released rows are flagged, not mended; only a last call without an answer gets an empty one, so
that the conversation stays one.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec
import pyarrow.parquet as pq

from orchard.pipelines.datasets.errors import DatasetError
from orchard.pipelines.trajectories import LEAKED_ERRORS, assistants, path
from orchard.schemas import events as e
from orchard.schemas.campaigns import ModelSpec, RolloutRequest, TaskRef
from orchard.schemas.datasets import TrajectoryImported
from orchard.schemas.identity import check_name, digest, rollout_id
from orchard.schemas.images import Image
from orchard.schemas.llm_calls import ModelKind
from orchard.schemas.messages import MessageNode, Role, ToolCall, node_id
from orchard.schemas.outcomes import ExitStatus, Reward
from orchard.schemas.tasks import SWETests, Task
from orchard.storage.blobs import BlobStore
from orchard.streams.publisher import Publisher
from orchard.workers.large_messages import slimmed

LAYOUT = "orchard-swe"
SOURCE = "orchard/dataset/import"
_READ_ROWS = 16
T = TypeVar("T")
_COLUMNS = ("messages", "tools", "metadata")


ROLES = {role.value: role for role in Role} | {"developer": Role.SYSTEM}


class _Metadata(msgspec.Struct, frozen=True):
    """`sample_idx` is not used: parts of one trajectory have the same one, and other files have it again."""

    instance_id: str
    verify_status: Literal["resolved", "unresolved"]
    repo: str = ""
    source: str = ""
    model: str = ""


class _Function(msgspec.Struct, frozen=True):
    name: str | None = None
    arguments: str | None = None


class _Call(msgspec.Struct, frozen=True):
    function: _Function
    id: str | None = None


class Message(msgspec.Struct, frozen=True):
    """As released rows have them."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | None = None
    tool_calls: list[_Call] | None = None
    tool_call_id: str | None = None

    @property
    def said(self) -> list[object]:
        """What is in it: equal whether a field is null, empty or absent."""
        calls = [
            [call.id or "", call.function.name or "", call.function.arguments or ""]
            for call in self.tool_calls or ()
        ]
        return [ROLES[self.role], self.content or "", calls, self.tool_call_id or ""]


@dataclass(frozen=True, kw_only=True)
class Foreign:
    """A trajectory that another system made: one attempt of one rollout."""

    task_id: str
    source: str
    repo: str
    harness: str
    model: str
    sample: int
    row: int
    """Number of the row in what was read, from 0."""
    nodes: Sequence[MessageNode]
    """The tree, parents first."""
    leaf: str | None = None
    """Last message of the main conversation; None: the last of `nodes`."""
    exit_status: ExitStatus
    resolved: bool | None
    """None: nobody graded it."""
    reward: float | None = None
    """None: 1 for a resolved one, else -1."""
    layout: str
    tools: str
    """JSON text."""
    metadata: str
    """JSON text, kept as it was."""
    flags: tuple[str, ...] = ()


@dataclass(frozen=True)
class Imported:
    """What came of an import."""

    rollouts: int
    there_already: int
    flags: dict[str, int]


def read_released(
    files: Sequence[Path], columns: Sequence[str] = _COLUMNS
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Rows with their number over all files. Raises DatasetError for files without the columns."""
    number = 0
    for place in files:
        try:
            file = pq.ParquetFile(place)
        except (OSError, ValueError) as error:
            raise DatasetError(
                f"{place} is no Parquet file ({error}): give files of the released set"
            ) from error
        with file:
            missing = set(columns) - set(file.schema_arrow.names)
            if missing:
                raise DatasetError(
                    f"{place} has no column {', '.join(sorted(missing))}: the released layout has "
                    f"{', '.join(columns)}"
                )
            for batch in file.iter_batches(_READ_ROWS, columns=list(columns)):
                for row in batch.to_pylist():
                    yield number, row
                    number += 1


async def import_trajectories(
    publisher: Publisher, blobs: BlobStore, found: Iterable[Foreign], *, campaign: str, dataset: str
) -> Imported:
    """Publish the events of each trajectory, unless its rollout has an outcome already. Raises DatasetError
    for one that is not in its layout, and what publishing raises."""
    check_name(campaign)
    done, there, flags = 0, 0, Counter[str]()
    for one in found:
        events = events_of(blobs, one, campaign=campaign, dataset=dataset)
        last = events[-1]
        if await publisher.outcome(last.rollout_id or "") is not None:
            there += 1
            continue
        await publisher.events(events[:-1])
        await publisher.terminal(last)
        done += 1
        flags.update(one.flags)
    return Imported(done, there, dict(flags))


def events_of(blobs: BlobStore, one: Foreign, *, campaign: str, dataset: str) -> list[e.Event]:
    """The events of one trajectory: request, start, import, messages, reward where there is one, outcome."""
    nodes = list(one.nodes)
    statement = next((node.content for node in nodes if node.role is Role.USER), "")
    rollout = rollout_id(campaign, one.task_id, one.harness, one.model, one.sample)
    task = Task(
        task_id=one.task_id,
        source=one.source,
        repo=one.repo,
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
        harness=one.harness,
        model=ModelSpec(name=one.model or "unknown"),
        sample=one.sample,
    )
    leaf = one.leaf or nodes[-1].node_id
    main = path({node.node_id: node for node in nodes}, leaf)
    value = None if one.resolved is None else 1.0 if one.resolved else -1.0
    if value is not None and one.reward is not None:
        value = one.reward
    now = datetime.now(UTC)
    finished = e.RolloutFinished(
        task_id=task.task_id,
        task_source=task.source,
        repo=task.repo,
        harness=one.harness,
        model=request.model.name,
        model_kind=ModelKind.MODEL,
        sample=one.sample,
        worker="import",
        started_at=now,
        seconds=0.0,
        turns=len(assistants(main)),
        status=one.exit_status.status,
        exit_status=one.exit_status,
        reward=value,
        resolved=one.resolved,
        leaf=leaf,
    )
    imported = TrajectoryImported(
        dataset=dataset,
        row=one.row,
        layout=one.layout,
        tools=one.tools,
        metadata=one.metadata,
        flags=one.flags,
    )
    started = e.RolloutStarted(worker="import", request_sequence=0, deliveries=1)
    rewards = [] if value is None else [Reward(value=value, resolved=bool(one.resolved), grader="imported")]
    messages = [slimmed(node, blobs) for node in nodes]
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
        for index, data in enumerate([request, started, imported, *messages, *rewards, finished])
    ]


def released(
    rows: Iterable[tuple[int, dict[str, Any]]], harness: str, left_out: Counter[str] | None = None
) -> Iterator[Foreign]:
    """Rows of the released layout, made by `harness`. Those that are not in it are counted in `left_out` by
    what is wrong; without it, the first of them raises DatasetError."""
    for number, row in rows:
        try:
            one = _foreign(number, row, harness)
        except DatasetError as error:
            if left_out is None:
                raise DatasetError(f"row {number} is not in the released layout: {error}") from error
            left_out[fault(error)] += 1
        else:
            yield one


def fault(error: Exception) -> str:
    """What is wrong with a row, in words that do not say at which place in it."""
    return re.sub(r"\[\d+\]", "[...]", str(error))


def sample_of(content: Any) -> int:
    """A number that tells a trajectory from others of its task and model: equal content, equal number, in
    whichever file and at whichever place it stands."""
    return int(digest(content, 12), 16)


def _foreign(number: int, row: dict[str, Any], harness: str) -> Foreign:
    """Raises DatasetError with what is wrong, in words that differ between rows with that fault only in the
    number of the message."""
    metadata = decoded("metadata", row["metadata"], _Metadata)
    tools = decoded("tools", row["tools"] or "[]", list[dict[str, Any]])
    try:
        messages = msgspec.convert(row["messages"] or [], list[Message])
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


def decoded(column: str, text: Any, kind: type[T]) -> T:
    """The value of a column of JSON text. Raises DatasetError with what is wrong."""
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.ValidationError as error:
        raise DatasetError(f"{column}: {error}") from error
    except (msgspec.DecodeError, TypeError) as error:  # it names the byte, which differs from row to row
        raise DatasetError(f"{column}: not JSON text") from error
    except RecursionError as error:
        raise DatasetError(f"{column}: nested too deep") from error


def _nodes(messages: Sequence[Message]) -> list[MessageNode]:
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
        raise DatasetError("messages: none of the assistant")
    if nodes[-1].tool_calls:
        nodes.append(next_node(nodes, Role.TOOL, "", "", (), nodes[-1].tool_calls[0].id))
    return nodes


def next_node(
    before: Sequence[MessageNode],
    role: Role,
    content: str,
    reasoning: str = "",
    calls: tuple[ToolCall, ...] = (),
    answers: str = "",
    images: tuple[Image, ...] = (),
) -> MessageNode:
    """The message that follows on the path `before`; `answers` is the id of the call whose result it is."""
    parent = before[-1].node_id if before else None
    turn = sum(node.role is Role.ASSISTANT for node in before) + (role is Role.ASSISTANT)
    return MessageNode(
        node_id=node_id(parent, role, content, calls, answers, images),
        parent=parent,
        role=role,
        turn=turn,
        content=content,
        reasoning=reasoning,
        tool_calls=calls,
        tool_call_id=answers,
        images=images,
    )


def thought(content: str) -> tuple[str, str]:
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

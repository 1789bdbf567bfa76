"""Trajectories of other systems as records, and readers of published rows; domains bring their layouts."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

import msgspec
import pyarrow.parquet as pq

from orchard.pipelines.datasets.errors import DatasetError
from orchard.pipelines.domain import offered
from orchard.pipelines.tasks.left_out import LeftOut
from orchard.schemas.identity import digest
from orchard.schemas.llm_calls import LLMCall
from orchard.schemas.messages import Image, MessageNode, Role, ToolCall, node_id
from orchard.schemas.outcomes import ExitStatus
from orchard.storage.blobs import BlobStore
from orchard.workers.discovery import load

UNKNOWN_MODEL = "unknown"
_READ_ROWS = 16
T = TypeVar("T")


ROLES = {role.value: role for role in Role} | {"developer": Role.SYSTEM}


class _Function(msgspec.Struct, frozen=True):
    name: str | None = None
    arguments: str | None = None


class _Call(msgspec.Struct, frozen=True):
    function: _Function
    id: str | None = None


class ReleasedMessage(msgspec.Struct, frozen=True):
    """A chat message in the form of released rows."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | None = None
    tool_calls: list[_Call] | None = None
    tool_call_id: str | None = None

    @property
    def said(self) -> list[object]:
        """The message's content: equal whether a field is null, empty or absent."""
        calls = [
            [call.id or "", call.function.name or "", call.function.arguments or ""]
            for call in self.tool_calls or ()
        ]
        return [ROLES[self.role], self.content or "", calls, self.tool_call_id or ""]


@dataclass(frozen=True, kw_only=True)
class Took:
    """Time, calls and tokens of a trajectory, as its file states them; None where it does not."""

    started_at: datetime | None = None
    seconds: float | None = None
    seconds_creating: float | None = None
    seconds_grading: float | None = None
    llm_calls: int | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cost_usd: float | None = None


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
    leaf: str | None = None
    """Last message of the main conversation; None: the last of `nodes`."""
    exit_status: ExitStatus
    resolved: bool | None
    """None: not graded."""
    reward: float | None = None
    """None: 1 for a resolved one, else -1."""
    layout: str
    tools: str
    metadata: str
    """JSON text, kept as it was."""
    flags: tuple[str, ...] = ()
    took: Took = Took()
    calls: Sequence[LLMCall] = ()
    """Calls of the model, each with what the file says of it."""
    times: Mapping[str, datetime] = field(default_factory=dict)
    """Times of the messages and their calls, by message, where the file has them."""


class LayoutReader(Protocol):
    """Reads trajectories out of the files of one released layout."""

    def __call__(self, files: Sequence[Path], blobs: BlobStore, harness: str) -> Iterator[Foreign | LeftOut]:
        """Yield the trajectories, attributed to `harness`, and a reason for each row that is none;
        pictures go into `blobs`."""


def read_layout(
    layout: str, files: Sequence[Path], blobs: BlobStore, harness: str
) -> Iterator[Foreign | LeftOut]:
    """Read the trajectories of a released layout. Raises DatasetError for a layout that no domain has."""
    known = offered(lambda domain: domain.released_layouts)
    if layout not in known:
        raise DatasetError(f"--format {layout!r} is not known: use {' or '.join(sorted(known))}")
    read: LayoutReader = load(known[layout].reader)
    return read(files, blobs, harness)


def parquet_rows(
    files: Sequence[Path], columns: Sequence[str]
) -> Iterator[tuple[int, dict[str, Any] | LeftOut]]:
    """Rows with their number over all files, and for a file that cannot be read to its end the reason."""
    number = 0
    for place in files:
        try:
            with pq.ParquetFile(place) as file:
                if missing := set(columns) - set(file.schema_arrow.names):
                    raise DatasetError(
                        f"it has no column {', '.join(sorted(missing))}: the released layout has "
                        f"{', '.join(columns)}"
                    )
                for batch in file.iter_batches(_READ_ROWS, columns=list(columns)):
                    for row in batch.to_pylist():
                        yield number, row
                        number += 1
        except DatasetError as error:
            yield number, LeftOut(str(place), str(error))
        except (OSError, ValueError) as error:  # those of Arrow are one of these
            why = f"it cannot be read as Parquet ({error}): give files of the released set"
            yield number, LeftOut(str(place), why)


def sample_of(content: Any) -> int:
    """Derive a sample number from the content: equal content, equal number, in whichever file and at
    whichever position."""
    return int(digest(content, 12), 16)


def decoded(column: str, text: Any, kind: type[T]) -> T:
    """Decode a column of JSON text. Raises DatasetError that names the column and the fault."""
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.ValidationError as error:
        raise DatasetError(f"{column}: {error}") from error
    except (msgspec.DecodeError, TypeError) as error:  # it names the byte, which differs from row to row
        raise DatasetError(f"{column}: not JSON text") from error
    except RecursionError as error:
        raise DatasetError(f"{column}: nested too deep") from error


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
    """Split a content that begins with a thought between tags into reasoning and text."""
    head, mark, rest = content.partition("</think>")
    if not mark or not head.startswith("<think>"):
        return "", content
    return head.removeprefix("<think>").strip("\n"), rest.removeprefix("\n")

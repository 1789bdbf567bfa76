"""What an ATIF document says beyond the messages and calls of the log, so that an export can say it again.

It is kept in the event of the import, as a difference to what the log alone would export.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from orchard.pipelines.interchange import atif
from orchard.pipelines.interchange.conversation import Row, conversation
from orchard.pipelines.interchange.difference import Difference, applied, difference
from orchard.pipelines.trajectories.reading import path
from orchard.schemas.blobs import INLINE_LIMIT
from orchard.schemas.identity import digest
from orchard.schemas.llm_calls import LLMCall
from orchard.schemas.messages import MessageNode
from orchard.storage.blobs import BlobStore


class Shape(msgspec.Struct, frozen=True):
    """A conversation by its last message, with those embedded in it."""

    leaf: str
    inside: list["Shape"] = []


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """Metadata of an imported trajectory."""

    conversations: Shape | None = None
    """None in older imports."""
    beyond: list[Any] | dict[str, Any] | str = {}
    """A difference, or the SHA-256 of its blob."""
    base: str = ""
    """Digest of what the difference was made from: another version may export the log otherwise."""


def kept(
    found: atif.Trajectory,
    shape: Shape,
    nodes: Mapping[str, MessageNode],
    calls: Mapping[str, LLMCall],
    model: str,
    blobs: BlobStore | None,
) -> Kept:
    """What `found` says beyond its messages and calls; a large one becomes a blob."""
    made = {name: call_row(call) for name, call in calls.items()}
    ours = _built(shape, found.agent.name, model, dict(nodes), made)
    change: Difference | str = difference(ours, msgspec.to_builtins(found))
    raw = msgspec.json.encode(change)
    if blobs is not None and len(raw) > INLINE_LIMIT // 4:
        change = blobs.put(raw, "application/json").sha256
    return Kept(conversations=shape, beyond=change, base=digest(ours))


def said_again(
    metadata: str, row: Row, nodes: dict[str, MessageNode], calls: Mapping[str, Row], blobs: BlobStore
) -> dict[str, Any] | None:
    """The document that was imported; None where the import kept none, or another version made it that
    exports the log otherwise. Raises BlobMissing or BlobCorrupt."""
    stored = msgspec.json.decode(metadata, type=Kept)
    if stored.conversations is None:
        return None
    ours = _built(stored.conversations, row["harness"], row["model"], nodes, calls)
    if digest(ours) != stored.base:
        return None
    change = stored.beyond
    if isinstance(change, str):
        change = msgspec.json.decode(blobs.read(change))
        assert not isinstance(change, str)
    found: dict[str, Any] = applied(ours, change)
    return found


def _built(
    shape: Shape, harness: str, model: str, nodes: dict[str, MessageNode], calls: Mapping[str, Row]
) -> dict[str, Any]:
    made: dict[str, Any] = msgspec.to_builtins(
        conversation(harness, model, shape.leaf, path(nodes, shape.leaf), calls)
    )
    if shape.inside:
        made["subagent_trajectories"] = [_built(each, harness, model, nodes, calls) for each in shape.inside]
    return made


def call_row(call: LLMCall) -> Row:
    """The columns of a call that an export reads."""
    columns = ("served_model", "finish_reason", "seconds", "cost_usd")
    return {name: getattr(call, name) for name in columns} | msgspec.structs.asdict(call.usage)

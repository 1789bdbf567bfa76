"""Messages as `orchard show --json` prints them."""

from collections.abc import Mapping
from typing import Any

import msgspec

from orchard.pipelines.trajectories.reading import stored_node
from orchard.schemas.llm_calls import CallKind
from orchard.schemas.messages import MessageNode
from orchard.storage.blobs import BlobStore


class MessageCall(msgspec.Struct, frozen=True, kw_only=True):
    """The model call that made a message, in `orchard show --json`."""

    node: str
    """Id of the message that the call added."""
    call_kind: CallKind | None
    prompt_tokens: int | None
    completion_tokens: int | None
    cached_tokens: int | None
    reasoning_tokens: int | None
    cost_usd: float | None
    seconds: float | None
    finish_reason: str | None
    served_model: str | None


class ShownMessage(MessageNode, frozen=True, kw_only=True):
    """A line of `orchard show --json`: a message, with the facts of its command and its call."""

    rollout_id: str
    attempt: int
    returncode: int | None
    """Exit status of the command that a tool message answers."""
    seconds: float | None
    """Duration of that command."""
    timed_out: bool | None
    call: MessageCall | None
    """None for a message that no model wrote."""


def shown_message(
    blobs: BlobStore, rollout_id: str, row: Mapping[str, Any], call: Mapping[str, Any] | None
) -> ShownMessage:
    """Builds the line of a row of the view `messages` and of the call that made it. Raises BlobMissing,
    BlobCorrupt."""
    node = stored_node(blobs, row)
    return ShownMessage(
        **{name: getattr(node, name) for name in node.__struct_fields__},
        rollout_id=rollout_id,
        **{name: row[name] for name in ("attempt", "returncode", "seconds", "timed_out")},
        call=MessageCall(**{name: call[name] for name in MessageCall.__struct_fields__}) if call else None,
    )

"""Messages as a tree: a node is one message with its parent (architecture.md, section 4)."""

from enum import StrEnum

import msgspec

from orchard.schemas.blobs import BlobRef
from orchard.schemas.identity import digest


class Role(StrEnum):
    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call as the model wrote it; `arguments` stays the text it was, parsable or not."""

    id: str
    name: str
    arguments: str


class ToolResult(msgspec.Struct, frozen=True, kw_only=True):
    """What the machine knows about a tool message, beside the text the model saw."""

    returncode: int
    seconds: float
    timed_out: bool = False
    output_sha256: str = ""
    """Of the whole output before any cut: what a replay compares (learning.md, measured values)."""


class VersionRun(msgspec.Struct, frozen=True, kw_only=True):
    """From token index `start` on, tokens were sampled by policy `version`."""

    start: int
    version: int


class TokenRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens in, tokens out: exactly what the policy server sampled.

    `ids` and `logprobs` have one entry for each sampled token; `prompt_ids`, when the server gives
    them, are all tokens before the first of `ids`.
    """

    ids: tuple[int, ...]
    logprobs: tuple[float, ...] = ()
    prompt_ids: tuple[int, ...] = ()
    versions: tuple[VersionRun, ...] = ()


class NodeRest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a node says beside its text, when that alone is over the inline limit: the JSON of `rest_blob`."""

    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tokens: TokenRecord | None = None


class MessageNode(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One message of a rollout. `node_id` is a hash over the parent's id and the content, as in git."""

    node_id: str
    parent: str | None
    role: Role
    turn: int
    """0 before the first assistant message; an assistant message and its results share a turn."""
    content: str = ""
    content_blob: BlobRef | None = None
    """Set, with `content` empty, when the text is over the inline limit."""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""
    result: ToolResult | None = None
    tokens: TokenRecord | None = None
    rest_blob: BlobRef | None = None
    """A NodeRest. Set, with `reasoning`, `tool_calls` and `tokens` empty, when these are over the limit."""
    inherited_from: int | None = None
    """The earlier attempt of the same rollout that made this message, when this one adopted it."""


def node_id(
    parent: str | None,
    role: Role,
    content: str,
    tool_calls: tuple[ToolCall, ...] = (),
    tool_call_id: str = "",
) -> str:
    """24 hexadecimal digits that depend on the whole path from the root."""
    return digest([parent, role, content, tool_calls, tool_call_id])
